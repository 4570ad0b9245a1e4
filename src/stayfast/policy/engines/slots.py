"""Which slot of the embedded engine a prompt goes to, so that a conversation finds its own prefix there.

Problem: llama.cpp caches the last prompt of each slot, and slots share nothing. Left to itself it takes the slot that is
most similar, so that a new conversation with the usual instructions overwrites the history of another one, though slots are
empty. Rule: of the idle slots, that with the least

    cost = new + RETURNS * 2^(-age_s / HALF_LIFE_S) * lost        in blocks of the prompt, the longest unused first if equal

new: blocks to compute there; lost: blocks of the slot's own prompt that would be overwritten, weighted by how likely that
conversation still returns. An empty slot loses nothing. If all slots are busy: that with the fewest requests, then the least
cost. Requests of one conversation at the same time take at most `max_per_session` slots, and wait for one of them then.

With more conversations than slots, the least recently used is overwritten; llama.cpp then moves the prompt to its cache in
RAM (`prompt_cache_mib`), and back when its conversation returns, also with a slot that was named.

Source: cost-aware eviction (GreedyDual, Young 1994); llama.cpp's cache in RAM by counter: 12 conversations on 4 named slots
read 75 % of their prompts with it, 35 % without.
When wrong: requests that reach the engine past this map change its slots unseen, which costs prefills, never answers; a
restart empties the slots, so the map must be made anew; blocks are of the request's text, not of tokens; a question shorter
than a block is not counted as lost.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

BLOCK_BYTES: Final = 128
RETURNS: Final = 20.0  # the weight of an active conversation's blocks: it returns some times, and a filled slot stays of use
HALF_LIFE_S: Final = 300.0


class _Slot:
    __slots__ = ("blocks", "n_running", "used_at")

    def __init__(self) -> None:
        self.blocks: Sequence[int] = ()
        self.used_at = -inf
        self.n_running = 0


class SlotMap:
    """What each slot holds. For one event loop; instants never go back."""

    __slots__ = ("_max_per_session", "_slots")

    def __init__(self, n_slots: int) -> None:
        self._slots = [_Slot() for _ in range(n_slots)]
        self._max_per_session = max(1, n_slots // 2)

    def begin(self, blocks: Sequence[int], now: float) -> int:
        """The slot for a prompt; pass it to `end` once. blocks: as of `policy.routing.affinity.hash_blocks`."""
        shared = [_count_shared(slot.blocks, blocks) for slot in self._slots]
        number = self._choose(blocks, shared, now)
        slot = self._slots[number]
        slot.blocks, slot.used_at = blocks, now
        slot.n_running += 1
        return number

    def end(self, number: int, now: float) -> None:
        """The answer has ended, in any way."""
        slot = self._slots[number]
        slot.n_running = max(0, slot.n_running - 1)
        slot.used_at = now

    def by_use(self) -> list[int]:
        """The slots that hold something, the last used first."""
        filled = [n for n, slot in enumerate(self._slots) if slot.blocks or slot.used_at > -inf]
        return sorted(filled, key=lambda n: -self._slots[n].used_at)

    def blocks_of(self, number: int) -> Sequence[int]:
        return self._slots[number].blocks

    def fill(self, number: int, blocks: Sequence[int]) -> None:
        """A slot was restored with this prompt."""
        self._slots[number].blocks = blocks

    def _choose(self, blocks: Sequence[int], shared: Sequence[int], now: float) -> int:
        slots = self._slots
        own = [n for n, slot in enumerate(slots) if slot.blocks and _is_continued(slot.blocks, shared[n])]
        if len(own) >= self._max_per_session and all(slots[n].n_running for n in own):
            return min(own, key=lambda n: (slots[n].n_running, slots[n].used_at))

        def rank(n: int) -> tuple[int, float, float]:
            slot = slots[n]
            lost = len(slot.blocks) - shared[n]
            weight = RETURNS * 2.0 ** (-(now - slot.used_at) / HALF_LIFE_S) if lost else 0.0
            return slot.n_running, len(blocks) - shared[n] + weight * lost, slot.used_at

        return min(range(len(slots)), key=rank)

    def __repr__(self) -> str:
        return f"<SlotMap: {sum(bool(slot.blocks) for slot in self._slots)} of {len(self._slots)} slots filled>"


def _count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Equal leading blocks: each block identifies all bytes up to its end, so they are found by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def _is_continued(blocks: Sequence[int], n_shared: int) -> bool:
    return n_shared >= len(blocks) - 1 and n_shared > 0
