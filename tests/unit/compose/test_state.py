
"""compose.state: limits and breakers as metrics and as text; and the settings that they come from."""

import json
from random import Random
from typing import Any

import msgspec

from stayfast.compose.system import Observers, System, build
from stayfast.compose.telemetry import gauges, told, waiting
from stayfast.core.types import Api, Outcome
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.metrics.counters import Snapshot, Totals
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import Source, load
from stayfast.testing import SimLoop, run
from stayfast.upstreams.state.permit import acquire_permit
from stayfast.wire.json_input import decode

TEXT = """
defaults: {limit: {mode: gradient, most: 50, max_waiting: 7}, breaker: {failures_in_row: 2}}
upstreams:
  a: {kind: simulated, limit: {least: 4}}
  b: {kind: simulated, limit: {mode: "off"}, breaker: {enabled: false}}
routes: {m: [a, b]}
"""


def system() -> System:
    """A system of two upstreams, of which one has failed twice."""
    settings = load(Source("test", TEXT), {}, kinds=KINDS)
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1))
    loop.close()
    for member in built.registry:
        for _ in range(2):
            acquire_permit(member, member.usual.norm("m", 1, False), 0.0).leave(Outcome.DROPPED, 0.0)
    return built


def test_settings_reach_the_upstreams() -> None:
    """What one does not say comes from the defaults."""
    built = system()
    assert built.settings.upstreams["a"].limit == LimitConfig("gradient", least=4, most=50, max_waiting=7)
    assert built.registry["a"].whole.max_waiting == 7
    assert [member.breaker.state.value for member in built.registry] == ["open", "closed"]


def test_metrics_and_text() -> None:
    """An upstream without a limit has none to show; names of states are numbers in metrics."""
    built = system()
    assert gauges(built.registry) == {"stayfast_limit": [(("a", ""), 50.0)],
                                      "stayfast_breaker_state": [(("a",), 2.0), (("b",), 0.0)]}
    assert waiting(built.registry) == [(("a", ""), 0), (("b", ""), 0)]
    state = json.loads(told(built.registry, built.gateway.router.routes, built.gateway.admit, prefix={}, worker=3, now=0.0))
    assert state["worker"] == 3
    assert "<Breaker open: 2 failures in a row; 2 failures in a row>" in state["upstreams"]["a"]
    assert "<Limit off>" in state["upstreams"]["b"]
    assert "admission" not in state
    assert state["routes"]["m"]["hedging"].endswith("<ExtraBudget: hedges 0.0% of 10%, all 0.0% of 15%>>")
    assert state["extra"] == dict.fromkeys(("a", "b"), "<Pool of 1 routes: 0 tokens in the last minute>")


ADMITTING = """
admission: {max_in_flight: 4, lanes: {}}
tenants: {"*": {quota: {tokens_per_day: 1000000}}}
upstreams: {a: {kind: simulated}, b: {kind: simulated}}
routes: {m: {upstreams: [a, b], eject: {enabled: true}, hedge: {budget: 0.2}}}
"""
SECRET = "the-words-of-a-prompt"


def test_the_state_of_admission_lanes_tenants_and_hedges() -> None:
    """Places by lane, strain, whose turn it is and what is left of quotas, live delays of hedges; no word of a prompt."""
    async def main(loop: SimLoop) -> dict[str, Any]:
        settings = load(Source("test", ADMITTING), {}, kinds=KINDS)
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
    assert admission["places"].startswith("<Places 1 of 4 taken, <Lanes short 1 of ")
    assert admission["strain"] == "<Strain: the event loop 0 ms late, 0% of a core in use>"
    assert (admission["is_shedding"], len(admission["tenants"])) == (False, 100)
    assert "1 running" in admission["tenants"]["tenant0"]
    assert "of 1e+06 tokens per day" in admission["tenants"]["tenant0"]
    assert "<Limited in lane long: 0 in flight, 0 waiting, <Limit gradient 10000 of 10 to 10000" in state["upstreams"]["a"]
    route = state["routes"]["m"]
    assert any(line.startswith(("a, then b, streams of bodies from 96 bytes", "b, then a")) for line in route["due"])
    assert "<Outliers of 2>" in route["picking"]


def test_workers_add_up_to_one() -> None:
    """They share a limit, and of breakers the worst is shown: three half-open ones are not an open one."""
    whole = Totals({})
    for _ in range(3):
        whole.add(Snapshot({}, {}, {}, {"stayfast_limit": [(("a", ""), 10.0)], "stayfast_breaker_state": [(("a",), 1.0)]}))
    assert whole.gauges["stayfast_limit"]["a", ""] == 10
    assert whole.gauges["stayfast_breaker_state"][("a",)] == 1
