"""An upstream that is the encoder in this process: `/v1/embeddings` and `/v1/rerank` from the batches of the embedder.

Rerank scores are cosines of a bi-encoder's vectors, from -1 to 1. A cross-encoder, which reads query and document together,
orders better; none is included.
"""

import asyncio
from typing import TYPE_CHECKING

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, Rejected, Shed, UpstreamFailed
from stayfast.core.types import Api, Usage
from stayfast.stores.embedder import (
    EmbedderBusy,
    Embedders,
    EmbedderStuck,
    EmbeddingExpired,
    NoEmbedder,
    ServedEmbedder,
    TextNotEncodable,
)
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.dialect import CountedAnswer
from stayfast.wire.chat.request import EMBEDDINGS_DECODER
from stayfast.wire.embeddings_answer import encode_embeddings_answer, read_texts
from stayfast.wire.request_body import decode_typed
from stayfast.wire.rerank import RERANK_DECODER, RankedDocument, RerankDocument, encode_rerank_answer, read_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stayfast.stores.embedder import Floats

_PARAMS = {Api.EMBEDDINGS: "input", Api.RERANK: "documents"}
_STUCK_RETRY_S = 30.0
_N_CHECKED = 16  # texts that are tokenized between two turns of the event loop


class EncoderUpstream:
    """Of one loop. Task-safe."""

    kind = "encoder"
    always_streams = False

    def __init__(self, name: str, embedders: Embedders | None, clock: Clock) -> None:
        """embedders: loaded later; None: its packages are missing."""
        self.name = name
        self._embedders = embedders
        self._clock = clock

    def can_serve(self, api: Api) -> bool:
        return api in _PARAMS

    async def open(self, call: Call) -> AnswerStream:
        """The whole answer. Raises Rejected, Shed if too many tokens wait, UpstreamFailed."""
        encoder = await self._wait(call)
        if call.request.api is Api.RERANK:
            return await self._rerank(encoder, call)
        return await self._embed(encoder, call)

    def close(self) -> None:
        """The embedder belongs to the system."""

    async def _wait(self, call: Call) -> ServedEmbedder:
        """The encoder, once it is loaded, for at most the time to connect."""
        embedders = self._embedders
        if embedders is not None and embedders.served is None:
            try:
                async with asyncio.timeout_at(call.deadline.end_of_wait(call.connect_s, self._clock.now())):
                    await embedders.loaded.wait()
            except TimeoutError:
                raise self._fail(Fault.CONNECT, "the encoder is still loading") from None
        if embedders is None or embedders.served is None:
            raise self._fail(Fault.CONNECT, "the encoder could not be loaded; the log of the gateway has the reason")
        return embedders.served

    async def _embed(self, encoder: ServedEmbedder, call: Call) -> AnswerStream:
        request = decode_typed(EMBEDDINGS_DECODER, call.request.body)
        if request.dimensions not in (None, encoder.n_dims):
            raise Rejected(f"dimensions must be {encoder.n_dims} or absent: vectors of this model cannot be shortened.",
                           code="unsupported_value", param="dimensions")
        if request.encoding_format not in (None, "float", "base64"):
            raise Rejected("encoding_format must be float or base64.", code="unsupported_value", param="encoding_format")
        texts = read_texts(request)
        single = isinstance(request.input, str)
        n_tokens = await _count(encoder, texts, ["input" if single else f"input[{n}]" for n in range(len(texts))])
        vectors = await self._encode(encoder, texts, call)
        return _answer(encode_embeddings_answer(call.request, [row.tobytes() for row in vectors], n_tokens,
                                                is_base64=request.encoding_format == "base64"), n_tokens)

    async def _rerank(self, encoder: ServedEmbedder, call: Call) -> AnswerStream:
        request = decode_typed(RERANK_DECODER, call.request.body)
        documents = read_documents(request)
        texts = [request.query, *documents]
        n_tokens = await _count(encoder, texts, ["query", *(f"documents[{n}]" for n in range(len(documents)))])
        vectors = await self._encode(encoder, texts, call)
        scores = [float(score) for score in vectors[1:] @ vectors[0]]
        best = sorted(range(len(documents)), key=lambda n: -scores[n])[:request.top_n]
        ranked = [RankedDocument(n, scores[n], RerankDocument(documents[n]) if request.return_documents else None)
                  for n in best]
        return _answer(encode_rerank_answer(call.request, ranked, n_tokens, f"rerank-{call.request_id}"), n_tokens)

    async def _encode(self, encoder: ServedEmbedder, texts: "Sequence[str]", call: Call) -> "Floats":
        try:
            return await encoder.embed(texts, call.deadline.at)
        except EmbedderBusy as busy:
            if busy.retry_after_s is None:
                raise Rejected(f"{busy}.", status=413, code="too_many_tokens", param=_PARAMS[call.request.api]) from None
            raise Shed("Too many tokens wait for the encoder.", reason="encoder_busy", status=429, code="encoder_busy",
                       retry_after_s=busy.retry_after_s) from None
        except EmbedderStuck as stuck:
            raise UpstreamFailed(self.name, Fault.CRASHED, f"upstream {self.name}: {stuck}", upstream_status=503,
                                 retry_after_s=_STUCK_RETRY_S) from None
        except EmbeddingExpired:
            raise self._fail(Fault.TIMEOUT, "the deadline passed before the texts were encoded") from None
        except TextNotEncodable:
            raise Rejected("The encoder failed for a text of this request, also when it ran alone.", status=422,
                           code="text_not_encodable", param=_PARAMS[call.request.api]) from None
        except NoEmbedder as error:
            raise self._fail(Fault.CRASHED, str(error)) from None

    def _fail(self, fault: Fault, why: str) -> UpstreamFailed:
        return UpstreamFailed(self.name, fault, f"upstream {self.name}: {why}")

    def __repr__(self) -> str:
        return f"<EncoderUpstream {self.name}>"


async def _count(encoder: ServedEmbedder, texts: "Sequence[str]", paths: "Sequence[str]") -> int:
    """Tokens of all texts. Raises Rejected for one that is longer than the model's limit."""
    n_tokens = 0
    for number, (text, path) in enumerate(zip(texts, paths, strict=True), 1):
        if not encoder.is_whole(text):
            raise Rejected(f"{path} is longer than the {encoder.max_tokens} tokens that this encoder reads "
                           "(embedder.max_tokens): shorten or divide it.", code="context_length_exceeded", param=path)
        n_tokens += encoder.count_tokens(text)
        if number % _N_CHECKED == 0:
            await asyncio.sleep(0)
    return n_tokens


def _answer(body: bytes, n_tokens: int) -> AnswerStream:
    answer = CountedAnswer(body)
    answer.summary.usage = Usage(input_total=n_tokens)
    answer.summary.n_content = 1
    return answer
