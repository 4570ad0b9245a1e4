"""Hedge delays of a rare route, from the times of several processes."""

from math import inf
from random import Random

from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.attempts.times_export import MAX_REFRESHED, TimesExport
from stayfast.policy.merged_times import ElsewhereTimes, MergedTimes, merge_in_steps
from stayfast.policy.resilience.hedge import FirstTokens, HedgeConfig, HedgePlan, LateStreak
from stayfast.policy.resilience.retry import RetryConfig

AT = ("here", "m")
ORIGINS = {"here": "openai https://example.com/v1"}
BODY = 400


class RareRoute:
    """One route at `n` processes, each with a request a minute, of which one in twelve is late."""

    def __init__(self, n: int) -> None:
        self.now = 0.0
        self.all = [Hedging(HedgeConfig(), RetryConfig()) for _ in range(n)]
        self._rng = Random(5)

    def run(self, n_minutes: int) -> None:
        """Let every process make a request a minute."""
        for _ in range(n_minutes):
            self.now += 60.0
            for hedging in self.all:
                self.add(hedging, self._rng.lognormvariate(-1.6, 0.3) if self._rng.random() > 1 / 12 else 4.0)

    def add(self, hedging: Hedging, seconds: float) -> None:
        """One answer."""
        tokens = hedging.first_tokens(AT, BODY, is_whole=False)
        tokens.start_attempt(self, self.now - seconds)
        tokens.record_first_token(self, self.now)

    def exchange(self) -> None:
        """Give each process the times of all others."""
        exports = [TimesExport().refresh(dict(hedging.kinds(ElsewhereTimes("r", ORIGINS, {}))), self.now)
                   for hedging in self.all]
        for n, hedging in enumerate(self.all):
            whole: dict[str, MergedTimes] = {}
            for _ in merge_in_steps(exports[:n] + exports[n + 1:], whole):
                continue
            hedging.elsewhere = ElsewhereTimes("r", ORIGINS, whole)

    def plan(self, n: int = 0) -> HedgePlan:
        """The plan of one process, made anew."""
        self.now += 2.0
        return self.all[n].plan_hedge(AT, AT, BODY, self.now, is_whole=False)


def test_rare_route_hedges_by_the_times_of_all() -> None:
    """Eight gateways, six minutes: each alone knows 6 of the 32 answers that it needs, and together they know 48."""
    route = RareRoute(8)
    route.run(6)
    assert route.plan().why_never == "only 6 of 32 attempts are known"
    assert route.plan().after_s == inf
    route.exchange()
    plan = route.plan()
    assert (plan.n, plan.why_never) == (48, "")
    assert 0.1 < plan.after_s < 4.0
    assert abs(plan.usual_s - 0.2) < 0.05


def test_route_with_enough_own_samples_uses_its_own() -> None:
    """Other gateways may be in another region."""
    route = RareRoute(2)
    for _ in range(200):
        route.add(route.all[0], 0.1)
        route.add(route.all[1], 5.0)
    route.exchange()
    assert abs(route.plan(0).usual_s - 0.1) < 0.01
    assert route.plan(0).n == 200


def test_estimate_needs_enough_samples_elsewhere() -> None:
    route = RareRoute(2)
    for _ in range(99):
        route.add(route.all[1], 0.5)
    assert route.all[0].estimate_ttft_s(AT, BODY) is None
    route.exchange()
    assert route.all[0].estimate_ttft_s(AT, BODY) is None
    route.add(route.all[1], 0.5)
    route.exchange()
    estimate_s = route.all[0].estimate_ttft_s(AT, BODY)
    assert estimate_s is not None
    assert abs(estimate_s - 0.5) < 0.02
    assert route.all[0].estimate_ttft_s(AT, 100 * BODY) is None


def test_upstreams_of_this_machine_are_not_exported() -> None:
    route = RareRoute(1)
    route.run(3)
    assert list(route.all[0].kinds(ElsewhereTimes("r", {}, {}))) == []
    assert len(list(route.all[0].kinds(ElsewhereTimes("r", ORIGINS, {})))) == 1


def test_export_computes_the_oldest_kinds_anew() -> None:
    """Many kinds take several exports; all stay in each export until they are gone."""
    export, kinds = TimesExport(), {f"k{n}": FirstTokens(LateStreak(0.1)) for n in range(2 * MAX_REFRESHED)}
    for now in (1.0, 2.0):
        for tokens in kinds.values():
            tokens.start_attempt(export, now - 0.5)
            tokens.record_first_token(export, now)
        found = export.refresh(kinds, now)
    assert sorted(times.n for times in found.values()) == [1] * MAX_REFRESHED + [2] * MAX_REFRESHED
    assert {times.n for times in export.refresh(kinds, 3.0).values()} == {2}
    del kinds["k7"]
    assert export.refresh(kinds, 4.0).keys() == kinds.keys()
