"""The requests of a run: a list fixed by the seed before the run starts, and never changed by what happens in it.

A `Shot` holds numbers, not text. `Prompts` makes the text when a request is sent, so a million shots take 200 MB instead of
5 GB. A conversation is a chain of shots. Its first turn starts by the schedule; each later turn starts when the answer
before it has ended and the user's think time has passed, so its intended start is only known during the run. Think times and
lengths are fixed in advance. The assistant's messages in the history are made up too: what is sent depends only on the seed,
so two targets get exactly the same requests.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Annotated

import msgspec

from stayfast.core.setting import check_bounds
from stayfast.lab.load.arrivals import Arrivals, TraceRequest
from stayfast.lab.load.lengths import WORDINGS, FillerText, Length
from stayfast.lab.load.options import Option

BLOCK_TOKENS = 512  # tokens of a block that one hash of a Mooncake trace stands for
MIN_STEP_REQUESTS = 200  # requests that a step of a sweep needs to be judged


class Shot(msgspec.Struct, frozen=True, gc=False):
    """One planned request. `at_s`: its intended start (t0) in seconds from the run's zero; negative in the warm-up."""

    number: int
    at_s: float
    prompt: int  # equal numbers are equal texts
    n_input: int  # tokens of the user's own message
    n_output: int  # requested tokens
    wording: int = 0
    n_shared: int = 0  # leading tokens that all prompts share
    blocks: tuple[int, ...] = ()  # identities of the prompt's leading blocks
    think_s: float = 0.0  # of later turns: the pause since the previous answer
    history: tuple["Shot", ...] = ()  # earlier turns
    next_turn: "Shot | None" = None  # the next turn


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How prompts repeat. `share` of the requests draw one of `size` prompts by Zipf's law with exponent `zipf`;
    `paraphrased` of those use other words. All other prompts are unique."""

    size: Annotated[int, Option("draw prompts from N (default: all different)", 0, 10_000_000, flag="--pool")] = 0
    share: Annotated[float, Option("share of the requests that draw from the pool", 0, 1,
                                   flag="--pool-share", metavar="SHARE")] = 1.0
    zipf: Annotated[float, Option("how unevenly the pool is drawn from", 0, 10, flag="--zipf", metavar="S")] = 1.0
    paraphrased: Annotated[float, Option("share of the pool's requests in other words (default: 0)", 0, 1,
                                         flag="--paraphrase", metavar="SHARE")] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def __str__(self) -> str:
        if not self.size or not self.share:
            return "all different"
        reworded = f", {self.paraphrased:.0%} of them reworded" if self.paraphrased else ""
        rest = ", the rest different" if self.share < 1 else ""
        return f"{self.share:.0%} drawn from {self.size} prompts (Zipf {self.zipf:g}){reworded}{rest}"


@dataclass(frozen=True, slots=True)
class TurnsConfig:
    """Conversations of `n_turns` turns, with exponential think times of mean `think_s` between them."""

    n_turns: Annotated[int, Option("turns of a conversation", 1, 1000, flag="--turns")] = 1
    think_s: Annotated[float, Option("mean think time between turns", 0, 86_400, flag="--think", metavar="TIME")] = 5.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests to generate. A non-empty `trace` replaces `arrivals`, `input` and `output`."""

    input: Length
    output: Length
    arrivals: Arrivals | None = None  # None: a closed loop
    trace: Sequence[TraceRequest] = ()
    pool: PoolConfig = PoolConfig()
    turns: TurnsConfig = TurnsConfig()
    n_system: Annotated[int, Option("tokens of a system prompt that all requests share (default: 0)", 0, 1_000_000,
                                    flag="--system-tokens")] = 0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ScheduleLimit:
    """Where a schedule ends: at `until_s` seconds or after `n_requests`, whichever comes first (None: no limit). Neither
    counts the warm-up, its first `warmup_s` seconds. `MeasurePlan` checks the bounds."""

    until_s: Annotated[float | None, Option(
        f"measured part (default: 30s; of each step of a sweep: 10s, and {MIN_STEP_REQUESTS} requests of a rate)",
        more_than=0,
        flag="--duration", metavar="TIME")] = None
    n_requests: Annotated[int | None, Option("end after N measured requests", more_than=0, flag="--requests")] = None
    warmup_s: Annotated[float, Option("warm-up before the measured part (default: none)", 0,
                                      flag="--warmup", metavar="TIME")] = 0.0


def generate_shots(workload: Workload, seed: int, limit: ScheduleLimit) -> Iterator[Shot]:
    """The planned requests in order of `at_s`. For a closed loop (no arrivals, no trace): endless, all with `at_s` 0."""
    drawn = _ShotGenerator(workload, Random(seed))
    warmup_s, n_turns = limit.warmup_s, workload.turns.n_turns
    number = n_measured = 0
    for at_s, row in _draw_starts(workload, Random(seed + 1)):
        if (limit.until_s is not None and at_s - warmup_s >= limit.until_s) or (
                limit.n_requests is not None and n_measured >= limit.n_requests):
            return
        first = drawn.draw_conversation(number, at_s - warmup_s, row)
        number += n_turns
        if at_s >= warmup_s:
            n_measured += n_turns
        yield first


def _draw_starts(workload: Workload, rng: Random) -> Iterator[tuple[float, TraceRequest | None]]:
    if workload.trace:
        return ((row.at_s, row) for row in workload.trace)
    if workload.arrivals is not None:
        return ((at_s, None) for at_s in workload.arrivals.instants(rng))
    return iter(lambda: (0.0, None), 0)


class _ShotGenerator:
    def __init__(self, workload: Workload, rng: Random) -> None:
        self._workload = workload
        self._rng = rng
        pool = workload.pool
        self._weights = list(accumulate(1 / rank**pool.zipf for rank in range(1, pool.size + 1)))

    def draw_conversation(self, number: int, at_s: float, row: TraceRequest | None) -> Shot:
        """The first turn of a conversation, linked to the later ones by `next_turn`."""
        config = self._workload.turns
        turns = [self._draw_shot(number, at_s, row)]
        for n in range(1, config.n_turns):
            think_s = self._rng.expovariate(1 / config.think_s) if config.think_s else 0.0
            turn = self._draw_shot(number + n, at_s, None)
            turns.append(msgspec.structs.replace(turn, think_s=think_s, history=tuple(turns)))
        linked = turns.pop()
        while turns:
            linked = msgspec.structs.replace(turns.pop(), next_turn=linked)
        return linked

    def _draw_shot(self, number: int, at_s: float, row: TraceRequest | None) -> Shot:
        workload, rng, pool = self._workload, self._rng, self._workload.pool
        if row is not None:
            return Shot(number, at_s, pool.size + number, max(1, row.n_input), max(1, row.n_output), n_shared=row.n_shared,
                        blocks=row.blocks)
        if not self._weights or (pool.share < 1 and rng.random() >= pool.share):
            return Shot(number, at_s, pool.size + number, workload.input.draw(rng), workload.output.draw(rng))
        prompt = min(bisect(self._weights, rng.random() * self._weights[-1]), pool.size - 1)
        wording = rng.randrange(1, len(WORDINGS)) if pool.paraphrased and rng.random() < pool.paraphrased else 0
        own = Random(prompt)  # a prompt always has the same length and answer
        return Shot(number, at_s, prompt, workload.input.draw(own), workload.output.draw(own), wording)


class Prompts:
    """The text of planned requests. A pure function of the seed."""

    def __init__(self, seed: int, n_system: int = 0) -> None:
        self._book = FillerText(seed)
        self.system = self._book.make_passage(0, n_system)

    def user_message(self, shot: Shot) -> str:
        if shot.blocks:
            n_blocks = min(len(shot.blocks), -(-shot.n_input // BLOCK_TOKENS))
            sizes = [BLOCK_TOKENS] * (n_blocks - 1) + [shot.n_input - BLOCK_TOKENS * (n_blocks - 1)]
            return " ".join(self._book.make_prompt(block, size) for block, size in zip(shot.blocks, sizes, strict=False))
        if shot.n_shared:
            shared = self._book.make_passage(1, min(shot.n_shared, shot.n_input))
            n_left = shot.n_input - shot.n_shared
            return f"{shared} {self._book.make_prompt(shot.prompt, n_left)}" if n_left > 0 else shared
        return self._book.make_prompt(shot.prompt, shot.n_input, shot.wording)

    def messages(self, shot: Shot) -> list[tuple[str, str]]:
        """Role and text of each message, without the system prompt. The last message is the user's."""
        turns: list[tuple[str, str]] = []
        for turn in shot.history:
            turns += [("user", self.user_message(turn)),
                      ("assistant", self._book.make_passage(turn.prompt + 2, turn.n_output))]
        turns.append(("user", self.user_message(shot)))
        return turns
