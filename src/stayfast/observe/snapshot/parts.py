"""Traffic of one route and upstream in one span of time, as counts that can be added over spans and over workers.

Times are histograms of `policy.histogram`: counts by bucket, so that sums lose nothing. Counts of times other than `ttft_s`
and `e2e_s` may be weighted (see `traffic`). `by_ttft` says where slow requests and usual ones spend their time: sums of the
seconds in each stage over the requests of one quarter of an octave of the time to the first token, 19 % wide. The stages
of the p99 are the means of the quarter that holds the p99, or of the nearest one with requests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import ceil
from typing import Any, Final, TypeVar

import msgspec

from stayfast.core.snapshot import Spread
from stayfast.core.types import Stage
from stayfast.policy.histogram import PER_OCTAVE, middle_of

STAGES = tuple(stage.value for stage in Stage)
BUCKETS_PER_QUARTER = PER_OCTAVE // 4
OTHER = "(other)"  # sums what has no row of its own; settings cannot use this name
Counts = dict[int, int]  # by bucket
K = TypeVar("K")
N = TypeVar("N", int, float)
SeriesKey = tuple[str, str]  # route, upstream; an empty upstream: none was called


class TrafficPart(msgspec.Struct, omit_defaults=True):
    """Counts of one series. The fields are those of `core.snapshot.TrafficRow`."""

    n: int = 0
    n_streamed: int = 0
    n_failed: int = 0
    n_rejected: int = 0
    n_shed: int = 0
    n_degraded: int = 0
    n_left: int = 0
    n_deadline: int = 0
    n_late: int = 0
    n_client_retries: int = 0
    n_attempts: int = 0
    n_retries: int = 0
    n_fallbacks: int = 0
    n_hedges: int = 0
    n_hedges_won: int = 0
    n_hedges_refused: int = 0
    n_stalls: int = 0
    n_truncated: int = 0
    n_input_tokens: int = 0
    n_cached_tokens: int = 0
    n_output_tokens: int = 0
    n_unpriced: int = 0
    saved_usd: float = 0.0
    over_stages: dict[str, int] = {}
    faults: dict[str, int] = {}
    cache: dict[str, int] = {}
    cost_usd: dict[str, float] = {}
    ttft_s: Counts = {}
    e2e_s: Counts = {}
    usable_s: Counts = {}
    tpot_s: Counts = {}
    gap_most_s: Counts = {}
    queue_s: Counts = {}
    own_s: Counts = {}
    attempt_s: Counts = {}  # first tokens of attempts, from their start
    stages_s: dict[str, Counts] = {}
    by_ttft: dict[int, list[float]] = {}  # by bucket // BUCKETS_PER_QUARTER: requests, seconds of each of STAGES

    def merge(self, other: "TrafficPart") -> None:
        self._add(other, 1)

    def subtract(self, other: "TrafficPart") -> None:
        """Remove what was merged before."""
        self._add(other, -1)

    def _add(self, other: "TrafficPart", sign: int) -> None:
        for name in NUMBERS:
            value = getattr(other, name)
            if value:
                setattr(self, name, getattr(self, name) + sign * value)
        for name in (*TABLES, *TIMES):
            counts = getattr(other, name)
            if counts:
                _add_counts(getattr(self, name), counts, sign)
        for stage, counts in other.stages_s.items():
            _add_counts(self.stages_s.setdefault(stage, {}), counts, sign)
            if not self.stages_s[stage]:
                del self.stages_s[stage]
        self._add_sums(other, sign)

    def _add_sums(self, other: "TrafficPart", sign: int) -> None:
        for quarter, sums in other.by_ttft.items():
            mine = self.by_ttft.get(quarter)
            total = [sign * value for value in sums] if mine is None else [
                one + sign * value for one, value in zip(mine, sums, strict=True)]
            if total[0]:
                self.by_ttft[quarter] = total
            else:
                self.by_ttft.pop(quarter, None)

    def without_details(self) -> "TrafficPart":
        """A part with what a frame shows; it shares tables and times with this one."""
        return TrafficPart(**{name: getattr(self, name) for name in (*NUMBERS, *TABLES, "ttft_s", "e2e_s", "attempt_s")})

    def coarse(self) -> "TrafficPart":
        """The same with 8 buckets an octave for sampled times. It shares the rest."""
        return msgspec.structs.replace(self, **{name: _coarsen(getattr(self, name)) for name in DETAIL_TIMES},
                                       stages_s={stage: _coarsen(counts) for stage, counts in self.stages_s.items()})

    def exact(self) -> "TrafficPart":
        """A part with what is never sampled; it shares tables and times with this one."""
        return TrafficPart(**{name: getattr(self, name) for name in (*NUMBERS, *TABLES, "ttft_s", "e2e_s")})

    def details(self) -> "TrafficPart":
        """The rest."""
        return TrafficPart(**{name: getattr(self, name) for name in DETAILS})


NOTHING: Final = TrafficPart()  # to compare with
NUMBERS = tuple(field.name for field in msgspec.structs.fields(TrafficPart) if field.type in (int, float))
TABLES = ("over_stages", "faults", "cache", "cost_usd")
DETAIL_TIMES = ("usable_s", "tpot_s", "gap_most_s", "queue_s", "own_s", "attempt_s")
TIMES = ("ttft_s", "e2e_s", *DETAIL_TIMES)
DETAILS = (*DETAIL_TIMES, "stages_s", "by_ttft")
_LEAST_USD = 1e-12  # a rest of float subtraction is no cost


def _add_counts(mine: dict[K, Any], theirs: Mapping[K, float], sign: int) -> None:
    for key, n in theirs.items():
        total = mine.get(key, 0) + sign * n
        if total > _LEAST_USD:
            mine[key] = total
        else:
            mine.pop(key, None)


def _coarsen(counts: Counts) -> Counts:
    coarse: Counts = {}
    for bucket, n in counts.items():
        middle = bucket // 4 * 4 + 2
        coarse[middle] = coarse.get(middle, 0) + n
    return coarse


def merge_parts(parts: Iterable[TrafficPart]) -> TrafficPart:
    """Their sum, as a new part."""
    whole = TrafficPart()
    for part in parts:
        whole.merge(part)
    return whole


def merge_shown(parts: Sequence[TrafficPart]) -> TrafficPart:
    """The sum of what a frame shows, each second: all else is empty, unless there is one part, which is returned itself.

    The counts of the first part are copied whole, so the largest one belongs there.
    """
    return reduce(_add_shown, parts) if parts else TrafficPart()


def _add_shown(one: TrafficPart, other: TrafficPart) -> TrafficPart:
    return TrafficPart(
        n=one.n + other.n, n_failed=one.n_failed + other.n_failed, n_shed=one.n_shed + other.n_shed,
        n_degraded=one.n_degraded + other.n_degraded, n_late=one.n_late + other.n_late,
        n_attempts=one.n_attempts + other.n_attempts, n_hedges=one.n_hedges + other.n_hedges,
        n_stalls=one.n_stalls + other.n_stalls, n_output_tokens=one.n_output_tokens + other.n_output_tokens,
        faults=add_counts(one.faults, other.faults), cache=add_counts(one.cache, other.cache),
        cost_usd=add_counts(one.cost_usd, other.cost_usd), ttft_s=add_counts(one.ttft_s, other.ttft_s),
        e2e_s=add_counts(one.e2e_s, other.e2e_s), attempt_s=add_counts(one.attempt_s, other.attempt_s))


def add_counts(one: dict[K, N], other: Mapping[K, N]) -> dict[K, N]:
    """Their sum, as a new dict; `one` itself if there is nothing to add."""
    if not other:
        return one
    whole = dict(one)
    for key, n in other.items():
        whole[key] = whole[key] + n if key in whole else n
    return whole


def spread_of(counts: Counts) -> Spread:
    """Percentiles of a histogram."""
    n = sum(counts.values())
    if not n:
        return Spread()
    buckets = sorted(counts)
    p50, p95, p99 = _values_at(counts, buckets, (ceil(0.5 * n), ceil(0.95 * n), ceil(0.99 * n)))
    return Spread(n, p50, p95, p99, middle_of(buckets[-1]))


def _values_at(counts: Counts, buckets: list[int], ranks: tuple[int, ...]) -> Iterator[float]:
    """The values of ascending ranks."""
    places = iter(buckets)
    bucket = next(places)
    n_passed = counts[bucket]
    for rank in ranks:
        while n_passed < rank:
            bucket = next(places)
            n_passed += counts[bucket]
        yield middle_of(bucket)


def count_above(counts: Counts, bucket: int) -> int:
    """Values in higher buckets."""
    return sum(n for one, n in counts.items() if one > bucket)


def stages_near(by_ttft: Mapping[int, list[float]], ttft_bucket: int | None) -> dict[str, float]:
    """Mean seconds by stage over the requests whose time to the first token is near that of a bucket. Stages under 1 us are
    left out.
    """
    if ttft_bucket is None or not by_ttft:
        return {}
    quarter = ttft_bucket // BUCKETS_PER_QUARTER
    n, *seconds = by_ttft[min(by_ttft, key=lambda one: (abs(one - quarter), one))]
    return {stage: spent_s / n for stage, spent_s in zip(STAGES, seconds, strict=True) if spent_s > 1e-6 * n}


def bucket_at(counts: Counts, q: float) -> int | None:
    """The bucket of a quantile; None: there are no values."""
    rank = max(1, ceil(q * sum(counts.values())))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            return bucket
    return None
