"""The claim about leaks holds in a short run that reaches every state, and finds each kind of leak."""

from typing import Any

import pytest

from stayfast.lab.claims import leaks
from stayfast.lab.harness.virtual import run_virtual
from stayfast.pipeline.admission.controller import AdmissionController
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.stages.call.hedged_call import HedgedCall
from stayfast.policy.admission.quota import TenantQuota
from stayfast.policy.resilience.breaker import Breaker
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.upstreams.state.limiter import ConcurrencyLimiter
from tests.prove.running import short_of

N = 4000


def test_leaks_claim_holds() -> None:
    """4,000 schedules reach every state."""
    finding = run_virtual(leaks.measure, N, 1)
    assert [figure for figure in finding.figures if not figure.holds] == [], finding.notes


@pytest.mark.parametrize(("of", "method", "leak"), [
    (AdmissionController, "give_back", "places"), (ConcurrencyLimiter, "release", "upstream places"),
    (TenantQuota, "reconcile", "quota of tokens"),
    (RetryBudget, "withdraw_retry", "budget of extra attempts"), (Breaker, "discard_call", "probes")])
def test_leaks_claim_finds_skipped_release(monkeypatch: pytest.MonkeyPatch, of: type, method: str, leak: str) -> None:
    """One call in twenty is skipped."""
    right, calls = getattr(of, method), iter(range(10**9))
    monkeypatch.setattr(of, method, lambda *args, **more: None if next(calls) % 20 == 7 else right(*args, **more))
    finding = run_virtual(leaks.measure, 400, 1)
    assert "things held after one" in short_of(finding)
    assert any(note.startswith(f"{leak}: ") for note in finding.notes), finding.notes


def test_leaks_claim_finds_open_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some attempts end without closing their stream."""
    right = Attempt.end

    def end(attempt: Attempt, *args: Any, **more: Any) -> None:
        if attempt.done is None and attempt.began_at % 0.2 < 0.02:
            attempt.stream = None
        right(attempt, *args, **more)

    monkeypatch.setattr(Attempt, "end", end)
    assert any(note.startswith("streams: ") for note in run_virtual(leaks.measure, 400, 1).notes)


def test_leaks_claim_finds_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hedges continue after their race."""
    monkeypatch.setattr(HedgedCall, "end", lambda *_: None)
    assert any(note.startswith("tasks: ") for note in run_virtual(leaks.measure, 400, 1).notes)
