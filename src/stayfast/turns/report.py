"""A turn told after the fact, as a waterfall in text: what each step took of its time, what it cost, what was cut."""

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stayfast.turns.budget import Budget
    from stayfast.turns.running import Running

EVENT_LOOP = "the event loop"
N_COLUMNS = 40
_NAME_WIDTH = 16


def written(of: "Budget") -> str:
    """All of it, with the budgets inside."""
    end_at = of.ended_at if of.ended_at < inf else of.now()
    spent_s, total_s = end_at - of.began_at, of.deadline_at - of.began_at
    head = f"turn: {_said(spent_s)} of {_said(total_s)}"
    if of.cost_usd:
        head += f", ${of.cost_usd:.6g}"
    lines = [head, *_lines(of, of.began_at, max(spent_s, 1e-9), 1)]
    if of.broken_by is not None:
        lines.append(f"broke the budget: {of.broken_by}")
    if of.abandoned:
        lines.append(f"abandoned, and maybe still running: {', '.join(of.abandoned)}")
    return "\n".join(lines)


def blamed(rows: Iterable["Running"]) -> str | None:
    """Who used all the time that the turn had, of these steps in their order, or EVENT_LOOP; None where nobody did."""
    late: str | None = None  # that had no time to begin: whoever was before it is to blame, if that can be said
    for row in rows:
        if row.is_capped:
            continue
        if row.blocked_s:
            return EVENT_LOOP
        if row.how == "timeout":
            if row.n_calls:
                return row.name
            late = late or row.name
    return late


def _lines(of: "Budget", since: float, whole_s: float, depth: int) -> list[str]:
    lines = []
    for inner in of.inner:
        lines += _lines(inner, since, whole_s, depth + 1)
    for row in of.rows:
        lines.append(_line(row, since, whole_s, depth))
        for inner in row.inner or ():
            lines += _lines(inner, since, whole_s, depth + 1)
    return lines


def _line(row: "Running", since: float, whole_s: float, depth: int) -> str:
    end_at = min(row.ended_at, since + whole_s)
    first = min(N_COLUMNS - 1, int((row.began_at - since) / whole_s * N_COLUMNS))
    n_filled = max(1, round((end_at - row.began_at) / whole_s * N_COLUMNS))
    bar = (" " * first + "#" * n_filled)[:N_COLUMNS].ljust(N_COLUMNS)
    words = [f"{_said(end_at - row.began_at)} of {_said(max(0.0, row.ends_at - row.began_at))}", row.how]
    if row.n_calls > 1:
        words.append(f"{row.n_calls} calls")
    if row.cost_usd:
        words.append(f"${row.cost_usd:.6g}")
    if row.used_fallback:
        words.append("fallback used")
    if row.detail:
        words.append(row.detail)
    elif row.blocked_s:
        words.append(f"ended {_said(row.blocked_s)} late, as the event loop was blocked")
    return f"{'  ' * depth}{row.name:<{_NAME_WIDTH}} |{bar}| {', '.join(words)}"


def _said(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
