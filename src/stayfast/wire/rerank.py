"""Rerank requests and answers: a query, documents, and how relevant each document is.

Cohere, Jina, vLLM and llama.cpp share the request (`query`, `documents`, `top_n`) and the answer (`results` with `index` and
`relevance_score`). SGLang and TEI send a bare list with `score`, others `data` instead of `results`; clients get the common
form. Usage is `usage` (Jina, vLLM, llama.cpp), or `meta.tokens` (Cohere); Cohere's search units are no tokens.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.types import AnswerSummary, Request, Usage
from stayfast.wire.dialect import BodyDecoder, Json, NonEmptyStr, PositiveInt, parse_object
from stayfast.wire.usage import parse_openai_usage

MAX_DOCUMENTS: Final = 10_000  # of one request


class RerankDocument(Struct, gc=False):
    text: str


class RerankRequest(Struct, gc=False):
    """`POST /v1/rerank`. documents: texts, or objects with a `text`."""

    model: NonEmptyStr
    query: NonEmptyStr
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: PositiveInt | None = None
    return_documents: bool | None = None


class RankedDocument(Struct, omit_defaults=True, gc=False):
    """One result. index: of the request's `documents`, from 0."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class _WireResult(Struct, gc=False):
    index: int | None = None
    relevance_score: float | None = None
    score: float | None = None
    document: Raw = Raw(b"null")
    text: str | None = None


class _WireAnswer(Struct, gc=False):
    id: Any = None
    results: list[_WireResult] | None = None
    data: list[_WireResult] | None = None
    usage: Any = None
    meta: Any = None
    error: Any = None


RERANK_DECODER: Final = msgspec.json.Decoder(RerankRequest)
_ANSWER: Final = msgspec.json.Decoder(_WireAnswer | list[_WireResult])


def read_documents(request: RerankRequest) -> list[str]:
    return [document if isinstance(document, str) else document.text for document in request.documents]


def encode_rerank_answer(request: Request, ranked: list[RankedDocument], n_tokens: int, answer_id: str = "") -> bytes:
    """An answer with `usage`, best document first."""
    identity: Json = {"id": answer_id} if answer_id else {}
    return msgspec.json.encode({**identity, "object": "list", "model": request.model, "results": ranked,
                                "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}})


class RerankDecoder(BodyDecoder):
    """Decodes one answer. `rewritten`: the body in the common form, if the upstream's has another."""

    __slots__ = ("_request", "rewritten")

    def __init__(self, upstream: str, request: Request, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._request = request
        self.rewritten: bytes | None = None

    def read_body(self, body: bytes) -> None:
        try:
            parsed = _ANSWER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.fail_malformed("a body that is no rerank answer")
        if isinstance(parsed, list):
            parsed = _WireAnswer(data=parsed)
        if parsed.error:
            return self.fail_in_band(parse_object(body))
        results = parsed.results if parsed.results is not None else parsed.data
        if not results or any(result.index is None or _score_of(result) is None for result in results):
            return self.fail_malformed("an answer without its content")
        counts = _read_usage(parsed)
        if parsed.results is None or any(result.relevance_score is None for result in results):
            self.rewritten = self._rewrite(results, parsed)
        return self._complete(counts)

    def _rewrite(self, results: list[_WireResult], parsed: _WireAnswer) -> bytes:
        common = [_rewrite_result(result) for result in results]
        others = {name: value for name in ("id", "usage", "meta") if (value := getattr(parsed, name)) is not None}
        return msgspec.json.encode({"object": "list", "model": self._request.model, "results": common, **others})


def _score_of(result: _WireResult) -> float | None:
    return result.score if result.relevance_score is None else result.relevance_score


def _rewrite_result(result: _WireResult) -> Json:
    fields: Json = {"index": result.index, "relevance_score": _score_of(result)}
    document = bytes(result.document)
    if result.text is not None:
        fields["document"] = {"text": result.text}
    elif document != b"null":
        fields["document"] = {"text": Raw(document)} if document.startswith(b'"') else Raw(document)
    return fields


def _read_usage(parsed: _WireAnswer) -> Usage | None:
    """Jina and older vLLM send the total only."""
    counts = parse_openai_usage(parsed.usage)
    if counts is not None:
        return counts if counts.input_total else parse_openai_usage({"prompt_tokens": parsed.usage.get("total_tokens")})
    tokens = parsed.meta.get("tokens") if isinstance(parsed.meta, dict) else None
    return parse_openai_usage(tokens) if isinstance(tokens, dict) else None
