"""Affinity: which part of a prompt each upstream has in its cache, and which upstream owns a session.

Problem: an engine with a prompt's prefix in its cache computes only the rest, but few engines report what they hold. Rule: a
prompt is cut into blocks of 128 tokens of text, each identified by the CRC of all bytes up to its end. The blocks sent to
each upstream are a belief of what it holds: at most as many as fit its cache (its own figure, where its signals show one),
least recently sent first; within a prompt the end goes first, so that the known length is found by bisection. What the
belief is worth is decided by policy/routing/replica_cost.py.

Answers correct it. An engine evicts the least recently used blocks first. So if it computed blocks again that were last sent
at t, all blocks that were last sent before t are gone, too: they are forgotten, and the capacity falls to what was sent
since. Each confirmed block lets it grow by 1 %.

Truth is the share of input tokens that usage reports as cached, belief the share that was believed to be, over the same
answers. An upstream whose usage has never shown a cached token may not report any: its truth is unknown, not 0. vLLM omits
the count where it is 0, so its absence counts as 0 once there was one.

A session's owner is found by rendezvous hashing, the highest of w / -ln(u), with u in (0, 1) a hash of session and upstream,
and w the upstream's weight: nothing is stored, and all workers and replicas agree.

Blocks, for a prompt of 8,000 tokens (500 to 31 blocks), on one core: 16 tokens: 234 us to hash; 32: 113; 64: 56; 128: 32;
256: 15. A block of 128 hides 64 tokens on average, 3 ms of prefill at 20,000 a second; one of 64 hides 32, and takes 24 us
more of each request. A block takes about 110 bytes of memory: 0.9 MB for a cache of 1,000,000 tokens.
Source: the approximate prefix scorer of llm-d (64-token blocks, LRU by replica); rendezvous hashing (Thaler, Ravishankar
1998). When wrong: an upstream may evict earlier than assumed and not report it; other clients fill its cache unseen; markers
that move inside the prompt (`cache_control`) end the match there; a 32-bit CRC confuses one block in some hundred thousand.
Each worker knows only what it sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from math import inf, log
from typing import Annotated, Literal
from zlib import crc32

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.setting import SettingDoc, check_bounds

BLOCK_BYTES = 512
MAX_BYTES = 1 << 19  # of one prompt, 128,000 tokens: the rest is ignored
MAX_BLOCKS = MAX_BYTES // BLOCK_BYTES
MIN_BLOCKS = 64  # the least capacity that evictions may show: 8,000 tokens
GROWS = 1.01
FADES = 0.998  # of the sums of CacheTruth, an answer: half in about 350 answers
_HASH_BYTES = 6  # fits a float without rounding
_HASHES = 1 << 8 * _HASH_BYTES


@dataclass(frozen=True, slots=True)
class AffinityConfig:
    """Affinity of requests to upstreams. `ttl_s`, `cache_tokens`: how long, and how much, an upstream caches."""

    mode: Annotated[Literal["off", "prefix", "sessions", "both"], SettingDoc(
        "prefix: to the upstream with the prompt's beginning in its cache. sessions: one conversation, one upstream. both, "
        "or off.")] = "off"
    ttl_s: Annotated[float, SettingDoc(
        "Assumed lifetime of a prompt in an upstream's cache.", minimum=1, maximum=86_400)] = 600.0
    cache_tokens: Annotated[int, SettingDoc(
        "Assumed size of an upstream's cache, in tokens, where its metrics do not show it.", minimum=1000,
        maximum=100_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def most_blocks(self) -> int:
        return blocks_of(self.cache_tokens)

    @property
    def sees_prefix(self) -> bool:
        return self.mode in ("prefix", "both")

    @property
    def sees_sessions(self) -> bool:
        return self.mode in ("sessions", "both")


def blocks_of(n_tokens: float) -> int:
    """The blocks of a cache of this size; at least MIN_BLOCKS."""
    return max(MIN_BLOCKS, int(n_tokens) * BYTES_A_TOKEN // BLOCK_BYTES)


def hash_blocks(prompt: bytes, seed: str = "", block_bytes: int = BLOCK_BYTES) -> list[int]:
    """The identities of a prompt's whole blocks, each of all bytes up to its end. `seed`: the model."""
    if len(prompt) < block_bytes:
        return []
    n = min(len(prompt), MAX_BYTES) // block_bytes
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


class SentPrefixes:
    """The blocks sent to one upstream. Pure state; changed only by its owner. Instants never go back."""

    __slots__ = ("_at", "_known_s", "_limit", "_most")

    def __init__(self, most_blocks: int, ttl_s: float) -> None:
        self._at: dict[int, float] = {}  # blocks by their last use, oldest first
        self._known_s = ttl_s
        self._most = most_blocks  # the configured or reported capacity
        self._limit = float(most_blocks)  # what evictions have shown, at most that

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

    def sent_at(self, block: int) -> float:
        """When the block was last sent; -inf: never, or forgotten."""
        return self._at.get(block, -inf)

    def record_sent(self, blocks: Sequence[int], now: float) -> None:
        at, limit = self._at, self._limit
        for block in reversed(blocks):
            at.pop(block, None)
            at[block] = now
        while len(at) > limit:
            del at[next(iter(at))]

    def set_capacity(self, most_blocks: int) -> None:
        """The upstream reports the size of its cache, in blocks."""
        if most_blocks != self._most:
            self._limit = float(min(self._limit * most_blocks / self._most, most_blocks))
            self._most = most_blocks

    def record_evicted(self, sent_at: float) -> None:
        """Blocks that were last sent at that instant were gone later: so are all that were sent before. One answer makes at
        most half of all blocks forgotten.
        """
        at = self._at
        for block, used_at in list(islice(at.items(), len(at) // 2)):
            if used_at > sent_at:
                break
            del at[block]
        self._limit = float(max(MIN_BLOCKS, min(len(at), self._limit)))

    def forget(self, blocks: Sequence[int]) -> None:
        """The upstream may not have these blocks."""
        for block in blocks:
            self._at.pop(block, None)

    def record_confirmed(self) -> None:
        """The upstream had what it was believed to have."""
        self._limit = min(float(self._most), self._limit * GROWS)

    @property
    def capacity(self) -> int:
        """The blocks that are remembered at most."""
        return int(self._limit)

    def __len__(self) -> int:
        return len(self._at)

    def __repr__(self) -> str:
        return f"<SentPrefixes: {len(self._at)} of {self.capacity} blocks>"


class CacheTruth:
    """Pure state; changed only by its owner. Token counts fade, except `n_answers`."""

    __slots__ = ("n_answers", "n_believed", "n_cached", "n_input", "reports")

    def __init__(self) -> None:
        self.reports = False  # its usage has shown cached tokens
        self.n_answers = 0
        self.n_input = self.n_cached = self.n_believed = 0.0

    def add(self, n_input: int, n_cached: int, believed_share: float) -> None:
        """An answer with n_input prompt tokens, of which n_cached were reported as cached."""
        if n_cached and not self.reports:
            self.reports = True
            self.n_answers = 0
            self.n_input = self.n_cached = self.n_believed = 0.0  # what was counted before may have been unreported
        self.n_answers += 1
        self.n_input = self.n_input * FADES + n_input
        self.n_cached = self.n_cached * FADES + min(n_cached, n_input)
        self.n_believed = self.n_believed * FADES + believed_share * n_input

    @property
    def truth(self) -> float | None:
        """The share of input tokens from its cache; None: unknown."""
        return self.n_cached / self.n_input if self.reports and self.n_input else None

    @property
    def belief(self) -> float | None:
        """The share that routing believed to be in its cache; None: no answers."""
        return self.n_believed / self.n_input if self.n_input else None

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {'unknown' if share is None else f'{share:.0%}'}"
                           for name, share in (("truth", self.truth), ("belief", self.belief)))
        return f"<CacheTruth of {self.n_answers} answers: {shares}>"
