"""From a snapshot to findings, the most urgent first.

Problem: one cause has many symptoms, and a list of twenty names none. Rule: a finding is hidden by a finding that explains
it at the same place (`Check.explains`, `FindingSite.overlaps`); of a chain of causes the first one is named. A cause is as
severe as the worst of what it hides. An upstream or a store is at the place of the routes that use it, not of others
(`policy.findings.places`).

    order: severity, then the predicted reduction of the p99, then id and place

Source: root causes as a graph is ours. When wrong: two independent faults at one place, of which one
could explain the other.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stayfast.core.findings import SEVERITIES, Finding, Severity
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.places import Places
from stayfast.policy.findings.registry import CHECKS, REPORTED


def diagnose(snapshot: Snapshot, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """All findings, at most one for each id and place; consequences have `hidden_by`. Never raises."""
    checks = tuple(checks)
    found: dict[tuple[str, str], Finding] = {}
    for batch in (snapshot.reported, *(check.find(snapshot) for check in checks)):
        for finding in batch:
            earlier = found.setdefault((finding.id, str(finding.where)), finding)
            if _rank(finding.severity) > _rank(earlier.severity):
                found[finding.id, str(finding.where)] = finding
    explains = {kind.id: frozenset(kind.explains) for kind in (*REPORTED, *checks)}
    return sorted(_hide_consequences(list(found.values()), explains, Places(snapshot)), key=_order)


def shown(findings: Iterable[Finding]) -> list[Finding]:
    """Without the consequences of others."""
    return [finding for finding in findings if not finding.hidden_by]


def _rank(severity: Severity) -> int:
    return SEVERITIES.index(severity)


def _order(finding: Finding) -> tuple[bool, int, float, str, str]:
    saves_s = max((change.saves_s or 0.0 for change in finding.do), default=0.0)
    return bool(finding.hidden_by), -_rank(finding.severity), -saves_s, finding.id, str(finding.where)


def _hide_consequences(findings: Sequence[Finding], explains: Mapping[str, frozenset[str]],
                       places: Places) -> list[Finding]:
    causes = [_direct_cause(index, findings, explains, places) for index in range(len(findings))]
    roots = [_first_cause(index, causes) for index in range(len(findings))]
    worst = [finding.severity for finding in findings]
    for index, root in enumerate(roots):
        worst[root] = max(worst[root], findings[index].severity, key=_rank)
    return [msgspec.structs.replace(finding, severity=worst[index] if roots[index] == index else finding.severity,
                                    hidden_by="" if roots[index] == index else findings[roots[index]].id)
            for index, finding in enumerate(findings)]


def _direct_cause(index: int, findings: Sequence[Finding], explains: Mapping[str, frozenset[str]], places: Places) -> int:
    """The finding that explains this one; itself if none does."""
    finding = findings[index]
    for other, cause in enumerate(findings):
        if other != index and finding.id in explains.get(cause.id, ()) and places.meet(cause.where, finding.where):
            return other
    return index


def _first_cause(index: int, causes: Sequence[int]) -> int:
    """The begin of its chain. A circle ends where it began."""
    seen = {index}
    while causes[index] != index and causes[index] not in seen:
        index = causes[index]
        seen.add(index)
    return index
