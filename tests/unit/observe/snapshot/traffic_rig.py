"""Random requests, and what they add up to."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from stayfast.core.events import RequestDone
from stayfast.core.stage_times import StageDone
from stayfast.core.types import Outcome, Stage, Usage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.snapshot.parts import SeriesKey, TrafficPart
from stayfast.observe.snapshot.traffic import ClosedSlot, TrafficSink
from tests.unit.observe.fact_rig import FrozenClock, attempt, done

TIMES = st.floats(0.001, 60.0)


@st.composite
def requests(draw: st.DrawFn) -> RequestDone:
    """One of a few routes and upstreams, with any result."""
    ttft_s, upstream = draw(st.none() | TIMES), draw(st.sampled_from(["u", "v", None]))
    status = draw(st.sampled_from([200, 200, 200, 429, 400, 499, 503, 504]))
    calls = [attempt(route="m", upstream=draw(st.sampled_from(["u", "v"])), ttft_s=draw(st.none() | TIMES),
                     outcome=Outcome.SUCCESS, fault=draw(st.sampled_from([None, "timeout"])),
                     upstream_status=draw(st.sampled_from([None, 503])), is_hedge=draw(st.booleans()),
                     role=draw(st.sampled_from(["first", "hedge", "retry"])), cost_usd=draw(st.sampled_from([None, 0.25])),
                     usage=draw(st.sampled_from([None, Usage(10, 20, 5)]))) for _ in range(draw(st.integers(0, 3)))]
    return done(route=draw(st.sampled_from(["m", "k", None])), upstream=upstream, ttft_s=ttft_s, status=status,
                ended_at=1.0 + draw(TIMES), stream=draw(st.booleans()), tpot_s=draw(st.none() | TIMES),
                error=None if status < 400 else "total_s_exceeded", attempts=tuple(calls), n_chunks=draw(st.integers(0, 2)),
                shed=draw(st.sampled_from([None, "quota"])), cache=draw(st.sampled_from([None, "hit", "miss"])),
                over_stage=draw(st.sampled_from([None, Stage.CALL])), saved_usd=0.5, queue_s=draw(TIMES),
                stages=(StageDone(Stage.ADMIT, 1.0, 1.125, 1.0), StageDone(Stage.CALL, 1.125, 1.125 + draw(TIMES), 1.0)))


def closed(facts: Iterable[Any], at: float = 101.0, **options: Any) -> list[ClosedSlot]:
    """The closed slots of a sink that has consumed facts, one by one at one instant."""
    clock = FrozenClock(at)
    sink = TrafficSink(clock, **options)
    for fact in facts:
        handle_facts(sink, [fact])
    clock.now_s += 5.0
    return sink.closed_since(-1)


def by_series(slots: Iterable[ClosedSlot]) -> dict[SeriesKey, TrafficPart]:
    """The sums over slots."""
    whole: dict[SeriesKey, TrafficPart] = {}
    for slot in slots:
        for route, upstream, part in slot.series:
            whole.setdefault((route, upstream), TrafficPart()).merge(part)
    return whole
