"""pipeline.sagging: an upstream whose answers turn slow in their middle weighs more, without anybody guarding them."""

import pytest

from stayfast.core.events import TokenGaps
from stayfast.observe.fact_batch import handle_facts
from stayfast.pipeline.stages.call.midstream_failover import ThroughputMonitor
from stayfast.policy.resilience.stall import MAX_SAG, TokenFlow
from stayfast.testing import SimLoop

EVEN = [0.02] * 40
SAGS = [0.02] * 20 + [0.2] * 20


def flow_of(*answers: list[float]) -> TokenFlow:
    """The flow of `a` after 60 even answers and these."""
    loop = SimLoop()
    flows = {"a": TokenFlow()}
    sagging = ThroughputMonitor(loop, lambda: flows)
    handle_facts(sagging, [TokenGaps("m", "a", gaps_s) for gaps_s in (*[EVEN] * 60, *answers)])
    loop.close()
    return flows["a"]


def test_throughput_monitor_slowdown_raises_the_load_factor() -> None:
    """Ten times slower in its second half: a factor of ten, which decays."""
    flow = flow_of(SAGS)
    assert flow.load_factor(0.0) == pytest.approx(MAX_SAG, rel=0.15)
    assert 1.0 < flow.load_factor(20.0) < 3.0


@pytest.mark.parametrize("gaps_s", [EVEN, [0.03] * 40, [0.2] * 40, [0.02] * 5 + [0.2] * 5, [0.2] * 20 + [0.02] * 20])
def test_throughput_monitor_even_and_short_answers_change_nothing(gaps_s: list[float]) -> None:
    """Even, slow from the start, short, or faster at the end."""
    assert flow_of(gaps_s).load_factor(0.0) == 1.0


def test_throughput_monitor_ignores_upstreams_without_a_flow() -> None:
    loop = SimLoop()
    flows: dict[str, TokenFlow] = {}
    sagging = ThroughputMonitor(loop, lambda: flows)
    handle_facts(sagging, [TokenGaps("m", "a", SAGS)])
    flows["b"] = TokenFlow()
    handle_facts(sagging, [TokenGaps("m", "a", SAGS)])
    assert flows["b"].load_factor(0.0) == 1.0
    loop.close()
