"""What a route decides of second attempts from second to second: what each kind of prompt may spend, and when it stops."""

from collections.abc import Callable
from itertools import pairwise
from math import inf
from random import Random

import pytest

from stayfast.pipeline.attempts.hedge_plans import MAX_SERIES, MEAN_OVER_S, STAYS_S, Hedging, MeanShare, UpstreamModel
from stayfast.policy.resilience.hedge import SHARES, HedgeConfig, HedgePlan
from stayfast.policy.resilience.retry import RetryConfig

Draw = Callable[[Random], float]
BODY, LONGER = 400, 40_000  # bytes
AT = ("a", "m")
PER_S = 40


def _tailed(rng: Random) -> float:
    return rng.lognormvariate(-1.6555, 0.5) if rng.random() < 0.932 else rng.lognormvariate(1.2975, 0.745)


def _at_the_edge(rng: Random) -> float:
    """One in a hundred is late: in one minute p99 is of the tail, in the next it is not."""
    return rng.lognormvariate(-1.6, 0.3) if rng.random() >= 0.01 else 4.0 + rng.random()


def _narrow(rng: Random) -> float:
    return rng.lognormvariate(-1.6, 0.25)


class _Traffic:
    """One upstream of a route, asked PER_S times a second; nothing is hedged in fact."""

    def __init__(self, config: HedgeConfig | None = None) -> None:
        self.hedging = Hedging(config or HedgeConfig(), RetryConfig())
        self.now = 0.0
        self._rng = Random(4)

    def run(self, seconds: int, draw: Draw, n_bytes: int = BODY, at: UpstreamModel = AT) -> list[HedgePlan]:
        """The plan at the end of each second."""
        found = []
        tokens = self.hedging.first_tokens(at, n_bytes, is_whole=False)
        for _ in range(seconds):
            for _ in range(PER_S):
                tokens.start_attempt(self, self.now - draw(self._rng))
                tokens.record_first_token(self, self.now)
            self.now += 1.0
            found.append(self.hedging.plan_hedge(at, at, n_bytes, self.now, is_whole=False))
        return found


def _flips(plans: list[HedgePlan]) -> int:
    return sum((before.after_s < inf) != (after.after_s < inf) for before, after in pairwise(plans))


def test_hedge_plan_tail_gets_the_most_and_a_narrow_distribution_nothing() -> None:
    """7 % are late: 10 % of the calls, and a steady delay. None is late: no hedges, and the reason."""
    tailed, narrow = _Traffic(), _Traffic()
    plans = tailed.run(300, _tailed)
    [due] = tailed.hedging.due_now()
    assert due["share"] >= 0.095
    assert _flips(plans[10:]) == 0
    assert max(plan.after_s for plan in plans[60:]) < 1.5 * min(plan.after_s for plan in plans[60:]) < 0.8
    assert all(plan.after_s == inf for plan in narrow.run(120, _narrow))
    [due] = narrow.hedging.due_now()
    assert due["after_ms"] is None
    assert due["why_never"].startswith("p99 of ")
    assert "would not fall by 20%" in due["why_never"]


def test_hedge_plan_at_the_edge_does_not_flap() -> None:
    """A hedge would help in some minutes: the plan changes a few times in ten minutes, its share by steps."""
    traffic = _Traffic()
    assert _flips(traffic.run(600, _at_the_edge)) <= 8
    [due] = traffic.hedging.due_now()
    assert due["after_ms"] is None or due["share"] <= 0.05


def test_hedge_plan_ends_when_hedges_no_longer_help() -> None:
    """The tail is gone: the plan ends once, STAYS_S after the minute that still had it, and does not restart."""
    traffic = _Traffic()
    traffic.run(120, _tailed)
    plans = traffic.run(120, _narrow)
    assert _flips(plans) == 1
    n_on = sum(plan.after_s < inf for plan in plans)
    assert 30 < n_on < 75 + STAYS_S


def test_hedge_plan_needs_samples() -> None:
    traffic = _Traffic()
    plan = traffic.hedging.plan_hedge(AT, AT, BODY, 0.0, is_whole=False)
    assert (plan.after_s, plan.why_never) == (inf, "only 0 of 32 attempts are known")


def test_hedge_plan_fixed_budget_is_the_share() -> None:
    traffic = _Traffic(HedgeConfig(budget=0.08))
    traffic.run(30, _tailed)
    assert traffic.hedging.due_now()[0]["share"] == 0.08


def test_hedge_plan_unused_share_of_one_kind_is_not_given_to_another() -> None:
    """Half of the requests have a tail and half have none: the mean is half of the highest share."""
    traffic = _Traffic()
    for _ in range(120):
        traffic.run(1, _tailed)
        traffic.now -= 1.0
        traffic.run(1, _narrow, LONGER)
    mean = traffic.hedging.mean_share
    assert mean is not None
    assert mean == pytest.approx(SHARES[-1] / 2, rel=0.1)


def test_mean_share_forgets_old_values() -> None:
    """Weighted by the calls of each kind; after a few minutes only the new value counts."""
    mean = MeanShare()
    assert mean.value is None
    mean.add(0.1, 300, 0.0)
    mean.add(0.0, 100, 0.0)
    assert mean.value == pytest.approx(0.075)
    mean.add(0.02, 400, 5 * MEAN_OVER_S)
    assert mean.value == pytest.approx(0.02, abs=0.001)


def _reasoning(rng: Random) -> float:
    """Twenty seconds to the first token, and one call in twenty is silent."""
    return rng.lognormvariate(3.0, 0.3) if rng.random() >= 0.05 else 300.0


def _quick(rng: Random) -> float:
    return rng.lognormvariate(-1.2, 0.3) if rng.random() >= 0.05 else 300.0


def test_hedge_plan_of_one_model_ignores_the_others() -> None:
    """Two models of one upstream, with prompts of one size: each has a delay of its own."""
    alone, both, reasoning = _Traffic(), _Traffic(), ("a", "reasoning")
    last = alone.run(60, _quick)[-1]
    for _ in range(60):
        both.run(1, _quick)
        both.now -= 1.0
        both.run(1, _reasoning, at=reasoning)
    quick = both.hedging.plan_hedge(AT, AT, BODY, both.now, is_whole=False)
    slow = both.hedging.plan_hedge(reasoning, reasoning, BODY, both.now, is_whole=False)
    assert quick.after_s == pytest.approx(last.after_s, rel=0.2)
    assert quick.after_s < 1.0
    assert 20.0 < slow.after_s < 60.0
    assert {due["model"] for due in both.hedging.due_now()} == {"m", "reasoning"}


def test_hedge_plan_models_that_never_answer_displace_no_other() -> None:
    """A client may name any model at a route to "*"."""
    traffic = _Traffic()
    traffic.run(10, _tailed)
    known = traffic.hedging.plan_hedge(AT, AT, BODY, traffic.now, is_whole=False).n
    for number in range(10 * MAX_SERIES):
        traffic.hedging.first_tokens(("a", f"unknown-{number}"), BODY, is_whole=False)
    assert traffic.hedging.plan_hedge(AT, AT, BODY, traffic.now + 2.0, is_whole=False).n == known > 0


def test_hedge_plan_late_attempts_of_one_model_leave_the_others_quick() -> None:
    hedging = Hedging(HedgeConfig(), RetryConfig())
    for _ in range(20):
        hedging.note_late(AT, 1.0, is_whole=False)
    assert hedging.is_slow(AT, 1.0, is_whole=False)
    assert hedging.slow_upstreams([("a", "other"), ("b", "m")], 1.0, is_whole=False) == set()
