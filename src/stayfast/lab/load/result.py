"""What a run hands to statistics, files and reports: one `Result` a target (and, in a sweep, one a step).

Samples are a row a request, kept as columns so that a million rows are 100 MB and not a gigabyte. All instants are seconds
from the run's zero. Words (docs say them to the letter): `at_s` is the *intended* start (t0), `sent_s` the actual send (ts),
`first_s` the first non-empty generated piece (t1), `last_s` the last such piece (tn), `ended_s` the end of the stream (te).
NaN stands for "never happened". `sent_s` is after the connection is there: what a new one took is `connect_s`, and counts
from t0 only.

Gaps between chunks are a hundred times more than requests, so they are counted by time, not kept. Buckets grow by `GROWTH`;
a bucket answers with its geometric middle, so a quantile is off by at most sqrt(GROWTH) - 1 = 1 %. Gaps of 1 us and less
(several chunks in one read) are one bucket that answers 0. Time bins double in width when there would be more than
`MAX_BINS` of them: memory is bounded whatever the run's length. Sums merge exactly.

Goodput: `good = success and complete (per protocol) and every SLO met`, as a rate and as a share of what was *offered*.
Errors, time-outs, 429 and truncated streams are not good. A value that does not exist (tpot of an answer of one token) does
not meet an SLO on it, unless `null_passes` says so: an upstream that answers one token must not look perfect.
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
    """Why an answer is not good; the empty one is for whole answers."""

    NONE = ""
    UNSENT = "unsent"  # the client could not send it: a failed request at its t0, never a missing one
    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    STATUS = "status"  # any 4xx or 5xx but 429
    RATE_LIMITED = "rate_limited"  # 429
    STREAM_ERROR = "stream_error"  # an error event inside the answer
    TRUNCATED = "truncated"  # the stream ended without the protocol's own end
    MALFORMED = "malformed"
    EMPTY = "empty"  # whole by the protocol, and nothing was generated: no text, no reasoning, no arguments


class Sample(msgspec.Struct, frozen=True, gc=False):
    number: int
    at_s: float
    sent_s: float = nan
    headers_s: float = nan  # the answer's head arrived
    first_s: float = nan
    last_s: float = nan
    ended_s: float = nan
    n_input: int = 0
    n_output: int = 0  # by the answer's own usage; else counted chunks, see `Samples.counted_by`
    n_chunks: int = 0  # content-bearing
    gap_max_s: float = nan
    connect_s: float = nan  # how long a new connection took (DNS, TCP, TLS); NaN: one was there
    shown_s: float = nan  # the first such piece that is not reasoning
    status: int = 0  # 0: no answer
    error: Error = Error.NONE
    n_upstream_attempts: int = 0  # 0: not known
    server_timing: str = ""  # as it came
    excerpt: str = ""  # no column: of the first failed answer's body, without keys; of no connection: why not

    @property
    def lateness_s(self) -> float:
        """What the client itself added: ts - t0 less what a new connection took. NaN: never sent."""
        return lateness_s(self.at_s, self.sent_s, self.connect_s)


def lateness_s(at_s: float, sent_s: float, connect_s: float) -> float:
    """Not less than 0: a kept connection that died is replaced after ts."""
    late_s = sent_s - at_s - (0.0 if isnan(connect_s) else connect_s)
    return 0.0 if late_s < 0 else late_s


_FLOATS = ("at_s", "sent_s", "headers_s", "first_s", "last_s", "ended_s", "gap_max_s", "connect_s", "shown_s")
_INTS = ("number", "n_input", "n_output", "n_chunks", "status", "n_upstream_attempts")


class Samples:
    """Columns of samples, in the order in which they ended."""

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


def bucket_of(gap_s: float) -> int:
    """The bucket's number: 0 for up to `LOWEST_S`, then one for each factor of `GROWTH`."""
    return 0 if gap_s <= LOWEST_S else 1 + int((log(gap_s) - _OFFSET) / _LOG_GROWTH)


def middle_s(bucket: int) -> float:
    """The value that stands for a bucket: its geometric middle."""
    return 0.0 if bucket == 0 else float(LOWEST_S * GROWTH ** (bucket - 0.5))


class GapCounts:
    """Counts by time bin and bucket. One task owns it."""

    __slots__ = ("bin_s", "bins")

    def __init__(self, bin_s: float = 0.125) -> None:
        if bin_s <= 0:
            raise ValueError(f"bin_s must be above 0, is {bin_s}")
        self.bin_s = bin_s
        self.bins: dict[int, dict[int, int]] = {}  # time bin -> bucket -> count

    def add(self, at_s: float, gap_s: float) -> None:
        """Count one gap that ended at `at_s` seconds of the run."""
        number = int(at_s / self.bin_s)
        counts = self.bins.get(number)
        if counts is None:
            if number >= MAX_BINS:
                while number >= MAX_BINS:
                    self._widen()
                    number //= 2
                return self.add(at_s, gap_s)
            counts = self.bins[number] = {}
        bucket = bucket_of(gap_s)
        counts[bucket] = counts.get(bucket, 0) + 1
        return None

    def merge(self, other: "GapCounts") -> None:
        """Count what `other` counted as well. The bin widths must be a power of two apart."""
        while self.bin_s < other.bin_s:
            self._widen()
        factor = self.bin_s / other.bin_s
        for number, counts in other.bins.items():
            _sum_into(self.bins.setdefault(int(number / factor), {}), counts)

    def pooled(self) -> dict[int, int]:
        """Counts by bucket over the whole run, in rising order of bucket."""
        total: dict[int, int] = {}
        for counts in self.bins.values():
            _sum_into(total, counts)
        return dict(sorted(total.items()))

    def __len__(self) -> int:
        return sum(sum(counts.values()) for counts in self.bins.values())

    def _widen(self) -> None:
        self.bin_s *= 2
        halves, self.bins = self.bins, {}
        for number, counts in halves.items():
            _sum_into(self.bins.setdefault(number // 2, {}), counts)


def _sum_into(total: dict[int, int], counts: dict[int, int]) -> None:
    for bucket, n in counts.items():
        total[bucket] = total.get(bucket, 0) + n


BOUNDED = ("ttft", "ttft_sched", "tpot", "gap_max", "e2e", "e2e_sched")
_TERM = re.compile(r"([a-z_0-9]+)\s*[:<=]\s*([0-9.]+)\s*(ms|s)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoadSlo:
    """Bounds in seconds, each for one request; None does not bound. Definitions of the words: `stats.DEFINITIONS`."""

    ttft_s: float | None = None
    ttft_sched_s: float | None = None
    tpot_s: float | None = None
    gap_max_s: float | None = None
    e2e_s: float | None = None
    e2e_sched_s: float | None = None
    null_passes: bool = False

    def __post_init__(self) -> None:
        for name, bound_s in self.bounds().items():
            if not isfinite(bound_s) or bound_s <= 0:
                raise ValueError(f"an SLO's {name} must be above 0 s, is {bound_s}")

    def bounds(self) -> dict[str, float]:
        """Metric name -> bound in seconds, of those that are set."""
        values = {name: getattr(self, f"{name}_s") for name in BOUNDED}
        return {name: bound_s for name, bound_s in values.items() if bound_s is not None}


def parse_slo(text: str, *, null_passes: bool = False) -> LoadSlo:
    """Read "ttft:500ms e2e:5s". A unit must be given: other tools read a bare number as ms, others as seconds. Raises
    ValueError saying which term is wrong and what is expected."""
    bounds: dict[str, float] = {}
    for term in text.replace(",", " ").split():
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"SLO {term!r}: expected METRIC:TIME such as ttft:500ms or e2e:5s")
        name, number, unit = match[1].lower(), match[2], match[3]
        if name not in BOUNDED:
            raise ValueError(f"SLO {term!r}: no metric {name!r}; known: {', '.join(BOUNDED)}")
        if unit is None:
            raise ValueError(f"SLO {term!r}: say the unit, {number}ms or {number}s")
        if name in bounds:
            raise ValueError(f"SLO {term!r}: {name} is bounded twice")
        try:
            bounds[name] = float(number) * (1e-3 if unit.lower() == "ms" else 1.0)
        except ValueError as why:
            raise ValueError(f"SLO {term!r}: {number!r} is not a number") from why
    given: dict[str, Any] = {f"{name}_s": bound_s for name, bound_s in bounds.items()}
    return LoadSlo(**given, null_passes=null_passes)


class Goodput(msgspec.Struct, frozen=True):
    """How many of the offered requests were good, and why the others were not. One request can miss several SLOs."""

    slo: LoadSlo
    n_offered: int
    n_good: int
    misses: dict[str, int]  # cause -> requests: an error's name, a metric over its SLO, or "tpot (null)"
    is_good: bytearray  # a row's verdict, 1 or 0

    @property
    def share(self) -> float:
        """Of the offered requests; NaN where there were none."""
        return self.n_good / self.n_offered if self.n_offered else nan


def judge(columns: Mapping[str, Iterable[float]], errors: Sequence[Error], slo: LoadSlo) -> Goodput:
    """Judge each row. `columns`: for each metric that `slo` bounds, its value for every row (NaN: does not exist)."""
    is_good = bytearray(not error for error in errors)
    misses: dict[str, int] = {str(error): n for error, n in Counter(errors).items() if error}
    for name, bound_s in slo.bounds().items():
        n_over = n_null = 0
        for row, value_s in enumerate(columns[name]):
            if errors[row] or value_s <= bound_s:
                continue
            is_null = isnan(value_s)
            if is_null and slo.null_passes:
                continue
            n_null += is_null
            n_over += not is_null
            is_good[row] = 0
        misses.update({cause: n for cause, n in ((name, n_over), (f"{name} (null)", n_null)) if n})
    return Goodput(slo, len(errors), sum(is_good), misses, is_good)


class Mode(StrEnum):
    """How the load was made. Closed-loop figures omit the queueing that a slow target causes; reports say so."""

    OPEN = "open loop"
    CLOSED = "closed loop"


class Subject(msgspec.Struct, frozen=True):
    """What was measured. Every text here may be anything: reports escape it."""

    name: str  # as given on the command line, else the URL's host
    url: str
    dialect: str
    model: str


class ClientHealth(msgspec.Struct, frozen=True):
    """What the client measured of itself. `verdict` lists why the run is invalid; an empty one is a valid run."""

    lateness_p50_s: float = 0.0  # ts - t0, less what a new connection took
    lateness_p99_s: float = 0.0
    lateness_max_s: float = 0.0
    loop_lag_p50_s: float = 0.0
    loop_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    requested_rps: float = 0.0  # what the schedule asked for; 0 in a closed loop
    achieved_rps: float = 0.0  # what was sent
    cpu_share: float = 0.0  # of one core, over the run
    verdict: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the figures are the target's and not the client's."""
        return not self.verdict


class Result(msgspec.Struct, kw_only=True):
    """One run. Instants in `samples` and `gaps` are seconds from the run's zero; warm-up is not among them."""

    label: str  # short and unique among the results of one report: "gateway", "direct", "c=32"
    subject: Subject
    command: str  # what to type to run it again; never with a key in it
    machine: dict[str, str]  # what it is -> value, as the report should print it
    began_at_wall: float  # Unix seconds
    seed: int
    mode: Mode
    workload: dict[str, str]  # what it is -> value: arrivals, lengths, prompts, warm-up, ...
    duration_s: float  # of the measured part: the divisor of every rate
    offered_rps: float  # by the schedule; 0 in a closed loop
    n_concurrent: int = 0  # 0 in an open loop, which has no cap
    is_virtual: bool = False  # in virtual time: nothing was sent over a socket
    counted_by: str = "usage"  # how output tokens were counted: usage, chunks, or both where answers differed
    samples: Samples
    gaps: GapCounts
    health: ClientHealth = msgspec.field(default_factory=ClientHealth)
    slo: LoadSlo = msgspec.field(default_factory=LoadSlo)
    notes: tuple[str, ...] = ()
