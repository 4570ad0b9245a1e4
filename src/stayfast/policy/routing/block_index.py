"""The blocks in one engine's prefix cache, as its events report them.

Problem: what was sent to an engine is not what it still holds: it evicts, and other gateways send prompts too. Rule: a block
is identified by its tokens and all before it, by an own hash, since the hashes of engines differ by version and setting:

    id = hash(id of the block before, tokens)        of a prompt's first block: the id before is that of the adapter

The engine's hashes only link its events: a stored block to the one before it, a removed block to what it was. Requests that
run together compute a block twice, and vLLM then stores and removes it twice: copies are counted, by rank and medium.

    n_held(chain)   blocks at the beginning of a prompt that are held, by bisection
    0 or unknown    0 if the events are complete since an empty cache, or the prompt's first block was seen leaving

After a gap nothing is known. The events go on, but what was there before is not seen: a prompt of which nothing is seen is
then unknown, not absent. If its first block is seen, the rest is certain: engines free a prompt from its end, so a block
that was there before the gap would have had its first block there, too.
Memory: at most `max_blocks`, about 250 bytes each; then the index starts again, as after a gap.
Source: the block hashes of vLLM's prefix cache (v1/core/kv_cache_utils.py); the precise prefix scorer of llm-d.
When wrong: 64 bits, not cryptographic: a crafted prompt could pass for another, and would get a slower engine, no more.
Bisection assumes that a prompt's end leaves first. Of several ranks, the one that takes the request may be another. Blocks
with images or a cache salt are not indexed: their prompts are unknown or, in a complete index, absent.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from stayfast.core.kv_events import AllCleared, BlockHash, BlocksRemoved, BlocksStored, KvBatch, KvEvent

MAX_BLOCKS: Final = 400_000  # 6.4 million tokens at 16 a block, 100 MB
MAX_LEFT: Final = 20_000  # blocks that were seen leaving
MAX_LORAS: Final = 256
_MEDIA: Final = ("GPU", "", "CPU", "STORAGE", "CPU_PINNED", "DISK")  # the likeliest first

_Key = tuple[BlockHash, int, str]  # the engine's hash, group, medium


def chain_root(lora: str = "") -> int:
    """The id before the first block of a prompt, for an adapter; empty: the model itself."""
    return int.from_bytes(lora.encode()[-7:], "big") if lora else 0


def hash_tokens(token_ids: Sequence[int], block_size: int, root: int) -> "array[int]":
    """The ids of the whole blocks of a prompt, or of its continuation. root: the id before. Hashes of numbers are the same
    in all processes.
    """
    found = array("q")
    for at in range(0, len(token_ids) - block_size + 1, block_size):
        root = hash((root, tuple(token_ids[at:at + block_size])))
        found.append(root)
    return found


class BlockIndex:
    """Of one upstream. Pure state; changed only by its owner. It begins unknown: `begin` says what precedes the events."""

    __slots__ = ("_copies", "_held", "_ids", "_left", "_max_blocks", "_n_ids", "block_size", "is_complete", "is_known",
                 "loras", "n_unlinked")

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._ids: dict[int, dict[_Key, int]] = {}  # by rank
        self._n_ids = 0  # of all ranks
        self._copies: dict[tuple[int, _Key], int] = {}  # of blocks with more than one, by rank
        self._held: dict[int, int] = {}  # how often each id is held
        self._left: dict[int, None] = {}  # first blocks, oldest departure first
        self.block_size = 0  # of the newest event; 0: none yet
        self.is_known = False
        self.is_complete = False  # the events began with an empty cache
        self.loras: set[str] = set()  # adapters with blocks so far
        self.n_unlinked = 0  # stored blocks whose predecessor is unknown, and those not identified by tokens alone

    def begin(self, *, is_complete: bool) -> None:
        """Forget all; events follow. is_complete: from an empty cache on."""
        self._ids.clear()
        self._n_ids = 0
        self._copies.clear()
        self._held.clear()
        self._left.clear()
        self.is_known, self.is_complete = True, is_complete

    def lose(self) -> None:
        """Nothing is known until `begin` or `resume`: the connection is gone."""
        self.is_known = False

    def resume(self) -> None:
        """The events went on without a gap."""
        self.is_known = True

    def apply(self, batch: KvBatch) -> None:
        for event in batch.events:
            self.apply_event(event, batch.rank)

    def apply_event(self, event: KvEvent, rank: int) -> None:
        if isinstance(event, BlocksStored):
            self._store(event, rank)
        elif isinstance(event, BlocksRemoved):
            self._remove(event, rank)
        else:
            assert isinstance(event, AllCleared)
            self._clear(rank)

    def n_held(self, chain: Sequence[int]) -> int | None:
        """Blocks at the beginning of a prompt that are held; None: unknown. chain: of `hash_tokens`."""
        if not self.is_known or not chain:
            return None
        held = self._held
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in held:
                low = middle + 1
            else:
                high = middle
        return low if low or self.is_complete or chain[0] in self._left else None

    def _store(self, event: BlocksStored, rank: int) -> None:
        if not event.is_by_tokens:
            self.n_unlinked += len(event.hashes)
            return
        self.block_size = size = event.block_size
        if event.lora and len(self.loras) < MAX_LORAS:
            self.loras.add(event.lora)
        before = chain_root(event.lora) if event.parent is None else self._find_parent(event.parent, rank, event.group)
        if before is None:
            self.n_unlinked += len(event.hashes)
            return
        if self._n_ids + len(event.hashes) > self._max_blocks:
            self.begin(is_complete=False)
            if event.parent is not None or len(event.hashes) > self._max_blocks:
                self.n_unlinked += len(event.hashes)
                return
        ids, own = hash_tokens(event.token_ids, size, before), self._ids.setdefault(rank, {})
        for block_hash, block in zip(event.hashes, ids, strict=True):
            key = block_hash, event.group, event.medium
            if key in own:
                self._copies[rank, key] = self._copies.get((rank, key), 1) + 1
            else:
                own[key] = block
                self._n_ids += 1
                self._held[block] = self._held.get(block, 0) + 1
        if event.parent is None and ids:
            self._left.pop(ids[0], None)

    def _find_parent(self, parent: BlockHash, rank: int, group: int) -> int | None:
        """The id of a block, in whatever medium it is."""
        own = self._ids.get(rank, {})
        for medium in _MEDIA:
            found = own.get((parent, group, medium))
            if found is not None:
                return found
        return None

    def _remove(self, event: BlocksRemoved, rank: int) -> None:
        own = self._ids.get(rank, {})
        for block_hash in event.hashes:
            key = block_hash, event.group, event.medium
            n_copies = self._copies.pop((rank, key), 1)
            if n_copies > 1:
                self._copies[rank, key] = n_copies - 1
                continue
            block = own.pop(key, None)
            if block is None:
                continue
            self._n_ids -= 1
            n_left = self._held[block] - 1
            if n_left:
                self._held[block] = n_left
            else:
                del self._held[block]
                self._note_left(block)
        if not own:
            self._ids.pop(rank, None)

    def _note_left(self, block: int) -> None:
        left = self._left
        left.pop(block, None)
        left[block] = None
        if len(left) > MAX_LEFT:
            del left[next(iter(left))]

    def _clear(self, rank: int) -> None:
        """One rank's cache is empty; if it is the only one, all is known from here on."""
        own = self._ids.get(rank, {})
        if len(own) == self._n_ids:
            self.begin(is_complete=True)
            return
        for block_hash, group, medium in list(own):
            self._copies.pop((rank, (block_hash, group, medium)), None)
            self._remove(BlocksRemoved((block_hash,), medium, group), rank)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        state = "unknown" if not self.is_known else "complete" if self.is_complete else "partial"
        return f"<BlockIndex {state}: {len(self._held)} blocks>"
