"""Parts of a gateway that answer from memory: the stream of a body that is there, and an embedder without a model."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from stayfast.core.types import Chunk
from stayfast.stores.embedder import NoEmbedder
from stayfast.upstreams.base import Call
from stayfast.wire.transcode import transcoder

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats


class BodyStream:
    """A whole body through the transcoder that a real one comes through."""

    def __init__(self, call: Call, body: bytes, upstream: str, *, source_streams: bool = False) -> None:
        self._coder = transcoder(call.request.api, call.request, source_streams=source_streams, upstream=upstream)
        self._chunks = self._read(body)
        self.sight = self._coder.sight

    def _read(self, body: bytes) -> Iterator[Chunk]:
        for chunk in (self._coder.feed(body), self._coder.finish()):
            if chunk is not None:
                yield chunk

    async def next(self) -> Chunk | None:
        return next(self._chunks, None)

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        pass


class MemoryEmbedder:
    """row: the vector of a text. delay_s: of each batch."""

    def __init__(self, embedder: str, n_dims: int, row: "Callable[[str], Floats]", delay_s: float = 0.0) -> None:
        self.id = embedder
        self.n_dims = n_dims
        self._row = row
        self._delay_s = delay_s

    def is_whole(self, text: str) -> bool:
        return True

    def fits(self, left_s: float) -> bool:
        return left_s > self._delay_s

    async def embed(self, texts: Sequence[str]) -> "Floats":
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        try:
            found: Floats = import_module("numpy").stack([self._row(text) for text in texts])
        except KeyError:
            raise NoEmbedder("a text was not expected") from None
        return found

    def close(self) -> None:
        pass
