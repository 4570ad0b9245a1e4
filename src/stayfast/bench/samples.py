"""What one run measured: a row a request, kept as columns so that a million rows are 100 MB and not a gigabyte.

All instants are seconds from the run's zero. Words (docs say them to the letter): `at_s` is the *intended* start (t0),
`sent_s` the actual send (ts), `first_s` the first non-empty generated piece (t1), `last_s` the last such piece (tn),
`ended_s` the end of the stream (te). NaN stands for "never happened". `sent_s` is after the connection is there: what a
new one took is `connect_s`, and counts from t0 only.
"""

from array import array
from collections.abc import Iterator
from enum import StrEnum
from math import isnan, nan
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
    """One request as it went."""

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
    """See `Sample`. Not less than 0: a kept connection that died is replaced after ts."""
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
        """Append one row."""
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
