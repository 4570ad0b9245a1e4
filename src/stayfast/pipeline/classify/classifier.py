"""A classifier of the settings at work: its heads over the shared vectors, within a time."""

import asyncio
from typing import TYPE_CHECKING

from stayfast.core.classify import TextClassified
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.pipeline.classify.vectors import SharedVectors
from stayfast.policy.classify.config import ClassifierConfig
from stayfast.policy.classify.head import Classification
from stayfast.stores.embedder import NoEmbedder

if TYPE_CHECKING:
    from stayfast.stores.classifier_file import StoredClassifier


class TextClassifier:
    """One classifier. Belongs to one loop; holds no state of a request."""

    __slots__ = ("_clock", "_sink", "_vectors", "config", "name", "stored")

    def __init__(self, name: str, config: ClassifierConfig, stored: "StoredClassifier", vectors: SharedVectors, *,
                 clock: Clock, sink: Sink) -> None:
        self.name = name
        self.config = config
        self.stored = stored
        self._vectors = vectors
        self._clock = clock
        self._sink = sink

    @property
    def labels(self) -> tuple[str, ...]:
        return self.stored.rule.labels

    def classify_now(self, text: str) -> Classification:
        """By the first head, without waiting; 0.1 ms. Raises NoEmbedder, also if that head reads the encoder's vectors."""
        static = self._vectors.static
        if static is None or self.stored.embedders[0] != static.id:
            raise NoEmbedder(f"classifier {self.name} needs the vectors of {self.stored.embedders[0]}")
        return self.stored.rule.judge(self.stored.heads[0].probabilities(self._vectors.static_vector(text)))

    async def classify(self, text: str, until: float | None = None, *, second_wait_s: float | None = None
                       ) -> Classification:
        """By the heads that the margin demands. until: an instant; the second embedder gets at most `second_wait_s`
        (None: of the settings), and where it fails or is late the first head's answer counts. Raises NoEmbedder.
        """
        rule, heads, now = self.stored.rule, self.stored.heads, self._clock.now()
        ends_at = now + (self.config.second_wait_s if second_wait_s is None else second_wait_s)
        ends_at = min(ends_at, until) if until is not None else ends_at
        is_static = self._vectors.static is not None and self.stored.embedders[0] == self._vectors.static.id
        found = self.classify_now(text) if is_static else rule.judge(
            heads[0].probabilities(await self._encode(text, self.stored.embedders[0], None)))
        why = "first"
        if len(heads) > 1 and self.config.second == "auto" and rule.needs_second(found):
            try:
                found = rule.mix(found.probabilities, heads[1].probabilities(
                    await self._encode(text, self.stored.embedders[1], ends_at)))
                why = "second"
            except (NoEmbedder, TimeoutError):
                why = "second_failed"
        self._sink.emit(TextClassified(self.name, found.label, why))
        return found

    async def _encode(self, text: str, embedder: str, ends_at: float | None) -> "Floats":
        known = self._vectors.encoder_id()
        if known != embedder:
            raise NoEmbedder(f"classifier {self.name} needs the vectors of {embedder}, and this gateway has those of "
                             f"{known or 'no encoder'}: train it again, or set embedder.model")
        async with asyncio.timeout_at(ends_at):
            return await self._vectors.encoded_vector(text)

    def __repr__(self) -> str:
        return f"<TextClassifier {self.name}: {len(self.labels)} labels>"


if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats
