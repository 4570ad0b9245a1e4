"""Findings that parts of this worker reported in the last hour, for `Snapshot.reported`.

A finding is reported again while its cause lasts (prompt caches: each hour at least), so one that was not repeated for
RETENTION_S is dropped. At most MAX_REPORTED, the newest.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.events import Fact
from stayfast.core.findings import Finding
from stayfast.policy.findings.reported import finding_of

RETENTION_S: Final = 3600.0
MAX_REPORTED: Final = 100


class ReportedFindings:
    """A consumer of facts. Rare facts only: requests cost one look-up of their type each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], tuple[float, Finding]] = {}  # by id and place: last report, and since when

    def consume(self, facts: Sequence[Fact]) -> None:
        """Consume facts, oldest first."""
        for fact in facts:
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
        """The findings of the last RETENTION_S, oldest first."""
        now = self._clock.now()
        return [finding for reported_at, finding in self._found.values() if now - reported_at <= RETENTION_S]


def merge_reported(parts: Iterable[Iterable[Finding]]) -> tuple[Finding, ...]:
    """Those of all workers, each place once, with its earliest begin."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in (finding for part in parts for finding in part):
        place = finding.id, str(finding.where)
        known = merged.get(place)
        if known is None or (finding.since or 0.0) < (known.since or 0.0):
            merged[place] = finding
    return tuple(merged.values())
