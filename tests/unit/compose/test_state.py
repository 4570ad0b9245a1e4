"""compose.state: limits and breakers as metrics and as text; and the settings that they come from."""

import json
from random import Random

from stayfast.compose.state import gauges, told, waiting
from stayfast.compose.system import Observers, System, build
from stayfast.core.types import Outcome
from stayfast.observe.totals import Snapshot, Totals
from stayfast.policy.limits import LimitConfig
from stayfast.settings import Source, load
from stayfast.testing import SimLoop

TEXT = """
defaults: {limit: {mode: gradient, most: 50, max_waiting: 7}, breaker: {failures_in_row: 2}}
upstreams:
  a: {kind: simulated, limit: {least: 4}}
  b: {kind: simulated, limit: {mode: "off"}, breaker: {enabled: false}}
routes: {m: [a, b]}
"""


def system() -> System:
    """A system of two upstreams, of which one has failed twice."""
    settings = load(Source("test", TEXT), {})
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1))
    loop.close()
    for member in built.registry:
        for _ in range(2):
            member.enter(member.usual.norm("m", 1, False), 0.0).leave(Outcome.DROPPED, 0.0)
    return built


def test_settings_reach_the_upstreams() -> None:
    """What one does not say comes from the defaults."""
    built = system()
    assert built.settings.upstreams["a"].limit == LimitConfig("gradient", least=4, most=50, max_waiting=7)
    assert built.registry["a"].max_waiting == 7
    assert [member.breaker.state.value for member in built.registry] == ["open", "closed"]


def test_metrics_and_text() -> None:
    """An upstream without a limit has none to show; names of states are numbers in metrics."""
    built = system()
    assert gauges(built.registry) == {"stayfast_limit": [(("a", ""), 50.0)],
                                      "stayfast_breaker_state": [(("a",), 2.0), (("b",), 0.0)]}
    assert waiting(built.registry) == [(("a", ""), 0), (("b", ""), 0)]
    state = json.loads(told(built.registry, 3))
    assert state["worker"] == 3
    assert "<Breaker open: 2 failures in a row; 2 failures in a row>" in state["upstreams"]["a"]
    assert "<Limit off>" in state["upstreams"]["b"]


def test_workers_add_up_to_one() -> None:
    """They share a limit, and of breakers the worst is shown: three half-open ones are not an open one."""
    whole = Totals({})
    for _ in range(3):
        whole.add(Snapshot({}, {}, {}, {"stayfast_limit": [(("a", ""), 10.0)], "stayfast_breaker_state": [(("a",), 1.0)]}))
    assert whole.gauges["stayfast_limit"]["a", ""] == 10
    assert whole.gauges["stayfast_breaker_state"][("a",)] == 1
