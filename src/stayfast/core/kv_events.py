"""What an engine publishes about the blocks of its prefix cache, in the same form for vLLM and SGLang."""

from msgspec import Struct

BlockHash = int | bytes  # the engine's own; its kind depends on version and settings


class BlocksStored(Struct, frozen=True, gc=False):
    """Blocks that follow each other in one prompt, of `block_size` tokens each."""

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None  # the block before the first; None: the prompt begins here
    token_ids: tuple[int, ...]
    block_size: int
    lora: str = ""  # the adapter; empty: none
    medium: str = ""  # GPU, CPU, ...; empty: not named
    group: int = 0  # of layers with one kind of attention
    is_by_tokens: bool = True  # False: images, a cache salt or a window belong to the blocks' identity, too


class BlocksRemoved(Struct, frozen=True, gc=False):
    """Blocks that are no longer in one medium."""

    hashes: tuple[BlockHash, ...]
    medium: str = ""
    group: int = 0


class AllCleared(Struct, frozen=True, gc=False):
    """The cache is empty."""


KvEvent = BlocksStored | BlocksRemoved | AllCleared


class KvBatch(Struct, frozen=True):
    """One message. `number`: consecutive from 0 since the engine's start. `rank`: of the data-parallel engine. `ts`: the
    engine's wall clock, in seconds; 0: not stated.
    """

    number: int
    ts: float
    events: tuple[KvEvent, ...]
    rank: int = 0
    n_unknown: int = 0  # events of kinds that this version does not know
    n_malformed: int = 0
