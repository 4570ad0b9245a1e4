"""The claim about the semantic cache, on few questions with vectors that need no model, and against broken caches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from stayfast.lab.claims.semantic import CLASSES, SemanticClaim
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, SetUpFailed, Verdict
from stayfast.pipeline.cache.labels import Learning
from stayfast.pipeline.stages.cache.llm_judge import LlmJudge
from stayfast.policy.cache import eligibility
from stayfast.policy.cache.answer_clusters import AnswerVotes
from stayfast.policy.cache.calibration import Calibrator
from stayfast.stores import onnx_embedder as minilm
from tests.bench.phrased import Words, as_csv

MAX_ERROR, LEAST = 0.05, 0.3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of questions, and an embedder without a model."""
    monkeypatch.setattr(minilm, "load_encoder", lambda config, cache_dir: Words())
    (tmp_path / CLASSES).write_text(as_csv())
    return tmp_path


def run(folder: Path, *names: str) -> ClaimResult:
    """A quick run of some kinds of traffic."""
    claim = SemanticClaim(names=names, min_answered={MAX_ERROR: LEAST})
    return uvloop.run(claim.run(Conditions(is_quick=True, data=folder)))


def find(finding: ClaimResult, name: str) -> Figure:
    """The only figure whose name contains this."""
    [found] = [figure for figure in finding.figures if name in figure.name]
    return found


def test_semantic_claim_holds(folder: Path) -> None:
    finding = run(folder, "steady", "poison")
    assert find(finding, "steady: wrong").verdict is Verdict.HOLDS
    assert find(finding, "steady: answered in the second half").verdict is Verdict.HOLDS
    assert find(finding, "attacker").verdict is Verdict.HOLDS
    assert finding.verdict is not Verdict.FALLS_SHORT


def _serve_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrator, "reject_reason", lambda self, p: "")
    monkeypatch.setattr(Learning, "reject_reason", lambda self, *args: "")


def _serve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrator, "reject_reason", lambda self, p: "shadow")


def _judge(verdict: bool) -> Callable[[pytest.MonkeyPatch], None]:
    async def is_same(self: LlmJudge, *args: Any) -> bool:
        return verdict

    return lambda monkeypatch: monkeypatch.setattr(LlmJudge, "is_same", is_same)


def _serve_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnswerVotes, "is_confirmed", lambda self, answer: True)


def _admit_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attackers' questions are stored, and their answers need no confirmation."""
    monkeypatch.setattr(eligibility, "is_instruction", lambda text, words: False)
    _serve_unconfirmed(monkeypatch)


def _serve_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scopes need no test, answers no confirmation."""
    monkeypatch.setattr(Learning, "reject_reason", lambda self, *args: "")
    _serve_unconfirmed(monkeypatch)


@pytest.mark.parametrize(("plant", "name", "figure"), [
    (_serve_anything, "steady", "steady: wrong"),
    (_serve_nothing, "steady", "steady: answered in the second half"),
    (_judge(verdict=True), "steady", "steady: answered in the second half"),
    (_judge(verdict=False), "steady", "steady: answered in the second half"),
    (_serve_untested, "warm_pairs", "warm_pairs: wrong of"),
    (_admit_instructions, "poison", "attacker"),
    (_serve_untested, "no_tests", "without tests"),
], ids=["always_answers", "never_answers", "all_answers_same", "all_answers_different", "untested_pairs",
        "instructions", "untested"])
def test_semantic_claim_broken_cache_falls_short(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                 plant: Callable[[pytest.MonkeyPatch], None], name: str,
                                                 figure: str) -> None:
    plant(monkeypatch)
    finding = run(folder, name)
    assert find(finding, figure).verdict is Verdict.FALLS_SHORT
    assert finding.verdict is Verdict.FALLS_SHORT


@pytest.mark.parametrize("is_given", [False, True])
def test_semantic_claim_without_data_raises(tmp_path: Path, is_given: bool) -> None:
    """No folder was named, or it lacks the file."""
    with pytest.raises(SetUpFailed, match=r"--data DIR|cannot be read"):
        uvloop.run(SemanticClaim().run(Conditions(data=tmp_path if is_given else None)))
