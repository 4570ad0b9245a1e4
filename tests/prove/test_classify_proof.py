"""The claim about classifiers, on a small file, and with a broken training."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stayfast.lab import classify_trials
from stayfast.lab.claims.classify import CLASSES, ClassifyClaim
from stayfast.lab.harness.claim import ClaimResult, Conditions, NeedsData, Verdict
from stayfast.policy.classify.training import train_classifier
from tests.classifier_rig import EMBEDDER, EXAMPLES
from tests.prove.running import without_interval

CLOSINGS = ("", "please", "today", "thanks", "urgent", "can you help")


class StaticEncoder:
    """The static embedder in the place of MiniLM."""

    id = "encoder"

    def tokenize(self, text: str) -> tuple[list[str], bool]:
        return [text], True

    def encode(self, batch: list[list[str]]) -> Any:
        return EMBEDDER.embed([text for [text] in batch])

    def embed_all(self, texts: list[str]) -> Any:
        return EMBEDDER.embed(texts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 144 examples, and an encoder without a model."""
    monkeypatch.setattr(classify_trials, "load_encoder", lambda config, cache_dir: StaticEncoder())
    rows = [f"{text} {closing},{label}" for label, texts in EXAMPLES.items() for text in texts for closing in CLOSINGS]
    (tmp_path / CLASSES).write_text("text,category\n" + "\n".join(rows) + "\n")
    return tmp_path


def run(folder: Path) -> ClaimResult:
    """All parts: the file is small."""
    return asyncio.run(ClassifyClaim().run(Conditions(data=folder)))


def test_classify_claim_labels_that_can_be_learned_hold(folder: Path) -> None:
    finding = run(folder)
    verdicts = {figure.name: figure.verdict for figure in finding.figures}
    assert verdicts["static: right"] is verdicts["cascade: right"] is Verdict.HOLDS
    assert without_interval(finding) == []
    assert "144 questions" in finding.notes[0]


def test_classify_claim_weights_of_shuffled_labels_fall_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = train_classifier
    monkeypatch.setattr(classify_trials, "train_classifier", lambda vectors, rows, labels, **options: train(
        vectors, np.random.default_rng(1).permutation(rows), labels, **options))
    assert run(folder).verdict is Verdict.FALLS_SHORT


def test_classify_claim_without_data_does_not_run(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(NeedsData, match="--data"):
            asyncio.run(ClassifyClaim().run(Conditions(data=data)))
