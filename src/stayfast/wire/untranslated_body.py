"""Decodes whole answers that pass in their own dialect only: embeddings and token counts."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import COUNT_APIS, AnswerSummary, Api
from stayfast.wire import usage
from stayfast.wire.dialect import BodyDecoder, parse_object


class WireEmbedding(Struct, gc=False):
    """One vector. `__post_init__` runs Python code for each, which lets the event loop's thread run during a long decode."""

    embedding: Raw = Raw(b"")

    def __post_init__(self) -> None:
        """Nothing to check."""


class Embeddings(Struct, gc=False):
    data: list[WireEmbedding] | None = None
    usage: Any = None
    error: Any = None


class CountAnswer(Struct, gc=False):
    input_tokens: int | None = None
    count: int | None = None  # vLLM's name of it
    error: Any = None


_DECODERS: Final[dict[Api, "msgspec.json.Decoder[Embeddings | CountAnswer]"]] = {
    Api.EMBEDDINGS: msgspec.json.Decoder(Embeddings), **dict.fromkeys(COUNT_APIS, msgspec.json.Decoder(CountAnswer))}


class UntranslatedDecoder(BodyDecoder):
    """Decodes one embeddings or count answer."""

    __slots__ = ("_api",)

    def __init__(self, upstream: str, api: Api, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._api = api

    def read_body(self, body: bytes) -> None:
        try:
            parsed = _DECODERS[self._api].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.fail_malformed(f"a body that is no {self._api.value} answer")
        if parsed.error:
            return self.fail_in_band(parse_object(body))
        if isinstance(parsed, Embeddings):
            self.summary.usage = usage.parse_openai_usage(parsed.usage)
        if (parsed.data if isinstance(parsed, Embeddings) else parsed.input_tokens if parsed.count is None else parsed.count
                ) is None:
            return self.fail_malformed("an answer without its content")
        return self._complete(self.summary.usage)
