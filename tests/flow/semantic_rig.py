"""A gateway whose route has a semantic cache, on virtual time; its embedder knows a few words."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from stayfast.core.events import SemanticLookup
from stayfast.core.types import Request
from stayfast.pipeline.cache.answer_judge import ByMeaning
from stayfast.pipeline.cache.labels import LabelRecord, Learning
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.cache.semantic import SemanticCache, Verifier
from stayfast.pipeline.cache.semantic_index import LabelLog
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.similarity import N_FEATURES, SemanticConfig
from stayfast.stores.base import Store
from stayfast.stores.embedder import Embedders, NoEmbedder
from stayfast.stores.vectors import Vectors
from stayfast.testing import Script, SendText, SimLoop
from tests.flow.cache_rig import CacheRig
from tests.flow.rig import MODEL, chat

# Each word is a direction; those of a row are nearly one. Others are their own.
SYNONYMS = (("reset", "restore", "recover"), ("password", "passphrase"), ("account", "profile"), ("export", "download"),
            ("invoice", "bill"))
N_DIMS = 64

ONE = "How can I reset the password of an account?"
SAME = "How can I restore the passphrase of a profile?"
SAME_TOO = "How can I recover the password of an account?"
OTHER = "Where can I export the last invoice as a file?"
GOOD, BAD = (0.9,) * N_FEATURES, (0.5,) * N_FEATURES
YES, NO = "Click the link in the e-mail.", "Under billing, all the way down on the left side."


class WordEmbedder:
    """An embedder that takes `slow_s`, in the loop's time. `is_broken`: it fails."""

    id = "words"
    n_dims = N_DIMS

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.is_broken = False
        self.has_time = True
        self.embedded: list[str] = []

    def can_embed_within(self, left_s: float) -> bool:
        """As the test says."""
        return self.has_time

    def is_whole(self, text: str) -> bool:
        """Forty words are."""
        return len(text.split()) <= 40

    def close(self) -> None:
        """Holds nothing."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Sums of directions."""
        self.embedded += texts
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        if self.is_broken:
            raise NoEmbedder("broken")
        return np.stack([_direction(text) for text in texts])


def _direction(text: str) -> NDArray[np.float32]:
    whole = np.zeros(N_DIMS, dtype=np.float32)
    for word in text.lower().strip("?!. ").split():
        row = next((row for row in SYNONYMS if word in row), (word,))
        draw = np.random.default_rng(crc32(row[0].encode()))
        whole += draw.standard_normal(N_DIMS).astype(np.float32)
        whole += np.float32(0.02 * len(word))  # so that synonyms are not quite the same
    length: NDArray[np.float32] = whole / np.linalg.norm(whole)
    return length


class SemanticRig(CacheRig):
    """A route with a semantic cache; by a threshold of .9, unless `semantic` says otherwise."""

    def __init__(self, loop: SimLoop, *scripts: Script, semantic: SemanticConfig | None = None,
                 verifier: Verifier | None = None, budget: BudgetConfig | None = None, store: Store | None = None,
                 seed: int = 7) -> None:
        config = CacheConfig("semantic", max_temperature=1.0, semantic=semantic or SemanticConfig(threshold=0.9))
        super().__init__(loop, *scripts, config=config, budget=budget)
        self.words = WordEmbedder()
        self.embedding = Embedders(self.words, self.words)
        self.semantic = SemanticCache(
            config.semantic, MODEL, store=store or self.route_cache.store, embedding=self.embedding, index=Vectors,
            sameness=ByMeaning(self.embedding, 0.9), verifier=verifier, clock=loop, rng=Random(seed),
            sink=self.sink)
        self.change_policy(cache=RouteCache(config, MODEL, store or self.route_cache.store, self.semantic))

    async def finish_learning(self) -> None:
        """What is learned in the background is learned."""
        await asyncio.sleep(30)

    @property
    def lookups(self) -> list[str]:
        """What came of each look-up and audit."""
        return [fact.result for fact in self.sink.facts_of(SemanticLookup)]


def answers_of(*texts: str) -> list[Script]:
    """An upstream's answers, one after another."""
    return [[SendText(text)] for text in texts]


def ask(text: str = ONE, *, before: list[dict[str, Any]] | None = None, system: str = "", **fields: Any) -> Request:
    """A chat request that ends with this text."""
    messages = [{"role": "system", "content": system}] if system else []
    return chat(messages=[*messages, *(before or []), {"role": "user", "content": text}], **fields)



def add_labels(learning: Learning, tenant: str, n: int, log: LabelLog | None = None) -> None:
    """So many clear labels of both classes."""
    for number in range(n):
        is_right = number % 3 != 0
        learning.learn(LabelRecord(GOOD if is_right else BAD, is_right, False, tenant), log)
