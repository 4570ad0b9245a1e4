"""Findings: what is wrong, where, the evidence, and what to change.

One format for all parts: checks of a snapshot (`policy.findings`), prompt caches, semantic caches, engines and fleets.
Names, figures and settings only: a finding never holds a prompt, an answer or a key.
"""

from typing import Literal

import msgspec

Severity = Literal["info", "warn", "act"]  # act: users suffer now
Confidence = Literal["measured", "estimated", "unknown"]
SEVERITIES: tuple[Severity, ...] = ("info", "warn", "act")  # ascending


class FindingSite(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a finding is about. Empty fields: all of them."""

    route: str = ""
    upstream: str = ""
    tenant: str = ""
    store: str = ""
    worker: int | None = None

    def overlaps(self, other: "FindingSite") -> bool:
        """Whether no field names two different things."""
        pairs = ((self.route, other.route), (self.upstream, other.upstream), (self.tenant, other.tenant),
                 (self.store, other.store))
        return (all(not one or not another or one == another for one, another in pairs)
                and (self.worker is None or other.worker is None or self.worker == other.worker))

    def __str__(self) -> str:
        named = (("route", self.route), ("upstream", self.upstream), ("tenant", self.tenant), ("store", self.store),
                 ("worker", "" if self.worker is None else str(self.worker)))
        return ", ".join(f"{kind} {name}" for kind, name in named if name) or "this gateway"


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One figure behind a finding. unit: s, ms, ratio, tokens, bytes, USD, ... or empty for a count."""

    name: str
    value: float
    unit: str = ""
    window_s: float | None = None  # None: a state of now
    source: str = ""  # where to read the same figure: a metric's name or a path such as /debug/state


class SettingsChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to do. patch: YAML to merge into the settings; empty if the change lies elsewhere, as `effect` describes."""

    effect: str  # what it is expected to bring, with a figure where one is known
    patch: str = ""
    confidence: Confidence = "estimated"
    saves_s: float | None = None  # predicted reduction of the p99 of the first token, where it can be computed


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding. `id` is stable and in the registry (`policy.findings.registry`)."""

    id: str  # for example prompt.moving_prefix
    severity: Severity
    where: FindingSite
    summary: str  # one sentence with the main figure
    because: str  # the cause, one or two sentences
    evidence: tuple[Evidence, ...] = ()
    do: tuple[SettingsChange, ...] = ()
    verify: str = ""  # how to see that the change worked: a command, or a metric with its direction
    since: float | None = None  # seconds since the epoch; None: unknown
    hidden_by: str = ""  # id of the root cause that explains it; empty: it is shown
