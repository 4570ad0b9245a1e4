"""The claim about output limits holds in a short run, and falls short of broken formulas."""

from collections.abc import Callable

import pytest

from stayfast.lab.claims import caps
from stayfast.lab.harness.claim import ClaimResult
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.context import output_cap
from stayfast.policy.context.output_cap import PaceEstimate, fit_tokens
from tests.prove.running import short_of

N = 450


def finding(sag: float = 1.0) -> ClaimResult:
    plain, fitted = (run_virtual(caps.measure, N, 1, sag, is_fitted=is_fitted) for is_fitted in (False, True))
    return ClaimResult(tuple(caps.compare_runs("it", plain, fitted, is_steady=sag == 1.0)))


@pytest.mark.parametrize("sag", [1.0, caps.SAG])
def test_caps_claim_holds(sag: float) -> None:
    found = finding(sag)
    assert short_of(found) == []
    assert found.figures[0].value > 20  # percent that the deadline cuts without limits
    assert found.figures[1].value == 0


@pytest.mark.parametrize(("broken", "words"), [
    (lambda left_s, reserve_s, pace: fit_tokens(left_s, reserve_s, pace) * 13 // 10, "cut by the deadline, of"),
    (lambda left_s, reserve_s, pace: int(left_s / pace.tpot_s), "cut by the deadline, of"),
    (lambda left_s, reserve_s, pace: min(16, fit_tokens(left_s, reserve_s, pace)), "would have ended in time"),
], ids=["too many", "no first token", "always the floor"])
def test_caps_claim_broken_formula_falls_short(monkeypatch: pytest.MonkeyPatch, words: str,
                                               broken: Callable[[float, float, PaceEstimate], int]) -> None:
    monkeypatch.setattr(output_cap, "fit_tokens", broken)
    assert any(words in name for name in short_of(finding()))
