"""The claim about the semantic cache, on few questions with vectors that need no model."""

from pathlib import Path

import pytest
import uvloop

from stayfast.lab.claims.semantic import CLASSES, PAIRS, SemanticClaim
from stayfast.lab.harness.claim import Conditions, Figure, SetUpFailed, Verdict
from stayfast.policy.cache.calibration import Calibrator
from stayfast.stores import onnx_embedder as minilm
from tests.bench.phrased import Words, as_csv

GOALS = {0.1: 0.5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both files, and an embedder without a model."""
    monkeypatch.setattr(minilm, "load_encoder", lambda config, cache_dir: Words())
    (tmp_path / CLASSES).write_text(as_csv())
    (tmp_path / PAIRS).write_text("sentence1,sentence2,label\n" + "".join(
        f"convert {number} miles to yards,convert {number} yards to miles,0\n" for number in range(40)))
    return tmp_path


def figures(folder: Path) -> dict[str, Figure]:
    """The figures of a quick run."""
    finding = uvloop.run(SemanticClaim(goals=GOALS).run(Conditions(is_quick=True, data=folder)))
    return {figure.name: figure for figure in finding.figures}


def test_semantic_claim_holds(folder: Path) -> None:
    found = figures(folder)
    assert all(figure.verdict is not Verdict.FALLS_SHORT for figure in found.values())
    assert 0 < found["answered at 10 %, second half"].value <= 100
    assert found["answered, pairs made to fool it"].value == 0


def test_semantic_claim_cache_that_always_answers_falls_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrator, "reject_reason", lambda self, p: "")
    assert not figures(folder)["wrong answers at 10 %, worst order"].holds


def test_semantic_claim_cache_that_never_learns_falls_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no wrong answers, and no answers."""
    monkeypatch.setattr(Calibrator, "reject_reason", lambda self, p: "shadow")
    found = figures(folder)
    assert found["wrong answers at 10 %, worst order"].holds
    assert not found["answered at 10 %, second half"].holds


@pytest.mark.parametrize("is_given", [False, True])
def test_semantic_claim_without_data_raises(tmp_path: Path, is_given: bool) -> None:
    """No folder was named, or it lacks the files."""
    with pytest.raises(SetUpFailed, match=r"--data DIR|cannot be read"):
        uvloop.run(SemanticClaim().run(Conditions(data=tmp_path if is_given else None)))
