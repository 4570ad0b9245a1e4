
"""compose.state: limits and breakers as metrics and as text; and the settings that they come from."""

import json
from random import Random
from typing import Any

import msgspec

from stayfast.compose.state import state_report
from stayfast.compose.system import Observers, System, build
from stayfast.compose.telemetry import limit_rows, queue_rows
from stayfast.core.types import Api, Outcome
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.metrics.counters import MetricsSnapshot, Totals
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import SettingsText, load_settings
from stayfast.testing import SimLoop, run
from stayfast.upstreams.state.permit import acquire_permit
from stayfast.wire.request_body import decode

TEXT = """
defaults: {limit: {mode: gradient, max: 50, max_waiting: 7}, breaker: {consecutive_failures: 2}}
upstreams:
  a: {kind: simulated, limit: {min: 4}}
  b: {kind: simulated, limit: {mode: "off"}, breaker: {enabled: false}}
routes: {m: [a, b]}
"""


def system() -> System:
    """A system of two upstreams, of which one has failed twice."""
    settings = load_settings(SettingsText("test", TEXT), {}, kinds=KINDS)
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1))
    loop.close()
    for member in built.registry:
        for _ in range(2):
            acquire_permit(member, member.baselines.baseline_for("m", 1, False), 0.0).release(Outcome.DROPPED, 0.0)
    return built


def test_state_limits_come_from_defaults_and_upstreams() -> None:
    built = system()
    assert built.settings.upstreams["a"].limit == LimitConfig("gradient", min=4, max=50, max_waiting=7)
    assert built.registry["a"].whole_limiter.max_waiting == 7
    assert [member.breaker.state.value for member in built.registry] == ["open", "closed"]


def test_state_metrics_and_report_have_limits_and_breakers() -> None:
    """An upstream without a limit has none to show; names of states are numbers in metrics."""
    built = system()
    assert limit_rows(built.registry) == {"stayfast_limit": [(("a", ""), 50.0)],
                                      "stayfast_breaker_state": [(("a",), 2.0), (("b",), 0.0)]}
    assert queue_rows(built.registry) == [(("a", ""), 0), (("b", ""), 0)]
    text = state_report(built.registry, built.gateway.router.routes, built.gateway.admit,
                        signals=built.together.signals.board, prefix={}, fleet={}, worker=3, now=0.0)
    assert b"<" not in text  # nothing of Python
    state = json.loads(text)
    assert state["worker"] == 3
    assert state["upstreams"]["a"] == {
        "is_proven": False, "in_flight": 0, "waiting": 0, "usual_ttft_ms": None, "quickest_ttft_ms": None,
        "extra_attempts_tokens": 0, "flow": {"usual_gap_ms": None, "stall_after_ms": None, "slowness_factor": 1.0},
        "limits": [{"lane": None, "mode": "gradient", "places": 50.0, "taken": 0, "taken_by_other_workers": 0, "waiting": 0,
                    "max_waiting": 7, "why": "nothing learned yet"}],
        "breakers": [{"model": None, "is_enabled": True, "state": "open", "why": "2 failures in a row",
                      "consecutive_failures": 2}]}
    (limit,), (breaker,) = state["upstreams"]["b"]["limits"], state["upstreams"]["b"]["breakers"]
    assert (limit["mode"], limit["places"], breaker["is_enabled"], breaker["state"]) == ("off", None, False, "closed")
    assert "admission" not in state
    assert state["routes"]["m"]["hedging"] == {"mode": "auto", "hedged_ratio": 0.0, "hedge_budget_ratio": 0.1,
                                               "extra_ratio": 0.0, "extra_budget_ratio": 0.15, "slow": [], "due": []}


ADMITTING = """
admission: {max_in_flight: 4, lanes: {}}
tenants: {"*": {quota: {tokens_per_day: 1000000}}}
upstreams: {a: {kind: simulated}, b: {kind: simulated}}
routes: {m: {upstreams: [a, b], eject: {enabled: true}, hedge: {budget: 0.2}}}
"""
SECRET = "the-words-of-a-prompt"


def test_state_report_has_admission_lanes_tenants_and_hedges() -> None:
    """No word of a prompt."""
    async def main(loop: SimLoop) -> dict[str, Any]:
        settings = load_settings(SettingsText("test", ADMITTING), {}, kinds=KINDS)
        gateway = (built := build(settings, Observers(settings, loop), {}, loop, Random(1))).gateway
        body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": SECRET}], "stream": True})
        for n in range(150):
            reply = await gateway.serve(decode(Api.CHAT, body), Arrival(f"req_{n}", loop.now(), f"tenant{n}"))
            while await reply.next() is not None:
                pass
            reply.close()
        reply = await gateway.serve(decode(Api.CHAT, body), Arrival("req", loop.now(), "tenant0"))
        state = built.state()
        reply.close()
        assert SECRET not in state.decode()
        found: dict[str, Any] = json.loads(state)
        return found

    state = run(main)
    admission = state["admission"]
    places = admission["places"]
    assert (places["most"], places["taken"], places["taken_by_other_workers"], places["waiting"]) == (4, 1, 0, 0)
    assert [(lane["lane"], lane["running"]) for lane in places["lanes"]] == [("short", 1), ("long", 0), ("batch", 0)]
    assert admission["strain"] == {"loop_late_ms": 0.0, "cpu_ratio": 0.0}
    assert (admission["is_shedding"], len(admission["tenants"])) == (False, 100)
    tenant = admission["tenants"]["tenant0"]
    assert (tenant["tier"], tenant["running"], tenant["left"]["tokens_per_day"]["most"]) == ("standard", 1, 1e6)
    assert [limit["lane"] for limit in state["upstreams"]["a"]["limits"]] == [None, "short", "long", "batch"]
    route = state["routes"]["m"]
    assert {(due["form"], due["least_body_bytes"]) for due in route["hedging"]["due"]} == {("stream", 64)}
    assert route["picking"] == {"affinity": "off", "known_blocks": 0, "hit_ratios": {}, "ejected": {}}


def test_state_gauges_of_workers_are_merged() -> None:
    """They share a limit, and the worst state of a breaker is shown: three half-open ones are not open."""
    whole = Totals({})
    for _ in range(3):
        whole.add(MetricsSnapshot({}, {}, {}, {"stayfast_limit": [(("a", ""), 10.0)],
                                               "stayfast_breaker_state": [(("a",), 1.0)]}))
    assert whole.gauges["stayfast_limit"]["a", ""] == 10
    assert whole.gauges["stayfast_breaker_state"][("a",)] == 1
