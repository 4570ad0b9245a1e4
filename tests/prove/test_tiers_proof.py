"""The claim about tiers: two scripted tiers behind a gateway, and broken evidence."""

from collections.abc import Sequence
from random import Random

import pytest
import uvloop

from stayfast.lab.claims.tiers import TiersClaim, cascade_config
from stayfast.lab.harness.claim import Conditions, NeedsData, Verdict
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.tiers.desk import LARGE, SMALL, run_desk
from stayfast.lab.tiers.labellers import LabelledAnswer, Question, TierAnswers
from stayfast.lab.tiers.outcomes import TierOutcome, cost_figure, difference_figures
from stayfast.policy.tiers.evidence import TierEvidence

NAMES = [f"intent_{number}" for number in range(10)]
N = 1200


def make_tiers(*, has_skill: bool = True, seed: int = 1) -> TierAnswers:
    """The small tier is unsure of three questions of ten, and errs in half of these."""
    rng = Random(seed)
    questions = [Question(f"question {number}", rng.randrange(10)) for number in range(N)]
    small: list[LabelledAnswer] = []
    for question in questions:
        is_sure = rng.random() < 0.7
        is_right = is_sure or rng.random() < 0.5
        intent = question.intent if is_right else (question.intent + 1) % 10
        small.append(LabelledAnswer(intent if has_skill else rng.randrange(10), 0.95 if is_sure else 0.4))
    return TierAnswers(questions, small, [LabelledAnswer(question.intent, 0.99) for question in questions], 0.9)


def run(tiers: TierAnswers) -> TierOutcome:
    return TierOutcome(tiers, run_virtual(run_desk, tiers, NAMES, cascade_config(tiers.min_p), 1))


def verdicts(outcomes: Sequence[TierOutcome]) -> list[Verdict | None]:
    figures = difference_figures("cascade", outcomes, least=-0.01, seed=1)
    return [cost_figure("cascade", outcomes, 0.7).verdict, *[figure.verdict for figure in figures]]


def test_cascade_of_a_skilled_small_tier_costs_less_and_gets_as_many_right() -> None:
    outcome = run(make_tiers())
    assert verdicts([outcome]) == [Verdict.HOLDS] * 3
    assert 0.4 < outcome.run.share_of(SMALL) < 0.7
    assert outcome.run.share_of(SMALL) + outcome.run.share_of(LARGE) == 1.0
    assert {role for _, role in outcome.run.cost_usd} == {"first", "escalation", "shadow"}
    assert set(outcome.run.cost_usd) == {(SMALL, "first"), (SMALL, "shadow"), (LARGE, "first"), (LARGE, "escalation"),
                                         (LARGE, "shadow")}


def test_small_tier_that_guesses_answers_no_client() -> None:
    outcome = run(make_tiers(has_skill=False))
    assert outcome.run.share_of(LARGE) == 1.0
    assert set(outcome.run.cost_usd) == {(LARGE, "first"), (SMALL, "shadow")}
    assert cost_figure("no skill", [outcome], 1.07).verdict is Verdict.HOLDS


def test_evidence_that_believes_anything_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stayfast.policy.tiers.evidence.is_at_most", lambda *args: True)
    monkeypatch.setattr(TierEvidence, "restart", lambda self: None)
    outcome = run(make_tiers(has_skill=False))
    assert outcome.run.share_of(SMALL) > 0
    assert Verdict.FALLS_SHORT in verdicts([outcome])


def test_tiers_claim_without_data_is_not_run() -> None:
    with pytest.raises(NeedsData):
        uvloop.run(TiersClaim().run(Conditions(is_quick=True)))
