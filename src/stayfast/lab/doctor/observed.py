"""A snapshot from facts, until the gateway's own builder can make one in virtual time."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from statistics import StatisticsError, correlation, linear_regression
from typing import Any

import msgspec

from stayfast.compose.system import System
from stayfast.core.clock import Clock
from stayfast.core.events import AttemptDone, BreakerChanged, Fact, Hedged, RequestDone
from stayfast.core.snapshot import WINDOWS_S, PromptRow, Snapshot, Spread, TrafficRow, UpstreamRow
from stayfast.lab.doctor.scene import Flow
from stayfast.settings import Settings

FAILED = 500


class FactSnapshot:
    """A sink that remembers all requests."""

    def __init__(self, clock: Clock, settings: Settings, flows: Mapping[str, Flow]) -> None:
        self._clock = clock
        self._settings = settings
        self._flows = {flow.route: flow for flow in flows.values()}
        self._retried = {name for name, flow in flows.items() if _retries(flow)}
        self._done: list[RequestDone] = []
        self._refused: list[Hedged] = []
        self._breakers: Counter[str] = Counter()  # changes between closed and not closed; probes are none
        self._states: dict[str, str] = {}

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, RequestDone) and not fact.role:
            self._done.append(fact)
        elif isinstance(fact, Hedged) and fact.refused:
            self._refused.append(fact)
        elif isinstance(fact, BreakerChanged):
            was_open = self._states.get(fact.upstream, "closed") != "closed"
            is_open = fact.state != "closed"
            self._breakers[fact.upstream] += was_open != is_open
            self._states[fact.upstream] = fact.state

    def take(self, system: System) -> Snapshot:
        """The snapshot of now."""
        now = self._clock.now()
        rows = []
        for window_s in WINDOWS_S:
            recent = [done for done in self._done if done.ended_at > now - window_s]
            for route in sorted({done.route for done in recent if done.route}):
                mine = [done for done in recent if done.route == route]
                rows.append(self._traffic(route, "", window_s, mine))
                called = {attempt.upstream for done in mine for attempt in done.attempts}
                rows += [self._traffic(route, upstream, window_s, mine) for upstream in sorted(called)]
        state = msgspec.json.decode(system.state())
        upstreams = tuple(self._upstream(name, report) for name, report in state["upstreams"].items())
        admission = state.get("admission", {})
        return Snapshot(
            self._clock.wall(), "lab", traffic=tuple(rows), upstreams=upstreams, settings=_plain(self._settings),
            prompts=tuple(self._prompt(route, flow) for route, flow in self._flows.items()),
            n_waiting=sum(row.waiting for row in upstreams) + int(admission.get("places", {}).get("waiting", 0)))

    def _upstream(self, name: str, report: dict[str, Any]) -> UpstreamRow:
        attempts = [one for done in self._done for one in done.attempts if one.upstream == name]
        breaker, limit = report["breakers"][0], report["limits"][0]
        return UpstreamRow(
            name, "simulated", in_flight=report["in_flight"], waiting=report["waiting"], limit=limit["places"],
            limit_why=limit["why"], breaker=breaker["state"], breaker_why=breaker["why"],
            suspended_s=breaker.get("suspended_s", 0.0), n_breaker_changes_1h=self._breakers[name],
            n_attempts=len(attempts), n_failed=sum(one.fault is not None for one in attempts),
            ttft_s=_spread(one.ttft_s for one in attempts))

    def _traffic(self, route: str, upstream: str, window_s: float, done: Sequence[RequestDone]) -> TrafficRow:
        attempts = [one for request in done for one in request.attempts if not upstream or one.upstream == upstream]
        done = [one for one in done if not upstream or one.upstream == upstream]
        promise = self._settings.routes[route].slo.ttft
        spreads = _spread(one.ttft_s for one in done)
        stages = sorted({stage.stage.value for one in done for stage in one.stages})
        since = self._clock.now() - window_s
        roles = Counter(one.role for one in attempts)
        return TrafficRow(
            route, upstream, window_s, len(done),
            n_streamed=sum(one.stream for one in done),
            n_failed=sum(one.status >= FAILED or one.status == 429 for one in done),
            n_shed=sum(one.shed is not None for one in done),
            n_degraded=sum(one.degraded is not None for one in done),
            n_left=sum(one.status == 499 for one in done),
            n_deadline=sum((one.error or "").endswith("_s_exceeded") for one in done),
            n_late=sum(one.ttft_s is None or one.ttft_s > promise.under_s for one in done) if promise is not None else 0,
            n_client_retries=sum(one.request_id.split("/")[0] in self._retried for one in done),
            ttft_s=spreads,
            usable_s=_spread(one.ttft_s if one.stream else one.ended_at - one.accepted_at for one in done),
            e2e_s=_spread(one.ended_at - one.accepted_at for one in done),
            tpot_s=_spread(one.tpot_s for one in done),
            gap_most_s=_spread(one.gap_max_s for one in done),
            queue_s=_spread(one.queue_s for one in done),
            own_s=_spread(one.own_s for one in done),
            stages_s={stage: _spread(_spent(one, stage) for one in done) for stage in stages},
            stages_at_p99_s=_stages_near(done, stages, spreads.p99), stages_at_p50_s=_stages_near(done, stages, spreads.p50),
            over_stages=dict(Counter(one.over_stage.value for one in done if one.over_stage is not None)),
            n_attempts=len(attempts), n_retries=roles["retry"], n_fallbacks=roles["fallback"], n_hedges=roles["hedge"],
            n_hedges_won=sum(one.role == "hedge" and not one.is_lost for one in attempts),
            n_hedges_refused=sum(one.route == route and one.at > since for one in self._refused),
            n_stalls=sum(len(one.stalls) for one in attempts),
            n_truncated=sum(_is_truncated(one) for one in attempts),
            faults=dict(Counter(_fault(one) for one in attempts if one.fault is not None)),
            n_input_tokens=sum(one.usage.input_total for one in done if one.usage is not None),
            n_cached_tokens=sum(one.usage.cached_read for one in done if one.usage is not None),
            n_output_tokens=sum(one.usage.output for one in done if one.usage is not None),
            cost_usd=_sum_costs(done), n_unpriced=sum(one.usage is not None and one.cost_usd is None for one in attempts),
            cache=dict(Counter(one.cache for one in done if one.cache is not None)))

    def _prompt(self, route: str, flow: Flow) -> PromptRow:
        done = [one for one in self._done if one.route == route and one.usage is not None and one.ttft_s is not None]
        sizes = [one.usage.input_total for one in done if one.usage is not None]
        outputs = [one.usage.output for one in done if one.usage is not None]
        ttft_s = [one.ttft_s or 0.0 for one in done]
        loads = [_running(one, self._done) for one in done[:400]]
        n, caps = len(done), [flow.max_tokens] * len(done) if flow.max_tokens is not None else []
        try:
            slope = linear_regression(sizes, ttft_s).slope * 1000 if n > 1 else None
        except StatisticsError:
            slope = None
        return PromptRow(
            route, n, input_tokens=_spread(sizes), output_tokens=_spread(outputs), max_tokens=_spread(caps),
            n_uncapped=n - len(caps), client_timeout_s=_spread([flow.silence_s] * n),
            ttft_by_input=_correlate(sizes, ttft_s), ttft_by_load=_correlate(loads, ttft_s[:400]),
            e2e_by_output=_correlate(outputs, [one.ended_at - one.accepted_at for one in done]), s_per_1k_input=slope)


def _sum_costs(done: Iterable[RequestDone]) -> dict[str, float]:
    costs_usd: Counter[str] = Counter()
    for one in done:
        costs_usd.update(one.cost_by_role)
    return dict(costs_usd)


def _retries(flow: Flow) -> bool:
    return any(name == "x-stainless-retry-count" and value != "0" for name, value in flow.headers)


def _running(request: RequestDone, others: Sequence[RequestDone]) -> int:
    return sum(one.upstream == request.upstream and one.accepted_at <= request.accepted_at < one.ended_at for one in others)


def _correlate(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    try:
        return correlation(xs, ys) if len(xs) > 1 else None
    except StatisticsError:
        return None


def _is_truncated(attempt: AttemptDone) -> bool:
    return attempt.fault in {"truncated", "reset"} and attempt.ttft_s is not None


def _fault(attempt: AttemptDone) -> str:
    return str(attempt.upstream_status or attempt.fault)


def _spent(done: RequestDone, stage: str) -> float | None:
    found = [one.spent_s for one in done.stages if one.stage.value == stage]
    return sum(found) if found else None


def _stages_near(done: Sequence[RequestDone], stages: Sequence[str], ttft_s: float | None) -> dict[str, float]:
    if ttft_s is None:
        return {}
    near = sorted((one for one in done if one.ttft_s is not None), key=lambda one: abs((one.ttft_s or 0.0) - ttft_s))
    near = near[:max(3, len(done) // 100)]
    means = {stage: sum(_spent(one, stage) or 0.0 for one in near) / len(near) for stage in stages}
    return {stage: spent_s for stage, spent_s in means.items() if spent_s > 1e-6}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return value if isinstance(value, int | float | bool | str | None) else str(value)


def _spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    if not known:
        return Spread()
    return Spread(len(known), _at(known, 0.5), _at(known, 0.95), _at(known, 0.99), known[-1])


def _at(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
