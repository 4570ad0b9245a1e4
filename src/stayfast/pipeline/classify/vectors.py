"""The vectors of questions, computed once for all that reads them: semantic cache, classifiers, guards, choice of tiers.

The encoder's vectors are shared through its `Embedder`, which caches them by text: readers must embed the same text, which
is the question of `wire.classify.texts`. Those of the static embedder are cached here.
"""

from typing import TYPE_CHECKING, Final, Protocol

from stayfast.core.types import Request
from stayfast.policy.cache.s3fifo import S3Fifo
from stayfast.stores.embedder import Embedders, NoEmbedder
from stayfast.wire.classify.texts import read_request_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stayfast.stores.embedder import Floats

CACHE_BYTES: Final = 4 * 1024 * 1024


class SyncEmbedder(Protocol):
    """An embedder that answers on the calling thread, such as `stores.static_embedder.StaticEmbedder`."""

    @property
    def id(self) -> str: ...

    def embed(self, texts: "Sequence[str]") -> "Floats":
        """float32 [len(texts), n_dims], each row of length 1."""


class SharedVectors:
    """Of one process; belongs to one loop. static: None: no route needs it, or its packages are missing."""

    __slots__ = ("_cache", "embedding", "n_computed", "static")

    def __init__(self, static: SyncEmbedder | None = None, embedding: Embedders | None = None) -> None:
        self.static = static
        self.embedding = embedding  # None: there is no encoder
        self.n_computed = 0  # vectors of the static embedder
        self._cache: S3Fifo[Floats] = S3Fifo(CACHE_BYTES)

    def static_vector(self, text: str) -> "Floats":
        """float32 [n_dims], of length 1. Takes 0.03 ms the first time. Raises NoEmbedder."""
        if self.static is None:
            raise NoEmbedder("the static embedder is not loaded")
        key = text.encode("utf-8", "surrogatepass")
        row = self._cache.get(key)
        if row is None:
            row = self.static.embed([text])[0]
            self.n_computed += 1
            self._cache.put(key, row, row.nbytes)
        return row

    def question_vector(self, request: Request) -> "Floats | None":
        """The static vector of the request's question; None if it has none. Raises NoEmbedder."""
        question = read_request_texts(request).question
        return self.static_vector(question) if question else None

    async def encoded_vector(self, text: str) -> "Floats":
        """The encoder's vector, of length 1. Raises NoEmbedder."""
        encoder = self.embedding.foreground if self.embedding is not None else None
        if encoder is None:
            raise NoEmbedder("the encoder is not loaded")
        row: Floats = (await encoder.embed([text]))[0]
        return row

    def encoder_id(self) -> str | None:
        """None while it is not loaded."""
        encoder = self.embedding.foreground if self.embedding is not None else None
        return encoder.id if encoder is not None else None
