"""policy.slo: promises, budgets and the speeds at which they burn."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.snapshot import Spread
from stayfast.policy.slo import (
    BURNS,
    Latency,
    MissedTarget,
    Objective,
    PercentileTargets,
    Slo,
    find_missed_targets,
)


def test_burn_factors_match_the_workbook() -> None:
    """Over 30 days: 14.4 and 6 page, 3 and 1 make a ticket; short windows are a twelfth."""
    assert [(burn.severity, round(burn.factor(30), 9), burn.long_s // 3600, burn.short_s // 60) for burn in BURNS] == [
        ("page", 14.4, 1, 5), ("page", 6.0, 6, 30), ("ticket", 3.0, 24, 120), ("ticket", 1.0, 72, 360)]


@given(share=st.floats(0.5, 0.99999), days=st.integers(28, 92))
def test_objective_alerts_are_possible_and_mean_their_share(share: float, days: int) -> None:
    """An outage can trigger each alert, and bad requests at its line spend its share of the budget."""
    objective = Objective("ttft", share, days, "ttft", 1.0)
    assert all((burn in objective.alerts) == (objective.bad_share(burn) < 1) for burn in BURNS)
    for burn in objective.alerts:
        spent = objective.bad_share(burn) * burn.long_s / (days * 86_400 * objective.budget)
        assert spent == pytest.approx(burn.spent)


@given(share=st.floats(0.5, 0.99999), min_requests=st.integers(1, 1000), min_bad=st.integers(1, 50))
def test_objective_n_requests_needed_keeps_few_failures_silent(share: float, min_requests: int, min_bad: int) -> None:
    """With as many requests as are needed, fewer than `min_bad` bad ones stay under the line."""
    objective = Objective("availability", share, 30)
    for burn in objective.alerts:
        n = objective.n_requests_needed(burn, min_requests, min_bad)
        assert n >= min_requests
        assert (min_bad - 1) / n < objective.bad_share(burn)


def test_objective_modest_share_has_no_fast_alert() -> None:
    """A tenth of all requests may fail: not even an outage burns that 14.4 times too fast."""
    assert [burn.long_s // 3600 for burn in Objective("availability", 0.9, 30).alerts] == [6, 24, 72]


def test_slo_objectives_lists_each_promise() -> None:
    """null promises nothing; each latency names its metric and its bound."""
    slo = Slo(availability=None, ttft=Latency(1.0, 0.9), e2e=Latency(10.0))
    assert list(slo.objectives()) == [Objective("ttft", 0.9, 30, "ttft", 1.0), Objective("e2e", 0.95, 30, "e2e", 10.0)]
    assert list(Slo(availability=0.99, ttft=None).objectives()) == [Objective("availability", 0.99, 30)]


@pytest.mark.parametrize(("make", "word"), [
    (lambda: Slo(availability=1.0), "availability"), (lambda: Slo(availability=99.9), "availability"),
    (lambda: Slo(window_days=7), "window_days"), (lambda: Latency(0.0), "under_s"), (lambda: Latency(7200.0), "under_s"),
    (lambda: Latency(1.0, 0.2), "share"), (lambda: Latency(1.0, 1.0), "share")])
def test_slo_out_of_bounds_is_rejected(make: Callable[[], object], word: str) -> None:
    """A share of 1 leaves no budget; 99.9 was meant as percent; the alerts' windows need a month."""
    with pytest.raises(ValueError, match=word):
        make()


def test_targets_are_listed_by_percentile() -> None:
    slo = Slo(percentiles={"ttft": PercentileTargets(0.5, 1.0)}, stages={"call": PercentileTargets(p99_s=2.0)})
    assert list(slo.targets()) == [("percentiles", "ttft", "p50", 0.5), ("percentiles", "ttft", "p95", 1.0),
                                   ("stages", "call", "p99", 2.0)]


@pytest.mark.parametrize(("bad", "why"), [
    (lambda: PercentileTargets(2.0, 1.0), "p50_s must be at most p95_s"),
    (lambda: PercentileTargets(p50_s=2.0, p99_s=1.0), "p50_s must be at most p95_s"),
    (lambda: PercentileTargets(0.0), "p50_s"),
    (lambda: Slo(percentiles={"gap": PercentileTargets(1.0)}), "percentiles.gap is none of ttft, e2e, tpot, usable"),
])
def test_targets_out_of_order_or_unknown_are_rejected(bad: Callable[[], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bad()


def test_missed_targets_are_the_exceeded_ones_worst_first() -> None:
    """A percentile that is unknown, or at its bound, is not missed."""
    targets: dict[str, dict[str, float | None]] = {
        "ttft": {"p50_s": 0.5, "p95_s": 1.0}, "call": {"p99_s": 1.0, "p50_s": None}, "cache": {"p95_s": 0.1}}
    measured = {"ttft": Spread(9, 0.5, 1.5, 2.0, 3.0), "call": Spread(9, 9.0, 9.0, 4.0, 9.0)}
    assert find_missed_targets(targets, measured) == [MissedTarget("call", "p99", 4.0, 1.0),
                                                      MissedTarget("ttft", "p95", 1.5, 1.0)]
    assert find_missed_targets({}, measured) == []
