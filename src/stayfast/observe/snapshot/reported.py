"""Findings that parts of this worker reported in the last hour, for `Snapshot.reported`.

Some are facts that are emitted once: such a finding is dropped if it was not repeated for RETENTION_S. Others are states of
their part (prompt caches, the fleet), which end when the part no longer has them. At most MAX_REPORTED facts, the newest.
"""

from collections.abc import Callable, Iterable
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.events import Fact
from stayfast.core.findings import Finding
from stayfast.observe.fact_batch import FactHandlers, one_by_one
from stayfast.policy.findings.reported import KINDS, finding_of

RETENTION_S: Final = 3600.0
MAX_REPORTED: Final = 100


class ReportedFindings:
    """A consumer of rare facts."""

    def __init__(self, clock: Clock, read_states: Callable[[], Iterable[Finding]] = tuple) -> None:
        """read_states: findings that last until their part no longer returns them."""
        self._clock = clock
        self._read_states = read_states
        self._found: dict[tuple[str, str], tuple[float, Finding]] = {}  # by id and place: last report, and since when

    @property
    def handlers(self) -> FactHandlers:
        return dict.fromkeys(KINDS, one_by_one(self._report))

    def _report(self, fact: Fact) -> None:
        finding = finding_of(fact, self._clock.wall())
        if finding is not None:
            self._add(finding)

    def _add(self, finding: Finding) -> None:
        place, now = (finding.id, str(finding.where)), self._clock.now()
        earlier = self._found.pop(place, None)
        is_same = earlier is not None and now - earlier[0] <= RETENTION_S
        since = earlier[1].since if earlier is not None and is_same else finding.since
        self._found[place] = now, Finding(finding.id, finding.severity, finding.where, finding.summary, finding.because,
                                          finding.evidence, finding.do, finding.verify, since)
        if len(self._found) > MAX_REPORTED:
            del self._found[next(iter(self._found))]

    def current(self) -> list[Finding]:
        """The findings of the last RETENTION_S, oldest first, and those of states."""
        now = self._clock.now()
        recent = [finding for reported_at, finding in self._found.values() if now - reported_at <= RETENTION_S]
        return [*recent, *self._read_states()]


def merge_reported(parts: Iterable[Iterable[Finding]]) -> tuple[Finding, ...]:
    """Those of all workers, each place once, with its earliest begin."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in (finding for part in parts for finding in part):
        place = finding.id, str(finding.where)
        known = merged.get(place)
        if known is None or (finding.since or 0.0) < (known.since or 0.0):
            merged[place] = finding
    return tuple(merged.values())
