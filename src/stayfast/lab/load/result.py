"""The result of a run, as statistics, files and reports read it: one `Result` for each target, or each step of a sweep.

Samples are one row a request, stored as columns, so a million rows take 100 MB instead of 1 GB. All instants are seconds
from the run's zero; NaN means "did not happen". `at_s` is the intended start (t0), `sent_s` the actual send (ts), `first_s`
the first non-empty generated piece (t1), `last_s` the last one (tn), `ended_s` the end of the stream (te). `sent_s` is after
the connection is open; the time to open a new one is `connect_s`, and only counts in times from t0.

Gaps between chunks are a hundred times as many as requests, so they are counted in buckets that grow by `GROWTH`. A bucket
is represented by its geometric middle, so a quantile is off by at most sqrt(GROWTH) - 1 = 1 %. Gaps of 1 us and less
(several chunks in one read) share one bucket with value 0. Time bins double in width when there are more than `MAX_BINS`:
memory is bounded for any length of run.

Goodput: `good = success and complete (per protocol) and every SLO met`, as a rate and as a share of the *offered* requests.
Errors, time-outs, 429 and truncated streams are not good. A missing value (tpot of an answer of one token) fails an SLO on
it: an upstream that answers with one token must not look perfect.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, isnan, log, nan
from typing import Any

import msgspec


class Error(StrEnum):
    """Why a request failed; NONE for a success."""

    NONE = ""
    UNSENT = "unsent"  # the client could not send it; counts as a failed request at its t0
    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    STATUS = "status"  # any status but 200 and 429
    RATE_LIMITED = "rate_limited"  # 429
    STREAM_ERROR = "stream_error"  # an error event inside the answer
    TRUNCATED = "truncated"  # the stream ended without the protocol's own end
    MALFORMED = "malformed"
    EMPTY = "empty"  # complete, but without text, reasoning or tool arguments


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One request."""

    number: int
    at_s: float
    sent_s: float = nan
    headers_s: float = nan  # the response headers arrived
    first_s: float = nan
    last_s: float = nan
    ended_s: float = nan
    n_input: int = 0
    n_output: int = 0  # by the answer's usage, else the number of chunks; see `Result.counted_by`
    n_chunks: int = 0  # chunks with content
    gap_max_s: float = nan
    connect_s: float = nan  # time to open a connection (DNS, TCP, TLS); NaN: reused
    shown_s: float = nan  # the first piece that is not reasoning
    status: int = 0  # 0: no answer
    error: Error = Error.NONE
    n_upstream_attempts: int = 0  # 0: unknown
    server_timing: str = ""  # the header's value
    excerpt: str = ""  # not a column: start of the first failed body, without keys, or the connection error

    @property
    def lateness_s(self) -> float:
        """The client's own delay: ts - t0 minus the time to open a connection. NaN: never sent."""
        return lateness_s(self.at_s, self.sent_s, self.connect_s)


def lateness_s(at_s: float, sent_s: float, connect_s: float) -> float:
    """At least 0: a reused connection that closed is replaced after ts."""
    late_s = sent_s - at_s - (0.0 if isnan(connect_s) else connect_s)
    return 0.0 if late_s < 0 else late_s


_FLOATS = ("at_s", "sent_s", "headers_s", "first_s", "last_s", "ended_s", "gap_max_s", "connect_s", "shown_s")
_INTS = ("number", "n_input", "n_output", "n_chunks", "status", "n_upstream_attempts")


class Samples:
    """Columns of samples, in the order in which the answers ended."""

    def __init__(self) -> None:
        self.floats: dict[str, array[float]] = {name: array("d") for name in _FLOATS}
        self.ints: dict[str, array[int]] = {name: array("q") for name in _INTS}
        self.errors: list[Error] = []
        self.server_timings: list[str] = []

    def add(self, sample: Sample) -> None:
        for name, column in self.floats.items():
            column.append(getattr(sample, name))
        for name, numbers in self.ints.items():
            numbers.append(getattr(sample, name))
        self.errors.append(sample.error)
        self.server_timings.append(sample.server_timing)

    def __len__(self) -> int:
        return len(self.errors)

    def __iter__(self) -> Iterator[Sample]:
        for row in range(len(self)):
            yield self[row]

    def __getitem__(self, row: int) -> Sample:
        fields: dict[str, Any] = {name: column[row] for name, column in self.floats.items()}
        fields |= {name: numbers[row] for name, numbers in self.ints.items()}
        return Sample(**fields, error=self.errors[row], server_timing=self.server_timings[row])


GROWTH = 1.02
LOWEST_S = 1e-6
MAX_BINS = 512
_LOG_GROWTH = log(GROWTH)
_OFFSET = log(LOWEST_S)


def bucket_number(gap_s: float) -> int:
    """The number of the bucket: 0 up to `LOWEST_S`, then one for each factor of `GROWTH`."""
    return 0 if gap_s <= LOWEST_S else 1 + int((log(gap_s) - _OFFSET) / _LOG_GROWTH)


def bucket_middle_s(bucket: int) -> float:
    """The geometric middle of a bucket."""
    return 0.0 if bucket == 0 else float(LOWEST_S * GROWTH ** (bucket - 0.5))


class GapCounts:
    """Gaps counted by time bin and bucket. Owned by one task."""

    __slots__ = ("bin_s", "bins")

    def __init__(self, bin_s: float = 0.125) -> None:
        if bin_s <= 0:
            raise ValueError(f"bin_s must be above 0, is {bin_s}")
        self.bin_s = bin_s
        self.bins: dict[int, dict[int, int]] = {}  # time bin -> bucket -> count

    def add(self, at_s: float, gap_s: float) -> None:
        """Count one gap that ended at `at_s` seconds of the run."""
        number = int(at_s / self.bin_s)
        while number >= MAX_BINS:
            self._double_bin_width()
            number //= 2
        counts = self.bins.setdefault(number, {})
        bucket = bucket_number(gap_s)
        counts[bucket] = counts.get(bucket, 0) + 1

    def sum_by_bucket(self) -> dict[int, int]:
        """Counts by bucket over the whole run, in rising order of bucket."""
        total: dict[int, int] = {}
        for counts in self.bins.values():
            _add_counts(total, counts)
        return dict(sorted(total.items()))

    def __len__(self) -> int:
        return sum(sum(counts.values()) for counts in self.bins.values())

    def _double_bin_width(self) -> None:
        self.bin_s *= 2
        halves, self.bins = self.bins, {}
        for number, counts in halves.items():
            _add_counts(self.bins.setdefault(number // 2, {}), counts)


def _add_counts(total: dict[int, int], counts: dict[int, int]) -> None:
    for bucket, n in counts.items():
        total[bucket] = total.get(bucket, 0) + n


BOUNDED = ("ttft", "ttft_sched", "tpot", "gap_max", "e2e", "e2e_sched")
_TERM = re.compile(r"([a-z_0-9]+)\s*[:<=]\s*([0-9.]+)\s*(ms|s)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoadSlo:
    """Bounds in seconds for each request; None: no bound. Metrics: `stats.DEFINITIONS`."""

    ttft_s: float | None = None
    ttft_sched_s: float | None = None
    tpot_s: float | None = None
    gap_max_s: float | None = None
    e2e_s: float | None = None
    e2e_sched_s: float | None = None

    def __post_init__(self) -> None:
        for name, bound_s in self.bounds().items():
            if not isfinite(bound_s) or bound_s <= 0:
                raise ValueError(f"an SLO's {name} must be above 0 s, is {bound_s}")

    def bounds(self) -> dict[str, float]:
        """Metric -> bound in seconds, for bounds that are set."""
        values = {name: getattr(self, f"{name}_s") for name in BOUNDED}
        return {name: bound_s for name, bound_s in values.items() if bound_s is not None}


def parse_slo(text: str) -> LoadSlo:
    """Read "ttft:500ms e2e:5s". The unit is required, because some tools read a bare number as ms and others as seconds.
    Raises ValueError with the wrong term and the expected form."""
    bounds: dict[str, float] = {}
    for term in text.replace(",", " ").split():
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"SLO {term!r}: expected METRIC:TIME such as ttft:500ms or e2e:5s")
        name, number, unit = match[1].lower(), match[2], match[3]
        if name not in BOUNDED:
            raise ValueError(f"SLO {term!r}: no metric {name!r}; known: {', '.join(BOUNDED)}")
        if unit is None:
            raise ValueError(f"SLO {term!r}: add the unit, {number}ms or {number}s")
        if name in bounds:
            raise ValueError(f"SLO {term!r}: {name} is bounded twice")
        try:
            bounds[name] = float(number) * (1e-3 if unit.lower() == "ms" else 1.0)
        except ValueError as why:
            raise ValueError(f"SLO {term!r}: {number!r} is not a number") from why
    return LoadSlo(**{f"{name}_s": bound_s for name, bound_s in bounds.items()})


class Goodput(msgspec.Struct, frozen=True):
    """How many of the offered requests were good, and why the others were not. One request may miss several SLOs."""

    slo: LoadSlo
    n_offered: int
    n_good: int
    misses: dict[str, int]  # cause -> requests: an error's name, a metric over its SLO, or "tpot (null)"
    is_good: bytearray  # for each row, 1 or 0

    @property
    def share(self) -> float:
        """Share of the offered requests; NaN without any."""
        return self.n_good / self.n_offered if self.n_offered else nan


def evaluate_goodput(columns: Mapping[str, Iterable[float]], errors: Sequence[Error], slo: LoadSlo) -> Goodput:
    """Evaluate each row. `columns`: for each metric bounded by `slo`, its value in every row (NaN: missing)."""
    is_good = bytearray(not error for error in errors)
    misses: dict[str, int] = {str(error): n for error, n in Counter(errors).items() if error}
    for name, bound_s in slo.bounds().items():
        n_over = n_null = 0
        for row, value_s in enumerate(columns[name]):
            if errors[row] or value_s <= bound_s:
                continue
            n_null += isnan(value_s)
            n_over += not isnan(value_s)
            is_good[row] = 0
        misses.update({cause: n for cause, n in ((name, n_over), (f"{name} (null)", n_null)) if n})
    return Goodput(slo, len(errors), sum(is_good), misses, is_good)


class Mode(StrEnum):
    """How the load was generated. Closed-loop figures omit the queueing that a slow target causes."""

    OPEN = "open loop"
    CLOSED = "closed loop"


class Subject(msgspec.Struct, frozen=True):
    """The system under test. These texts are untrusted: reports escape them."""

    name: str  # from the command line, else the URL's host
    url: str
    dialect: str
    model: str


class ClientHealth(msgspec.Struct, frozen=True):
    """The client's own delays. `verdict`: why the run is invalid; empty for a valid run."""

    lateness_p50_s: float = 0.0  # of `Sample.lateness_s`
    lateness_p99_s: float = 0.0
    lateness_max_s: float = 0.0
    loop_lag_p50_s: float = 0.0
    loop_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    requested_rps: float = 0.0  # by the schedule; 0 in a closed loop
    achieved_rps: float = 0.0
    cpu_share: float = 0.0  # of one core
    verdict: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the figures are the target's, not the client's."""
        return not self.verdict


class Result(msgspec.Struct, kw_only=True):
    """One run, without its warm-up."""

    label: str  # short, unique in a report: "gateway", "direct", "c=32"
    subject: Subject
    command: str  # the command line, without keys
    machine: dict[str, str]  # property -> value, for the report
    began_at_wall: float  # Unix seconds
    seed: int
    mode: Mode
    workload: dict[str, str]  # property -> value: arrivals, lengths, prompts, warm-up, ...
    duration_s: float  # of the measured part; rates are divided by it
    offered_rps: float  # by the schedule; 0 in a closed loop
    n_concurrent: int = 0  # callers of a closed loop; 0 in an open loop
    is_virtual: bool = False  # virtual time, without sockets
    counted_by: str = "usage"  # how output tokens were counted: usage, chunks, or both
    samples: Samples
    gaps: GapCounts
    health: ClientHealth = msgspec.field(default_factory=ClientHealth)
    slo: LoadSlo = msgspec.field(default_factory=LoadSlo)
    notes: tuple[str, ...] = ()
