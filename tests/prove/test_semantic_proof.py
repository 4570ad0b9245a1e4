"""The proof about the semantic cache, on a small set of questions and vectors that need no model."""

from pathlib import Path

import pytest
import uvloop

from stayfast.lab.claims.semantic import CLASSES, PAIRS, SemanticClaim
from stayfast.lab.harness.claim import Conditions, Figure, SetUpFailed
from stayfast.policy.cache.calibration import Calibrator
from stayfast.stores import onnx_embedder as minilm
from tests.bench.phrased import Words, as_csv

GOALS = {0.1: 0.5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both files, and no need of a model."""
    monkeypatch.setattr(minilm, "load", lambda config, cache_dir: Words())
    (tmp_path / CLASSES).write_text(as_csv())
    (tmp_path / PAIRS).write_text("sentence1,sentence2,label\n" + "".join(
        f"convert {number} miles to yards,convert {number} yards to miles,0\n" for number in range(40)))
    return tmp_path


def figures(folder: Path) -> dict[str, Figure]:
    """Of a quick run."""
    finding = uvloop.run(SemanticClaim(goals=GOALS).run(Conditions(is_quick=True, data=folder)))
    return {figure.name: figure for figure in finding.figures}


def test_semantic_claim_holds(folder: Path) -> None:
    """What it learned is enough to answer, and the error stays where it was promised."""
    found = figures(folder)
    assert all(figure.holds for figure in found.values())
    assert 0 < found["answered at 10 %, second half"].value <= 100
    assert found["answered, pairs made to fool it"].value == 0


def test_semantic_claim_cache_that_always_answers_falls_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the wrong answers are seen."""
    monkeypatch.setattr(Calibrator, "why_not", lambda self, p: "")
    assert not figures(folder)["wrong answers at 10 %, worst order"].holds


def test_semantic_claim_cache_that_never_learns_falls_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wrong answers, but none at all."""
    monkeypatch.setattr(Calibrator, "why_not", lambda self, p: "shadow")
    found = figures(folder)
    assert found["wrong answers at 10 %, worst order"].holds
    assert not found["answered at 10 %, second half"].holds


@pytest.mark.parametrize("is_given", [False, True])
def test_semantic_claim_without_data_raises(tmp_path: Path, is_given: bool) -> None:
    """Whether no folder was named, or the files are not in it."""
    with pytest.raises(SetUpFailed, match=r"--data DIR|cannot be read"):
        uvloop.run(SemanticClaim().run(Conditions(data=tmp_path if is_given else None)))
