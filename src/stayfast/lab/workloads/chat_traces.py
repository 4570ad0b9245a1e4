"""Conversations as a stream of requests: from a trace of arrivals and lengths, or made up.

A trace has no text. Where it says how many leading tokens of a prompt were seen before (`reusable_prefix_tokens`), the
prompt continues the newest earlier one whose whole blocks are as many, else it shares the beginning of the newest one that
is long enough. A trace without that column has prompts that share nothing, and is replayed so.

The made-up conversations have a system prompt of one of some applications, then turns; a turn's prompt is the whole
conversation so far. Think times and lengths are drawn; an answer becomes part of the next prompt.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from random import Random
from typing import Final

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Api, Request
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.load.arrivals import TraceRequest
from stayfast.lab.load.schedule import BLOCK_TOKENS
from stayfast.wire.request_body import decode

BLOCK_TEXT: Final = BLOCK_TOKENS * BYTES_A_TOKEN
N_CANDIDATES: Final = 4_000  # earlier prompts that a later one may continue


class ConversationTurn(msgspec.Struct, frozen=True, gc=False):
    """One request of a conversation. blocks: identities of its prompt's blocks of BLOCK_TOKENS tokens, the last one cut."""

    at_s: float
    n_input: int
    n_output: int
    blocks: tuple[int, ...]

    def to_request(self) -> Request:
        """A streamed request. Equal blocks have equal text, and different ones differ at once."""
        text = "".join([f"{block:08x}" * (BLOCK_TEXT // 8) for block in self.blocks])[:self.n_input * BYTES_A_TOKEN]
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True,
                "stream_options": {"include_usage": True}, "max_tokens": self.n_output}
        return decode(Api.CHAT, msgspec.json.encode(body))


def link_trace(rows: Sequence[TraceRequest], limit_tokens: int) -> list[ConversationTurn]:
    """The conversations of a trace, in its order. Prompts are cut at limit_tokens."""
    numbers, found = count(1), list[ConversationTurn]()
    by_length: dict[int, tuple[int, ...]] = {}  # the newest prompt of so many whole blocks
    newest: list[tuple[int, ...]] = []
    for row in rows:
        n_input = max(1, min(row.n_input, limit_tokens))
        n_blocks, n_shared = -(-n_input // BLOCK_TOKENS), min(row.n_shared, n_input) // BLOCK_TOKENS
        shared: tuple[int, ...] = ()
        if n_shared:
            earlier = by_length.get(n_shared) or next((blocks for blocks in reversed(newest) if len(blocks) >= n_shared), ())
            shared = earlier[:n_shared]
        blocks = (*shared, *islice(numbers, n_blocks - len(shared)))
        by_length[n_input // BLOCK_TOKENS] = blocks
        newest.append(blocks)
        del newest[:-N_CANDIDATES]
        found.append(ConversationTurn(row.at_s, n_input, max(1, row.n_output), blocks))
    return found


N_APPLICATIONS: Final = 8
SYSTEM_BLOCKS: Final = 4  # of an application's instructions: 2,048 tokens
MEAN_TURNS: Final = 6.0
THINK_S: Final = 4.0


def make_conversations(rate_rps: float, n_requests: int, seed: int) -> list[ConversationTurn]:
    """Requests of made-up conversations at a mean rate, in order of time. A turn adds 1 to 4 blocks."""
    rng, numbers = Random(seed), count(N_APPLICATIONS * SYSTEM_BLOCKS + 1)
    due: list[tuple[float, int, tuple[int, ...]]] = []
    found: list[ConversationTurn] = []
    begins_s, order = 0.0, count()
    while len(found) < n_requests:
        while not due or begins_s <= due[0][0]:
            application = min(int(rng.paretovariate(1.0)), N_APPLICATIONS) - 1  # half of them are of the first
            system = tuple(range(application * SYSTEM_BLOCKS + 1, (application + 1) * SYSTEM_BLOCKS + 1))
            heappush(due, (begins_s, next(order), system))
            begins_s += rng.expovariate(rate_rps / MEAN_TURNS)
        at_s, _, history = heappop(due)
        n_output = rng.randint(50, 250)
        blocks = (*history, *islice(numbers, rng.randint(1, 4)))
        found.append(ConversationTurn(at_s, len(blocks) * BLOCK_TOKENS - rng.randrange(BLOCK_TOKENS // 2), n_output, blocks))
        if rng.random() < 1 - 1 / MEAN_TURNS:
            heappush(due, (at_s + rng.expovariate(1 / THINK_S) + n_output * 0.02, next(order), blocks))
    return found


def offered_tokens_per_s(requests: Iterable[ConversationTurn]) -> float:
    """The mean rate of prompt tokens."""
    ordered = list(requests)
    span_s = ordered[-1].at_s - ordered[0].at_s if len(ordered) > 1 else 0.0
    return sum(request.n_input for request in ordered) / span_s if span_s else 0.0
