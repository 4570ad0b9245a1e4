"""Completion times of whole batches in the last hour, for a snapshot's `JobRow.batch_s` and `batch_deviation`."""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from stayfast.core.clock import Clock
from stayfast.core.events import BatchEnded
from stayfast.core.snapshot import Spread

HOUR_S = 3600.0
MAX_BATCHES = 1000  # the newest ones
MIN_FOR_DEVIATION = 3
Times = tuple[tuple[str, float], ...]  # route and seconds of each batch


class BatchTimes:
    """Of one process. For one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: deque[tuple[float, str, float]] = deque(maxlen=MAX_BATCHES)

    def consume(self, facts: Sequence[BatchEnded]) -> None:
        self._ended.extend((self._clock.now(), fact.route, fact.seconds) for fact in facts)

    def collect(self) -> Times:
        since = self._clock.now() - HOUR_S
        return tuple((route, seconds) for at, route, seconds in self._ended if at >= since)


def merge_batch_times(parts: Iterable[Times]) -> dict[str, tuple[Spread, float | None]]:
    """By route, from all processes: the spread, and the standard deviation over the mean (None: under 3 batches)."""
    seconds: dict[str, list[float]] = {}
    for part in parts:
        for route, one in part:
            seconds.setdefault(route, []).append(one)
    return {route: (_spread(sorted(values)), _deviation(values)) for route, values in seconds.items()}


def _spread(values: list[float]) -> Spread:
    """Percentiles by the nearest rank."""
    p50, p95, p99 = (values[-(-len(values) * percent // 100) - 1] for percent in (50, 95, 99))
    return Spread(len(values), p50, p95, p99, values[-1])


def _deviation(values: list[float]) -> float | None:
    mean = fmean(values)
    return pstdev(values) / mean if len(values) >= MIN_FOR_DEVIATION and mean > 0 else None
