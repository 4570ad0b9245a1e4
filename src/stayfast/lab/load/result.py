"""What a run hands to statistics, files and reports: one `Result` a target (and, in a sweep, one a step)."""

from enum import StrEnum

import msgspec

from stayfast.lab.load.goodput import Slo
from stayfast.lab.load.samples import Gaps, Samples


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


class Health(msgspec.Struct, frozen=True):
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
    gaps: Gaps
    health: Health = msgspec.field(default_factory=Health)
    slo: Slo = msgspec.field(default_factory=Slo)
    notes: tuple[str, ...] = ()
