"""Reads the answers that only ever come whole and have one dialect: embeddings and token counts."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import Api, Sight
from stayfast.wire import usage
from stayfast.wire.deltas import WholeSource
from stayfast.wire.dialect import object_in
from stayfast.wire.errors import in_band, malformed


class Embeddings(Struct, gc=False):
    data: list[Raw] | None = None
    usage: Any = None
    error: Any = None


class Count(Struct, gc=False):
    input_tokens: int | None = None
    error: Any = None


_DECODERS: Final[dict[Api, "msgspec.json.Decoder[Embeddings | Count]"]] = {
    Api.EMBEDDINGS: msgspec.json.Decoder(Embeddings), Api.COUNT_TOKENS: msgspec.json.Decoder(Count)}


class PlainSource(WholeSource):
    """One embeddings or count_tokens answer. One task owns it."""

    __slots__ = ("_api",)

    def __init__(self, upstream: str, api: Api, sight: Sight) -> None:
        super().__init__(upstream, sight)
        self._api = api

    def see_whole(self, body: bytes) -> None:
        try:
            said = _DECODERS[self._api].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.fail(malformed(self._upstream, "an answer that is not one"))
        if said.error:
            return self.fail(in_band(self._upstream, object_in(body)))
        if isinstance(said, Embeddings):
            self.sight.usage = usage.from_openai(said.usage)
        if (said.data if isinstance(said, Embeddings) else said.input_tokens) is None:
            return self.fail(malformed(self._upstream, "an answer without its content"))
        return self._complete(self.sight.usage)
