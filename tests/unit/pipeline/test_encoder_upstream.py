"""pipeline.batching.encoder_upstream: embeddings and rerank by the encoder, and its refusals."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.types import Api, Usage
from stayfast.pipeline.batching.encoder_upstream import EncoderUpstream
from stayfast.stores.batched_embedder import BatchedEmbedder
from stayfast.stores.embedder import EmbedderConfig, Embedders
from stayfast.upstreams.base import Call
from tests.unit.wire.recorded import request

CONFIG = EmbedderConfig(max_tokens=8, max_waiting_tokens=256)


class Letters:
    """A model whose tokens are words, and whose vectors count the letters a and b of the first. A text with `bad` breaks."""

    id = "letters"
    n_dims = 2
    can_pad = True

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        words = text.split()
        return [1000 * word.count("a") + word.count("b") + 10**6 * (word == "bad") for word in words][:8], len(words) <= 8

    def encode(self, batch: list[list[int]]) -> NDArray[np.float32]:
        if any(max(ids) >= 10**6 for ids in batch):
            raise RuntimeError("poison")
        rows = np.array([[ids[0] // 1000, ids[0] % 1000] for ids in batch], dtype=np.float32)
        unit: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-9))
        return unit


def on(check: Callable[[EncoderUpstream, BatchedEmbedder], Awaitable[None]], config: EmbedderConfig = CONFIG) -> None:
    """Run a check with a loaded encoder."""
    async def main() -> None:
        clock, embedders = SystemClock(), Embedders()
        embedder = BatchedEmbedder(Letters(), config, clock)
        embedders.serve(embedder, embedder)
        try:
            async with asyncio.timeout(10):
                await check(EncoderUpstream("enc", embedders, clock), embedder)
        finally:
            embedders.close()

    asyncio.run(main())


async def answer(upstream: EncoderUpstream, api: Api, *, within_s: float = 5.0, **fields: Any) -> tuple[Any, Usage | None]:
    call = Call(request(api, **fields), "m", "req_1", Deadline(SystemClock().now() + within_s), 0.05)
    stream = await upstream.open(call)
    chunk = await stream.next()
    assert chunk is not None
    assert await stream.next() is None
    assert stream.summary.is_complete
    return json.loads(chunk.data), stream.summary.usage


def refusal(api: Api, config: EmbedderConfig = CONFIG, **fields: Any) -> StayfastError:
    caught: list[StayfastError] = []

    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        with pytest.raises(StayfastError) as error:
            await answer(upstream, api, **fields)
        caught.append(error.value)

    on(check, config)
    return caught[0]


def test_embeddings_of_texts_are_in_order_with_usage() -> None:
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        got, usage = await answer(upstream, Api.EMBEDDINGS, input=["aaa x", "b"])
        assert [one["embedding"] for one in got["data"]] == [[1.0, 0.0], [0.0, 1.0]]
        assert [one["index"] for one in got["data"]] == [0, 1]
        assert (got["object"], got["model"], got["usage"]) == ("list", "route", {"prompt_tokens": 3, "total_tokens": 3})
        assert usage == Usage(3)

    on(check)


def test_embeddings_as_base64_are_little_endian_floats() -> None:
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        got, _ = await answer(upstream, Api.EMBEDDINGS, input="b", encoding_format="base64", dimensions=2)
        assert np.frombuffer(base64.b64decode(got["data"][0]["embedding"]), "<f4").tolist() == [0.0, 1.0]

    on(check)


def test_rerank_orders_documents_by_cosine() -> None:
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        got, usage = await answer(upstream, Api.RERANK, query="a", documents=["b", {"text": "ab"}, "aa"], top_n=2,
                                  return_documents=True)
        assert [one["index"] for one in got["results"]] == [2, 1]
        assert got["results"][0] == {"index": 2, "relevance_score": 1.0, "document": {"text": "aa"}}
        assert got["results"][1]["relevance_score"] == pytest.approx(0.7071, abs=1e-4)
        assert usage == Usage(4)

    on(check)


@pytest.mark.parametrize(("fields", "param", "word"), [
    ({"input": [1, 2]}, "input", "text instead of token numbers"), ({"input": ["a", ""]}, "input[1]", "empty"),
    ({"input": "a", "dimensions": 1}, "dimensions", "must be 2"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
    ({"input": ["a", "a " * 9]}, "input[1]", "8 tokens"),
])
def test_embeddings_that_the_encoder_cannot_compute_are_rejected(fields: dict[str, Any], param: str, word: str) -> None:
    error = refusal(Api.EMBEDDINGS, **fields)
    assert isinstance(error, Rejected)
    assert (error.status, error.param) == (400, param)
    assert word in error.message


def test_text_longer_than_the_limit_is_refused_at_the_door() -> None:
    """It never waits: an encoder that waits for room for it would wait for ever."""
    error = refusal(Api.RERANK, documents=["a", "b " * 9])
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "documents[1]")


def test_request_larger_than_the_bound_is_413_with_the_limit() -> None:
    error = refusal(Api.EMBEDDINGS, input=[f"a {n}" for n in range(200)])
    assert (error.status, error.code) == (413, "too_many_tokens")
    assert "256" in error.message


def test_text_longer_than_a_batch_runs_alone() -> None:
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        got, _ = await answer(upstream, Api.EMBEDDINGS, input="a b c d e")
        assert got["data"][0]["embedding"] == [1.0, 0.0]

    on(check, replace(CONFIG, max_batch_tokens=4))


def test_full_queue_is_429_with_retry_after() -> None:
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        many = [asyncio.ensure_future(answer(upstream, Api.EMBEDDINGS, input=[f"a {n} {part}" for n in range(80)]))
                for part in range(3)]
        results = await asyncio.gather(*many, return_exceptions=True)
        refused = [one for one in results if isinstance(one, Shed)]
        assert len(refused) == 2
        assert all((one.status, one.code) == (429, "encoder_busy") and (one.retry_after_s or 0) > 0 for one in refused)
        assert embedder.n_waiting_tokens == 0

    on(check)


def test_poison_text_fails_alone_and_is_no_failure_of_the_upstream() -> None:
    """Its batch companions get their vectors."""
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        results = await asyncio.gather(*(answer(upstream, Api.EMBEDDINGS, input=text) for text in (
            "a x", "b y", "bad z", "a z")), return_exceptions=True)
        assert [isinstance(one, Rejected) for one in results] == [False, False, True, False]
        assert isinstance(results[2], Rejected)
        assert (results[2].status, results[2].code) == (422, "text_not_encodable")

    on(check)


def test_encoder_that_is_stuck_is_503_with_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of the upstream: fallbacks answer, and its breaker opens."""
    async def check(upstream: EncoderUpstream, embedder: BatchedEmbedder) -> None:
        monkeypatch.setattr(BatchedEmbedder, "is_stuck", True)
        with pytest.raises(UpstreamFailed) as caught:
            await answer(upstream, Api.EMBEDDINGS, input="a")
        assert (caught.value.upstream_status, caught.value.can_retry) == (503, True)
        assert caught.value.retry_after_s == 30.0

    on(check)


def test_encoder_that_is_not_loaded_is_a_failed_connection() -> None:
    async def main() -> None:
        for embedders in (None, Embedders()):
            with pytest.raises(UpstreamFailed, match="upstream enc: the encoder"):
                await answer(EncoderUpstream("enc", embedders, SystemClock()), Api.EMBEDDINGS, input="a")

    asyncio.run(main())


def test_encoder_serves_embeddings_and_rerank_only() -> None:
    upstream = EncoderUpstream("enc", None, SystemClock())
    assert {api for api in Api if upstream.can_serve(api)} == {Api.EMBEDDINGS, Api.RERANK}
