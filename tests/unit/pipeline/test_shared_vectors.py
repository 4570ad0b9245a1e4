"""pipeline.classify: one vector a question and embedder, shared with the semantic cache; the second head in its time."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stayfast.core.classify import TextClassified
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.pipeline.classify.vectors import SharedVectors
from stayfast.policy.classify.config import ClassifierConfig
from stayfast.policy.classify.head import LinearHead
from stayfast.stores.batched_embedder import BatchedEmbedder
from stayfast.stores.classifier_file import StoredClassifier, read_classifier
from stayfast.stores.embedder import EmbedderConfig, Embedders, NoEmbedder
from stayfast.testing import RecordingSink, SimLoop, run
from stayfast.wire.canonical import canonicalize
from tests.classifier_rig import EMBEDDER, write_small_classifier
from tests.flow.rig import chat

QUESTION = " where is\r\nmy card? "


class OneVector:
    """An encoder that has the same vector for all texts."""

    id = "encoder"
    can_pad = True
    n_dims = 4

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        return [1], True

    def encode(self, batch: list[list[int]]) -> Any:
        return np.full((len(batch), 4), 0.5, np.float32)


def cascade(path: Path) -> StoredClassifier:
    """A second head over OneVector, which is sure of cash, and is used for each text."""
    stored = read_classifier(write_small_classifier(path))
    second = LinearHead(np.array([[0] * 4, [50] * 4, [0] * 4], np.float32), np.zeros(3, np.float32))
    rule = msgspec.structs.replace(stored.rule, second_margin=1.1, second_share=0.9)
    return msgspec.structs.replace(stored, heads=(*stored.heads, second), embedders=(*stored.embedders, "encoder"),
                                   rule=rule)


def test_question_is_encoded_once_by_cache_and_classifier(tmp_path: Path) -> None:
    stored = cascade(tmp_path / "x.npz")

    async def main(loop: SimLoop) -> None:
        encoder, sink = BatchedEmbedder(OneVector(), EmbedderConfig(), loop), RecordingSink()
        vectors = SharedVectors(EMBEDDER, Embedders(encoder, encoder))
        request = chat(messages=[{"role": "user", "content": QUESTION}])
        await encoder.embed([canonicalize(request).question.decode()])  # as the semantic cache does
        classifier = TextClassifier("c", ClassifierConfig("x", second_wait_s=5), stored, vectors, clock=loop, sink=sink)
        assert vectors.question_vector(request) is not None
        found = await classifier.classify("where is\nmy card?")
        assert (found.label, found.is_mixed) == ("cash", True)
        assert (encoder.counts.n_texts, vectors.n_computed) == (1, 1)
        assert sink.facts_of(TextClassified) == [TextClassified("c", "cash", "second")]
        encoder.close()
    run(main)


def test_second_head_without_its_encoder_leaves_the_first_answer(tmp_path: Path) -> None:
    stored = cascade(tmp_path / "x.npz")

    async def main(loop: SimLoop) -> None:
        sink = RecordingSink()
        classifier = TextClassifier("c", ClassifierConfig("x"), stored, SharedVectors(EMBEDDER, Embedders()), clock=loop,
                                    sink=sink)
        assert (await classifier.classify("where is my card")).label == "card"
        assert sink.facts_of(TextClassified) == [TextClassified("c", "card", "second_failed")]
        with pytest.raises(NoEmbedder):
            TextClassifier("c", ClassifierConfig("x"), stored, SharedVectors(), clock=loop, sink=sink).classify_now("a")
    run(main)
