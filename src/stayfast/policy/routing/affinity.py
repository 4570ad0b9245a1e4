"""Affinity: send a prompt to an upstream that has its prefix in the cache, or a session to its owner.

Problem: an engine with a prompt's prefix in its cache computes only the rest. But following the cache blindly sends all
requests with a popular system prompt to one replica. Rule: a prompt is cut into blocks of 1 KiB, each identified by the CRC
of all bytes up to its end, and the blocks sent to each upstream are remembered for some minutes. Of the healthy upstreams
with at most `max_load` times the load of the least loaded one, the first is that with the least

    score = predicted ttft_s of the new part of the prompt there * (1 + 0.25 new_share)
            load_s * (1 + (max_load - 1) * new_share)        without a prediction

new_share is the part of the prompt that was not sent there recently. If it is equal for all, power of two choices applies.
The factor 0.25 keeps prompts together if a cached one is not faster, but cheaper. A session's owner counts as if it had the
whole prompt. It is found by rendezvous hashing, the highest of w / -ln(u), with u in (0, 1) a hash of session and upstream,
and w the upstream's weight: nothing is stored, and all workers and replicas agree.

Memory: `cache_tokens` per upstream, least recently sent first; within a prompt the end goes first, so that the known length
is found by bisection.
Source: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016); the approximate prefix scorer of llm-d
and SGLang's cache-aware policy; rendezvous hashing (Thaler, Ravishankar 1998).
When wrong: an upstream may evict earlier than assumed; markers that move inside the prompt (`cache_control`) end the
match there; a 32-bit CRC confuses one block in some hundred thousand. Each worker knows only what it sent.
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
MAX_BLOCKS = 512  # of one prompt: 128,000 tokens; the rest is ignored
DEARER = 0.25  # an uncached prompt costs more even if it is as fast
_HASH_BYTES = 6  # fits a float without rounding
_HASHES = 1 << 8 * _HASH_BYTES


@dataclass(frozen=True, slots=True)
class AffinityConfig:
    """Affinity of requests to upstreams. `ttl_s`, `cache_tokens`: how long, and how much, an upstream caches."""

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


def hash_blocks(prompt: bytes, seed: str = "", block_bytes: int = BLOCK_BYTES) -> list[int]:
    """The identities of a prompt's whole blocks, each of all bytes up to its end. `seed`: the model."""
    if len(prompt) < block_bytes:
        return []
    n = min(len(prompt) // block_bytes, MAX_BLOCKS)
    block, view = crc32(seed.encode()), memoryview(prompt)
    return [block := crc32(view[at:at + block_bytes], block) for at in range(0, n * block_bytes, block_bytes)]


def session_owner(session: bytes, upstreams: Sequence[str], weights: Mapping[str, float]) -> str:
    """The upstream that owns a session; there must be at least one."""
    def height(name: str) -> float:
        keyed = _keyed_hash(name).copy()
        keyed.update(session)
        drawn = int.from_bytes(keyed.digest(), "big")
        return weights.get(name, 1.0) / -log((drawn + 0.5) / _HASHES)

    return max(upstreams, key=height)


@lru_cache(maxsize=256)
def _keyed_hash(name: str) -> blake2b:
    return blake2b(digest_size=_HASH_BYTES, key=blake2b(name.encode(), digest_size=16).digest())


def score_s(load_s: float, new_share: float, max_load: float, wait_s: float | None = None) -> float:
    """The score of an upstream for a prompt with this new share. `wait_s`: the predicted time to first token."""
    return wait_s * (1 + DEARER * new_share) if wait_s is not None else load_s * (1 + (max_load - 1) * new_share)


class SentPrefixes:
    """The blocks sent to one upstream. Pure state; changed only by its owner. Instants never go back."""

    __slots__ = ("_at", "_known_s", "_most")

    def __init__(self, most_blocks: int, ttl_s: float) -> None:
        self._at: dict[int, float] = {}  # blocks by their last use, oldest first
        self._known_s = ttl_s
        self._most = most_blocks

    def n_known(self, blocks: Sequence[int], now: float) -> int:
        """How many of a prompt's leading blocks were sent there recently."""
        at, since = self._at, now - self._known_s
        least, most = 0, len(blocks)
        while least < most:
            middle = (least + most) // 2
            if at.get(blocks[middle], -inf) > since:
                least = middle + 1
            else:
                most = middle
        return least

    def record_sent(self, blocks: Sequence[int], now: float) -> None:
        at = self._at
        for block in reversed(blocks):
            at.pop(block, None)
            at[block] = now
        while len(at) > self._most:
            del at[next(iter(at))]

    def __len__(self) -> int:
        return len(self._at)

    def __repr__(self) -> str:
        return f"<SentPrefixes: {len(self._at)} blocks>"
