"""Facts of requests and attempts, a frozen clock, and the series that metrics make of facts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.events import AttemptDone, RequestDone, Stall
from stayfast.core.stage_times import StageDone, StageTimes
from stayfast.core.types import Api, Outcome, Stage, Usage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.counters import Labels
from stayfast.observe.metrics.definitions import Family
from stayfast.observe.snapshot.traffic import TrafficSink


@dataclass
class FrozenClock:
    """A clock whose time does not pass; the default is the end of the request of `done()`."""

    now_s: float = 1.5
    wall_s: float = 0.0

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.wall_s

    def cpu(self) -> float:
        return 0.0


def attempt(**changes: object) -> AttemptDone:
    """A successful attempt of 0.4 s at upstream u with its first token after 0.1 s."""
    fields: dict[str, Any] = {
        "route": "m", "upstream": "u", "began_at": 1.1, "ended_at": 1.5, "outcome": Outcome.SUCCESS, "ttft_s": 0.1,
        "usage": Usage(10, 20, 5), "cost_usd": 0.25, "price": "own"}
    return AttemptDone(**{**fields, **changes})


def done(**changes: object) -> RequestDone:
    """A request of 0.5 s with its first token after 0.2 s. stages: instead of its `times`."""
    fields: dict[str, Any] = {
        "request_id": "r", "api": Api.CHAT, "route": "m", "model": "m", "stream": True, "status": 200, "accepted_at": 1.0,
        "ended_at": 1.5, "wall_at": 0.0, "stages": (StageDone(Stage.CALL, 1.0, 1.2, 10.0),), "upstream": "u", "ttft_s": 0.2,
        "usage": Usage(10, 20, 5), "tpot_s": 0.015, "queue_s": 0.001, "attempts": (attempt(),)}
    fields |= changes
    return RequestDone(times=to_times(fields.pop("stages"), fields["accepted_at"] + fields.get("total_s", 60.0)), **fields)


def all_stages(spent_s: Callable[[], float]) -> tuple[StageDone, ...]:
    """Every stage, one after the other."""
    instants = accumulate([spent_s() for _ in Stage], initial=1.0)
    return tuple([StageDone(stage, *times, 1.0) for stage, times in zip(Stage, pairwise(instants), strict=True)])


def to_times(stages: Sequence[StageDone], deadline_at: float) -> StageTimes:
    """The times of stages that follow each other."""
    ended = tuple([(one.stage, one.ended_at) for one in stages])
    ends = tuple([one.began_at + one.allowance_s for one in stages])
    return StageTimes(stages[0].began_at if stages else 0.0, ended, deadline_at, ends)


STAGES = (StageDone(Stage.ADMIT, 1.0, 1.1, 3.0), StageDone(Stage.CALL, 1.1, 3.6, 2.0), StageDone(Stage.RELAY, 3.6, 4.0, 0.5),
          StageDone(Stage.SETTLE, 4.0, 4.0, 0.0))
# A request of 3 s: the first attempt fails with 503, the second stalls, and the call stage exceeds its budget.
SLOW_RETRIED_REQUEST = done(
    ended_at=4.0, stages=STAGES, ttft_s=2.6, over_stage=Stage.CALL, total_s=3.0, upstream="v",
    attempts=(attempt(began_at=1.1, ended_at=1.9, ttft_s=None, outcome=Outcome.DROPPED, fault="status", upstream_status=503,
                      usage=None, cost_usd=None),
              attempt(upstream="v", began_at=2.0, ended_at=4.0, ttft_s=1.6, stalls=(Stall(3.7, 0.3),), n_attempt=2)))


def counting(*facts: Any, clock: Clock | None = None, **options: Any) -> MetricsSink:
    """Metrics that have consumed these facts."""
    clock = clock or FrozenClock()
    traffic = TrafficSink(clock)
    metrics = MetricsSink(clock, traffic, **options)
    for fact in facts:
        for consumer in (traffic, metrics):
            handle_facts(consumer, [fact])
    return metrics


def counted(metrics: MetricsSink, family: Family) -> dict[Labels, float]:
    """A counter's series, or the number of values in each series of a histogram."""
    if family.kind == "counter":
        return dict(metrics.totals.counters[family.name])
    return {labels: sum(one.counts) for labels, one in metrics.totals.histograms[family.name].items() if any(one.counts)}
