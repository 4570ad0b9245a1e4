"""Findings as text: the one form for terminals and logs."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from stayfast.core.findings import Evidence, Finding, SettingsChange
from stayfast.core.units import make_printable
from stayfast.policy.findings.diagnose import shown

MARKS = {"act": "ACT ", "warn": "WARN", "info": "info"}
_INDENT = "      "
_LEAST_WIDTH = 40


def write_findings(findings: Sequence[Finding], width: int = 80, *, is_all: bool = False,
                   since_of: Mapping[str, str] | None = None) -> list[str]:
    """Lines for all findings. Consequences are counted, or listed with `is_all`. since_of: the instant as text, by id and
    place (`place_of`).
    """
    lines: list[str] = []
    for finding in findings if is_all else shown(findings):
        since = (since_of or {}).get(place_of(finding), "")
        lines += [*write_finding(finding, width, since=since), *_count_hidden(finding, findings, is_all=is_all), ""]
    return lines[:-1]


def place_of(finding: Finding) -> str:
    """Id and place: what makes two findings the same."""
    return f"{finding.id} {finding.where}"


def write_finding(finding: Finding, width: int = 80, *, since: str = "") -> list[str]:
    """Severity, place, sentence, evidence, cause, changes with patches to copy, and how to verify. Printable: a snapshot may
    be a file of somebody else.
    """
    width = max(_LEAST_WIDTH, width)
    hidden = f" (explained by {finding.hidden_by})" if finding.hidden_by else ""
    lines = [f"{MARKS[finding.severity]}  {finding.id}  {finding.where}{f', since {since}' if since else ''}{hidden}"]
    lines += _wrap(finding.summary, width, _INDENT)
    lines += _wrap(f"because: {finding.because}", width, _INDENT, "  ")
    lines += _wrap("evidence: " + _evidence(finding.evidence), width, _INDENT, "  ")
    for change in finding.do:
        lines += _wrap(f"do: {change.effect} ({_confidence(change)})", width, _INDENT, "  ")
        lines += [f"{_INDENT}  {line}" for line in change.patch.splitlines()]
    if finding.verify:
        lines += _wrap(f"verify: {finding.verify}", width, _INDENT, "  ")
    return [make_printable(line) for line in lines]


def _confidence(change: SettingsChange) -> str:
    """How sure the effect is: `unknown` alone would read as a cause."""
    return "effect unknown" if change.confidence == "unknown" else change.confidence


def _wrap(text: str, width: int, indent: str, further: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + further, break_on_hyphens=False)


def _evidence(figures: Sequence[Evidence]) -> str:
    """Figures of one window and source together."""
    parts = []
    for (window_s, source), group in groupby(figures, key=lambda one: (one.window_s, one.source)):
        window = f"{window_s / 60:g} min" if window_s else "now"
        parts.append(f"{', '.join(map(_figure, group))} ({window}{', ' + source if source else ''})")
    return "; ".join(parts)


def _figure(evidence: Evidence) -> str:
    unit, value = evidence.unit, evidence.value
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    if unit == "ratio":
        text, unit = f"{value * 100:.3g}", "%"
    return f"{evidence.name} {text}{' ' + unit if unit else ''}"


def _count_hidden(finding: Finding, findings: Iterable[Finding], *, is_all: bool) -> list[str]:
    n = sum(one.hidden_by == finding.id and one.where.overlaps(finding.where) for one in findings)
    if not n or is_all or finding.hidden_by:
        return []
    return [f"{_INDENT}hides {n} consequence{'s' * (n > 1)}, --all shows {'them' if n > 1 else 'it'}"]
