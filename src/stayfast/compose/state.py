"""/debug/state of one worker: the state behind its decisions, as JSON.

Names, figures and reasons; never a prompt or a key. Units are in the names: `_ms`, `_s`, `_bytes`, `_tokens`; `_ratio` is a
share of 1. Unknown and unbounded figures are null.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from stayfast.core.engine_signals import EngineSignals
from stayfast.pipeline.admission.controller import UNLIMITED, AdmissionController
from stayfast.pipeline.admission.tenants import Tenant
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.plan import Route
from stayfast.pipeline.routing.selector import UpstreamSelector
from stayfast.pipeline.stages.admit.admission import Admission, Admit
from stayfast.policy.warm.phases import Replica
from stayfast.upstreams.state.limiter import ConcurrencyLimiter
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.upstreams.state.upstream_state import MAX_NAME, ModelHealth, UpstreamState

MAX_TENANTS = 100  # the newest
Json = dict[str, Any]


def state_report(registry: Registry, routes: Mapping[str, Route], admit: Admit, *, signals: SignalBoard,
                 prefix: Mapping[str, Any], fleet: Mapping[str, Any], worker: int, now: float) -> bytes:
    """The state of one worker. prefix: of prompt caches, by route. fleet: of what several gateways share."""
    state: Json = {"worker": worker,
                   "upstreams": {member.upstream.name: _describe_upstream(member, signals, now) for member in registry},
                   "routes": {name: _describe_route(route, now) for name, route in routes.items()}}
    if isinstance(admit, Admission):
        state["admission"] = _describe_admission(admit, now)
    if prefix:
        state["prefix"] = prefix
    if fleet:
        state["fleet"] = fleet
    return msgspec.json.encode(state)


def _describe_upstream(member: UpstreamState, board: SignalBoard, now: float) -> Json:
    pool, predictors, flow = member.retry_budget.budget, member.predictors, member.flow
    pool.expire(now)
    report: Json = {
        "is_proven": member.is_proven, "in_flight": member.n_in_flight, "waiting": member.n_waiting,
        "limits": [_describe_limit(limited) for limited in member.all_limiters],
        "breakers": [_describe_breaker(health, now) for health in dict.fromkeys((member.own_health, *member.healths))],
        "usual_ttft_ms": _ms(member.baselines.all.baseline_s), "quickest_ttft_ms": _ms(member.fastest_ttft_s),
        "extra_attempts_tokens": round(pool.withdrawn)}
    signals = board.signals_of(member.upstream.name, now)
    if signals is not None:
        report["engine"] = _describe_signals(signals, now)
    if member.replica is not None:
        report["replica"] = _describe_replica(member.replica, now)
    if predictors is not None:
        report["prediction_error_ratio"] = predictors.error_ratio
    places = member.whole_limiter.job_places
    if places is not None:
        allowance = places.allowance
        report["jobs"] = {"in_flight": places.n_jobs, "allowed": allowance.allowed, "excess_ratio": allowance.excess,
                          "is_quiet": allowance.is_quiet(now)}
    if flow is not None:
        report["flow"] = {"usual_gap_ms": _ms(flow.usual_s), "stall_after_ms": _ms(flow.limit_s(now)),
                          "slowness_factor": flow.load_factor(now)}
    return report


def _describe_signals(signals: EngineSignals, now: float) -> Json:
    """What the engine shows; without what it does not."""
    shown = {name: value for name, value in msgspec.structs.asdict(signals).items()
             if value is not None and name != "read_at"}
    return {**shown, "age_s": now - signals.read_at}


def _describe_replica(replica: Replica, now: float) -> Json:
    return {"phase": replica.phase.value, "why": replica.why, "share": replica.share(now),
            "cold_start_p90_s": replica.loads.p90_s, "wake_p90_s": replica.wakes.p90_s,
            "n_cold_starts": replica.loads.n_starts, "n_wakes": replica.wakes.n_starts}


def _describe_limit(limited: ConcurrencyLimiter) -> Json:
    limit, shared = limited.limit, limited.shared_limit
    return {"lane": limited.lane or None, "mode": limit.mode, "places": _bounded(limit.value), "taken": limited.n_taken,
            "taken_by_other_workers": shared.n_elsewhere() if shared is not None else 0, "waiting": limited.n_waiting,
            "max_waiting": limited.max_waiting, "why": limit.why}


def _describe_breaker(health: ModelHealth, now: float) -> Json:
    breaker, left_s = health.breaker, health.suspended_until - now
    report: Json = {
        "model": health.model[:MAX_NAME] if health.model else None, "is_enabled": breaker.is_enabled,
        "state": breaker.state.value, "why": breaker.why, "consecutive_failures": breaker.n_failed_in_row}
    if left_s > 0:
        report["suspended_s"], report["suspend_reason"] = left_s, health.suspend_reason
    return report


def _describe_route(route: Route, now: float) -> Json:
    report: Json = {"hedging": _describe_hedging(route.hedging, now)}
    if route.selector is not None:
        report["picking"] = _describe_selector(route.selector, now)
    return report


def _describe_hedging(hedging: Hedging, now: float) -> Json:
    budget = hedging.budget
    budget.expire(now)
    report: Json = {
        "mode": hedging.config.mode, "hedged_ratio": budget.hedged_share(now),
        "hedge_budget_ratio": hedging.config.max_share,
        "extra_ratio": budget.extra_share(now), "extra_budget_ratio": round(budget.max_share, 6)}
    if hedging.is_on:
        report["slow"] = hedging.slow_now(now)
        report["due"] = hedging.due_now()
    return report


def _describe_selector(selector: UpstreamSelector, now: float) -> Json:
    return {"affinity": selector.config.affinity.mode, "known_blocks": selector.beliefs.n_blocks,
            "hit_ratios": {name: {"reported": truth.truth, "believed": truth.belief, "answers": truth.n_answers}
                           for name, truth in selector.beliefs.truths.items()},
            "ejected": dict(selector.list_ejected(now))}


def _describe_admission(admit: Admission, now: float) -> Json:
    signals = admit.places.overload_signals
    return {"places": _describe_places(admit.places), "is_shedding": admit.is_shedding(now),
            "strain": {"loop_late_ms": _ms(signals.late_s) or 0.0, "cpu_ratio": signals.busy},
            "tenants": {tenant.name: _describe_tenant(tenant, now) for tenant in admit.tenants.newest(MAX_TENANTS)}}


def _describe_places(places: AdmissionController) -> Json:
    shared = places.common
    report: Json = {
        "most": places.n_places if places.n_places < UNLIMITED else None, "taken": places.n_taken,
        "taken_by_other_workers": shared.n_elsewhere() if shared is not None else 0, "waiting": places.n_waiting,
        "waiting_by": dict(places.queue_depths())}
    if places.lanes is not None:
        report["lanes"] = [{"lane": lane.name, "running": lane.n_running, "entitled": lane.n_entitled,
                            "prefilling": lane.n_prefilling, "waiting": lane.queue.n} for lane in places.lanes.all]
    return report


def _describe_tenant(tenant: Tenant, now: float) -> Json:
    share = tenant.share
    return {"tier": tenant.config.tier.value, "weight": share.weight, "served_tokens_by_weight": round(share.served),
            "running": share.n_running, "waiting": share.n_waiting,
            "left": {limit: {"left": max(0.0, level), "most": most} for limit,
                     (level, most) in tenant.quota.levels(now).items()}}


def _ms(seconds: float) -> float | None:
    """Milliseconds; None: unknown (0) or infinite."""
    return round(seconds * 1e3, 3) if 0 < seconds < inf else None


def _bounded(value: float) -> float | None:
    return value if value < inf else None
