"""To whom a prompt is not new: the upstreams that have its beginning in their cache, or the session that it belongs to.

Problem: an engine that has a prompt's beginning in its cache starts at the rest of it; a fleet behind a balancer that does
not know this computes every conversation again at every turn. To follow the cache blindly is worse: one popular system
prompt piles everybody up at one replica. Rule: a prompt is cut into blocks of 1 KiB, each known by the CRC of all bytes up
to its end, and what was sent where is remembered for some minutes. Of the upstreams that are well, and have at most
`max_load` times the load of the least loaded one, the first is the least of

    score = predicted ttft_s of the part that is new there * (1 + 0.25 new_share)
            load_s * (1 + (max_load - 1) * new_share)        as long as no first tokens can be predicted

new_share being of the prompt what was not sent there lately, as long as that tells them apart; else power of two choices as
ever. The prediction (policy/resilience/ttft.py) counts the tokens that wait there already; the quarter keeps prompts
together where a cached one is not quicker, but costs less. A session's home counts as if it knew all of the prompt. It is
found by rendezvous hashing, the highest of w / -ln(u), u in (0, 1) from a hash of session and upstream, w its weight:
nothing is stored, all workers and replicas find the same one, and a new upstream takes over only what becomes its own.

Memory: `cache_tokens` an upstream, the least recently sent first; of one prompt its end goes first, so what is left of a
chain is always its beginning, and how much is known is found by halving.
Source: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016); the approximate prefix scorer of llm-d
and SGLang's cache-aware policy; rendezvous hashing (Thaler, Ravishankar 1998).
When wrong: an upstream that evicts earlier than we think looks as if it knew; markers that move inside the prompt
(`cache_control`) end the match where they stood; a CRC of 32 bits takes one block in some hundred thousand for another's,
which costs a prefill. Each worker knows what it sent itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import inf, log
from typing import Annotated, Literal
from zlib import crc32

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.setting import SettingDoc, check_bounds

BLOCK_BYTES = 1024
MAX_BLOCKS = 512  # of one prompt: 128,000 tokens; what follows is neither known nor new
DEARER = 0.25  # what is not cached costs more, even where it is as quick
_HASH_BYTES = 6  # fits a float without rounding
_HASHES = 1 << 8 * _HASH_BYTES


@dataclass(frozen=True, slots=True)
class AffinityConfig:
    """What draws a request to an upstream. `ttl_s`, `cache_tokens`: for how long, and how much, one caches."""

    mode: Annotated[Literal["off", "prefix", "sessions", "both"], SettingDoc(
        "prefix: to the upstream with the prompt's beginning in its cache. sessions: one conversation, one upstream. both, "
        "or off.")] = "off"
    max_load: Annotated[float, SettingDoc(
        "Highest load of the preferred upstream, relative to the least loaded.", minimum=1, maximum=100)] = 6.0
    ttl_s: Annotated[float, SettingDoc(
        "Assumed lifetime of a prompt in an upstream's cache.", minimum=1, maximum=86_400)] = 600.0
    cache_tokens: Annotated[int, SettingDoc(
        "Assumed size of an upstream's cache, in tokens.", minimum=1000, maximum=100_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def most_blocks(self) -> int:
        return max(MAX_BLOCKS, self.cache_tokens * BYTES_A_TOKEN // BLOCK_BYTES)

    @property
    def sees_prefix(self) -> bool:
        return self.mode in ("prefix", "both")

    @property
    def sees_sessions(self) -> bool:
        return self.mode in ("sessions", "both")


def blocks_of(prompt: bytes, seed: str = "", block_bytes: int = BLOCK_BYTES) -> list[int]:
    """The identities of a prompt's whole blocks, each of all bytes up to its end. `seed`: of the model."""
    if len(prompt) < block_bytes:
        return []
    n = min(len(prompt) // block_bytes, MAX_BLOCKS)
    block, view = crc32(seed.encode()), memoryview(prompt)
    return [block := crc32(view[at:at + block_bytes], block) for at in range(0, n * block_bytes, block_bytes)]


def session_owner(session: bytes, upstreams: Sequence[str], weights: Mapping[str, float]) -> str:
    """The upstream of a session, of those that there are (at least one)."""
    def height(name: str) -> float:
        keyed = _keyed(name).copy()
        keyed.update(session)
        drawn = int.from_bytes(keyed.digest(), "big")
        return weights.get(name, 1.0) / -log((drawn + 0.5) / _HASHES)

    return max(upstreams, key=height)


@lru_cache(maxsize=256)
def _keyed(name: str) -> blake2b:
    return blake2b(digest_size=_HASH_BYTES, key=blake2b(name.encode(), digest_size=16).digest())


def score_s(load_s: float, new_share: float, max_load: float, wait_s: float | None = None) -> float:
    """What an upstream counts for a prompt of which this share is new to it. `wait_s`: for its first token, as predicted."""
    return wait_s * (1 + DEARER * new_share) if wait_s is not None else load_s * (1 + (max_load - 1) * new_share)


class Prefixes:
    """What was sent to one upstream. Pure state; changed only by its owner. Instants never go backwards."""

    __slots__ = ("_at", "_known_s", "_most")

    def __init__(self, most_blocks: int, ttl_s: float) -> None:
        self._at: dict[int, float] = {}  # block to when it was last sent, oldest first
        self._known_s = ttl_s
        self._most = most_blocks

    def n_known(self, blocks: Sequence[int], now: float) -> int:
        """How many of a prompt's leading blocks it has been sent lately."""
        at, since = self._at, now - self._known_s
        least, most = 0, len(blocks)
        while least < most:
            middle = (least + most) // 2
            if at.get(blocks[middle], -inf) > since:
                least = middle + 1
            else:
                most = middle
        return least

    def sent(self, blocks: Sequence[int], now: float) -> None:
        at = self._at
        for block in reversed(blocks):
            at.pop(block, None)
            at[block] = now
        while len(at) > self._most:
            del at[next(iter(at))]

    def __len__(self) -> int:
        return len(self._at)

    def __repr__(self) -> str:
        return f"<Prefixes: {len(self._at)} blocks>"
