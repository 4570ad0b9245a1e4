"""What one worker contributes to snapshots and frames."""

from collections.abc import Callable, Iterable
from math import inf

import msgspec

from stayfast.compose.current import CurrentSystem
from stayfast.core.clock import Clock
from stayfast.core.snapshot import FleetRow
from stayfast.observe.snapshot.probes import WorkerProbes
from stayfast.observe.snapshot.prompt_versions import PromptVersionPart
from stayfast.observe.snapshot.reported import ReportedFindings
from stayfast.observe.snapshot.traffic import TrafficSink
from stayfast.observe.snapshot.worker_part import BREAKER_STATES, PrefixGauges, UpstreamGauges, WorkerPart, merge_prefixes
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.routing.affinity import CacheTruth
from stayfast.upstreams.state.upstream_state import UpstreamState


class SnapshotQuestion(msgspec.Struct, frozen=True):
    """A message from one worker to another. what: part (from worker 0), or frame, snapshot, history (to worker 0)."""

    what: str
    since: int = -1  # part: number of the last slot that worker 0 has
    is_whole: bool = False  # part: with details of the open slot
    seconds: float = 0.0  # history


class SnapshotSource:
    """What this worker contributes."""

    def __init__(self, traffic: TrafficSink, probes: WorkerProbes, reported: ReportedFindings, current: CurrentSystem,
                 clock: Clock, *, flush: Callable[[], None], worker: int, is_draining: Callable[[], bool],
                 read_fleet: Callable[[], list[FleetRow]], versions: Callable[[], list[PromptVersionPart]]) -> None:
        self._read_versions = versions
        self._traffic = traffic
        self._probes = probes
        self._reported = reported
        self._read_fleet = read_fleet
        self._current = current
        self._clock = clock
        self._flush = flush
        self._worker = worker
        self._is_draining = is_draining

    def part(self, question: SnapshotQuestion) -> WorkerPart:
        """To be encoded or merged at once: it shares counts with the running slot."""
        self._flush()
        now, changes, admit = self._clock.now(), self._traffic.breaker_changes(3600.0), self._current.admission()
        return WorkerPart(
            self._worker, self._traffic.closed_since(question.since), self._traffic.live(has_details=question.is_whole),
            [describe_upstream(member, now, changes.get(member.upstream.name, 0), self._truths(member.upstream.name))
             for member in self._current.members()],
            admit.places.n_waiting if isinstance(admit, Admission) else 0, self._is_draining(),
            self._probes.collect(is_whole=question.is_whole), self._reported.current() if question.is_whole else [],
            self._read_fleet() if question.is_whole else [], self._read_versions() if question.is_whole else [])

    def _truths(self, upstream: str) -> list[CacheTruth]:
        """Of the routes with prefix affinity."""
        return [route.selector.beliefs.truths[upstream] for route in self._current.routes().values()
                if route.selector is not None and upstream in route.selector.beliefs.truths]


def describe_upstream(member: UpstreamState, now: float, n_changes: int, truths: Iterable[CacheTruth]) -> UpstreamGauges:
    part = UpstreamGauges(member.upstream.name, member.is_proven, member.n_in_flight, member.n_waiting,
                        n_breaker_changes_1h=n_changes)
    if (replica := member.replica) is not None:
        part.phase, part.phase_why = replica.phase.value, replica.why
        part.cold_start_s = replica.loads.p90_s if replica.loads.n_starts else None
    for limited in member.all_limiters:
        value = limited.limit.value
        if value < inf and (part.limit is None or value > part.limit):
            part.limit, part.limit_why = value, limited.limit.why
    for health in (member.own_health, *member.healths):
        state = health.breaker.state.value
        if BREAKER_STATES.index(state) > BREAKER_STATES.index(part.breaker):
            part.breaker, part.breaker_why = state, health.breaker.why
        left_s = health.suspended_until - now
        if left_s > part.suspended_s:
            part.suspended_s, part.suspended_why = left_s, health.suspend_reason
    for truth in truths:
        part.prefix = merge_prefixes(part.prefix, PrefixGauges(truth.n_answers, truth.n_input, truth.n_believed,
                                                               truth.n_cached if truth.reports else None))
    return part
