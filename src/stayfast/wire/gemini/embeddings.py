"""Embeddings: OpenAI's request as batchEmbedContents, and the answer back.

OpenAI's SDK requests base64 (little-endian 32-bit floats) unless the client chooses; Gemini sends numbers. Gemini reports
usage for some models only; else it is estimated.
"""

from array import array
from base64 import b64encode
from sys import byteorder
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import AnswerSummary, Request, Usage
from stayfast.wire import usage
from stayfast.wire.chat.request import EmbeddingsRequest
from stayfast.wire.dialect import BodyDecoder, Json, drop_none, parse_object, untranslatable_field


class GeminiVector(Struct, gc=False):
    values: Raw = Raw(b"[]")

    def __post_init__(self) -> None:
        """Nothing to check: it lets other threads run while a large answer is decoded."""


class GeminiEmbeddings(Struct, gc=False, rename="camel"):
    embeddings: list[GeminiVector] | None = None
    usage_metadata: Any = None
    error: Any = None


class _Encoding(Struct, gc=False):
    encoding_format: str | None = None


_ANSWER: Final = msgspec.json.Decoder(GeminiEmbeddings)
_ENCODING: Final = msgspec.json.Decoder(_Encoding)
_NUMBERS: Final = msgspec.json.Decoder(list[float])


def encode_embeddings(request: EmbeddingsRequest, model: str) -> Json:
    """Encode as batchEmbedContents. Drops `user`. Raises Rejected for tokens instead of text."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    if any(not isinstance(text, str) for text in texts):
        raise untranslatable_field("input", "gemini", "use text instead of token numbers")
    return {"requests": [drop_none({
        "model": f"models/{model.removeprefix('models/')}", "content": {"parts": [{"text": text}]},
        "outputDimensionality": request.dimensions}) for text in texts]}


class GeminiEmbeddingsDecoder(BodyDecoder):
    """Decodes one answer, and encodes it for the client that sent `request`."""

    __slots__ = ("_is_estimated", "_request", "_vectors")

    def __init__(self, upstream: str, request: Request, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._request = request
        self._vectors: list[Any] = []  # base64 text, or the upstream's JSON
        self._is_estimated = False

    def read_body(self, body: bytes) -> None:
        is_base64 = _ENCODING.decode(self._request.body).encoding_format == "base64"
        try:
            parsed = _ANSWER.decode(body)
            vectors = [vector.values for vector in parsed.embeddings or ()]
            self._vectors = [_to_base64(_NUMBERS.decode(vector)) for vector in vectors] if is_base64 else list(vectors)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
            return self.fail_malformed("a body that is no embeddings answer")
        if parsed.error:
            return self.fail_in_band(parse_object(body))
        if parsed.embeddings is None:
            return self.fail_malformed("an answer without its content")
        counts = usage.parse_gemini_usage(parsed.usage_metadata)
        self._is_estimated = counts is None
        return self._complete(counts)

    def encode_body(self) -> bytes:
        """OpenAI's answer."""
        counts = self.summary.usage or usage.estimate_usage(self._request, "") or Usage()
        fields: Json = {"prompt_tokens": counts.input_total, "total_tokens": counts.input_total}
        if self._is_estimated:
            fields[usage.ESTIMATED_MEMBER] = True
        return msgspec.json.encode({
            "object": "list", "model": self._request.model, "usage": fields,
            "data": [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(self._vectors)]})


def _to_base64(numbers: list[float]) -> str:
    packed = array("f", numbers)
    if byteorder == "big":
        packed.byteswap()
    return b64encode(packed).decode()
