"""A rule, before it is text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stayfast.observe.rules.promql import is_awaited, number, span
from stayfast.policy.slo import Severity


@dataclass(frozen=True, slots=True)
class Recording:
    """A query whose answer is kept under a name of its own."""

    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As it stands in a rule file."""
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.name, "expr": self.expr, **labels}


class Condition(NamedTuple):
    """`value` beyond `limit`. The value alone can be asked for, to see that it has data."""

    value: str
    limit: float
    sign: str = ">"

    def __str__(self) -> str:
        return f"{self.value} {self.sign} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that somebody must hear of: all `conditions` at once, for `for_s` seconds.

    `on` names the labels by which the conditions belong together; None: all of them.
    """

    name: str
    severity: Severity
    conditions: tuple[Condition, ...]
    summary: str
    action: str  # what to do, in a sentence or two
    for_s: int = 300
    on: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def expr(self) -> str:
        """The whole condition."""
        joint = "\nand " if self.on is None else f"\nand on ({', '.join(self.on)}) "
        return joint.join(map(str, self.conditions))

    @property
    def is_awaited(self) -> bool:
        """Whether it cannot fire yet for want of a metric."""
        return is_awaited(self.expr)

    def document(self, runbook: str) -> dict[str, Any]:
        """As it stands in a rule file."""
        wait = {"for": span(self.for_s)} if self.for_s else {}
        return {
            "alert": self.name, "expr": self.expr, **wait, "labels": {"severity": self.severity, **self.labels},
            "annotations": {"summary": self.summary, "description": self.action,
                            "runbook_url": f"{runbook}#{self.name.lower()}"},
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, one after another."""

    name: str
    rules: tuple[Recording | Alert, ...]
    every_s: int | None = None  # None: as Prometheus is told for all

    def document(self, runbook: str) -> dict[str, Any]:
        """As it stands in a rule file."""
        every = {"interval": span(self.every_s)} if self.every_s else {}
        rules = [rule.document() if isinstance(rule, Recording) else rule.document(runbook) for rule in self.rules]
        return {"name": self.name, **every, "rules": rules}
