"""What one worker contributes to snapshots and frames, and how the parts of all workers become one."""

from collections.abc import Iterable

import msgspec

from stayfast.core.findings import Finding
from stayfast.core.snapshot import FleetRow
from stayfast.observe.snapshot.parts import Counts, SeriesKey, TrafficPart
from stayfast.observe.snapshot.probes import ProbePart
from stayfast.observe.snapshot.prompt_versions import PromptVersionPart
from stayfast.observe.snapshot.traffic import ClosedSlot, LiveSeries
from stayfast.policy.resilience.breaker import OPENED_ELSEWHERE

BREAKER_STATES = ("closed", "half_open", "open")  # ascending


class PrefixGauges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answers of an upstream on routes with prefix affinity. Tokens, as they fade. n_cached: None: no usage reports them."""

    n_answers: int = 0
    n_input: float = 0.0
    n_believed: float = 0.0
    n_cached: float | None = None


def merge_prefixes(one: PrefixGauges, other: PrefixGauges) -> PrefixGauges:
    """The sum; without those whose answers have shown no cached tokens, where the other's have."""
    if one.n_cached is None or other.n_cached is None:
        if one.n_cached is not None or other.n_cached is not None:
            return one if other.n_cached is None else other
        return PrefixGauges(one.n_answers + other.n_answers, one.n_input + other.n_input, one.n_believed + other.n_believed)
    return PrefixGauges(one.n_answers + other.n_answers, one.n_input + other.n_input, one.n_believed + other.n_believed,
                        one.n_cached + other.n_cached)


class UpstreamGauges(msgspec.Struct, omit_defaults=True):
    """One upstream as one worker has it. The fields are those of `core.snapshot.UpstreamRow`."""

    name: str
    is_proven: bool = False
    in_flight: int = 0
    waiting: int = 0
    limit: float | None = None
    limit_why: str = ""
    breaker: str = "closed"
    breaker_why: str = ""
    n_breaker_changes_1h: int = 0
    suspended_s: float = 0.0
    suspended_why: str = ""
    phase: str = ""
    phase_why: str = ""
    cold_start_s: float | None = None
    prefix: PrefixGauges = PrefixGauges()

    def merge(self, other: "UpstreamGauges") -> None:
        """Add another worker's. Requests add up; a limit is of all workers, so the largest counts; of breakers and
        suspensions the worst counts, with the reason in the worker where it began.
        """
        self.is_proven = self.is_proven or other.is_proven
        self.in_flight += other.in_flight
        self.waiting += other.waiting
        if other.limit is not None and (self.limit is None or (other.limit, other.limit_why) > (self.limit, self.limit_why)):
            self.limit, self.limit_why = other.limit, other.limit_why
        if _breaker_rank(other) > _breaker_rank(self):
            self.breaker, self.breaker_why = other.breaker, other.breaker_why
        if self.phase == "ready" and other.phase not in ("", "ready"):  # one worker has seen that it left
            self.phase, self.phase_why = other.phase, other.phase_why
        self.cold_start_s = max((start_s for start_s in (self.cold_start_s, other.cold_start_s) if start_s is not None),
                                default=None)
        self.prefix = merge_prefixes(self.prefix, other.prefix)
        self.n_breaker_changes_1h = max(self.n_breaker_changes_1h, other.n_breaker_changes_1h)
        self.suspended_s, self.suspended_why = max((self.suspended_s, self.suspended_why),
                                                   (other.suspended_s, other.suspended_why))


class WorkerPart(msgspec.Struct, omit_defaults=True):
    """One worker now. slots: closed ones that the collector lacks."""

    worker: int
    slots: list[ClosedSlot] = []
    live: list[LiveSeries] = []
    upstreams: list[UpstreamGauges] = []
    n_waiting: int = 0  # for admission
    is_draining: bool = False
    probes: ProbePart | None = None
    reported: list[Finding] = []
    fleet: list[FleetRow] = []  # from the worker that speaks for the gateway
    versions: list[PromptVersionPart] = []  # of system prompts


class MergedLive:
    """The live series of all workers."""

    __slots__ = ("heat", "n_tick", "open")

    def __init__(self) -> None:
        self.open: dict[SeriesKey, TrafficPart] = {}
        self.heat: dict[SeriesKey, Counts] = {}
        self.n_tick: dict[SeriesKey, int] = {}


def merge_live(parts: Iterable[WorkerPart]) -> MergedLive:
    """Sums of the open slots and the last ticks."""
    whole = MergedLive()
    for part in parts:
        for series in part.live:
            key = series.route, series.upstream
            whole.open.setdefault(key, TrafficPart()).merge(series.open)
            whole.n_tick[key] = whole.n_tick.get(key, 0) + series.n_tick
            heat = whole.heat.setdefault(key, {})
            for bucket, n in series.heat.items():
                heat[bucket] = heat.get(bucket, 0) + n
    return whole


def merge_upstreams(parts: Iterable[WorkerPart]) -> list[UpstreamGauges]:
    """Each upstream once, in the order of the settings."""
    whole: dict[str, UpstreamGauges] = {}
    for part in parts:
        for upstream in part.upstreams:
            if upstream.name in whole:
                whole[upstream.name].merge(upstream)
            else:
                whole[upstream.name] = msgspec.structs.replace(upstream)
    return list(whole.values())


def _breaker_rank(gauges: UpstreamGauges) -> tuple[int, bool, str]:
    """The worst state first, with the reason of the worker whose breaker changed first."""
    badness = BREAKER_STATES.index(gauges.breaker) if gauges.breaker in BREAKER_STATES else 0
    return badness, gauges.breaker_why != OPENED_ELSEWHERE, gauges.breaker_why
