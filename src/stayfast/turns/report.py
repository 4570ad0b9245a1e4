"""A turn as those who watch it see it: what each step took of its time, what it cost, what was cut, which step broke it.

As a waterfall in text for people, and as `StepDone`s for those who watch requests.
"""

from collections.abc import Iterable, Iterator
from math import inf

from stayfast.core.steps import StepDone, TurnSeen
from stayfast.turns.step_run import BudgetState, StepRun

EVENT_LOOP = "the event loop"
N_COLUMNS = 40
_NAME_WIDTH = 16
MAX_STEPS = 200
MAX_NAME = 64


def render_waterfall(of: BudgetState) -> str:
    end_at = of.ended_at if of.ended_at < inf else of.now()
    spent_s, total_s = end_at - of.began_at, of.deadline_at - of.began_at
    head = f"turn: {_format_s(spent_s)} of {_format_s(total_s)}"
    cost_usd = total_cost_usd(of)
    if cost_usd:
        head += f", ${cost_usd:.6g}"
    lines = [head, *_lines(of, of.began_at, max(spent_s, 1e-9), 1)]
    broken_by, abandoned = find_broken_by(of), list_abandoned(of)
    if broken_by is not None:
        lines.append(f"broke the budget: {broken_by}")
    if abandoned:
        lines.append(f"abandoned, and maybe still running: {', '.join(abandoned)}")
    return "\n".join(lines)


def find_blamed(rows: Iterable[StepRun]) -> str | None:
    """Who used all the time that the turn had, of these steps in their order, or EVENT_LOOP; None where nobody did."""
    late: str | None = None  # that had no time to begin: whoever was before it is to blame, if that can be said
    for row in rows:
        if row.is_capped:
            continue
        if row.blocked_s:
            return EVENT_LOOP
        if row.outcome == "timeout":
            if row.n_calls:
                return row.name
            late = late or row.name
    return late


def total_cost_usd(of: BudgetState) -> float:
    """What all steps said they cost, in dollars, those of budgets inside included."""
    return sum(scope.cost_usd + sum(total_cost_usd(inner) for inner in scope.inner or ()) for scope in of.scopes)


def list_abandoned(of: BudgetState) -> list[str]:
    """The names of the steps that were cancelled and go on all the same, those of budgets inside last."""
    own = [row.name for row in of.step_runs if row.is_abandoned]
    return own + [name for inner in _inside(of) for name in list_abandoned(inner)]


def find_broken_by(of: BudgetState) -> str | None:
    """The first step that used all that the turn had, or EVENT_LOOP; else that of a budget inside which was shortened."""
    own = find_blamed(of.step_runs)
    if own is not None:
        return own
    by = (find_broken_by(inner) for inner in _inside(of) if inner.deadline_at < inner.began_at + (inner.total_s or inf))
    return next(filter(None, by), None)


def find_blamed_anywhere(of: BudgetState) -> str | None:
    """The first step, in whichever budget inside, that used all the time that there was for it and not just its own cap."""
    return find_blamed(row for row, _ in _walk(of, None))


def list_steps(of: BudgetState, *, since: float = -inf, is_ending: bool = False) -> TurnSeen:
    """The steps of a turn, budgets inside included, in the order in which they began; those that were not over by the
    instant `since`. What has not ended ends now: it is `running`, or `cancelled` where all of the turn `is_ending`.
    """
    found = [(row, parent) for row, parent in _walk(of, None) if row.ended_at > since]
    found.sort(key=lambda one: one[0].began_at)
    del found[MAX_STEPS:]
    places = {id(row): place for place, (row, _) in enumerate(found)}
    now = of.now()
    left = "cancelled" if is_ending else "running"
    steps = tuple([_step(row, now, places.get(id(parent), -1), left) for row, parent in found])
    if since == -inf:
        return TurnSeen(steps, total_cost_usd(of) or None)
    return TurnSeen(steps, sum(step.cost_usd for step in steps if step.cost_usd) or None)


def _inside(of: BudgetState) -> list[BudgetState]:
    return [inner for scope in of.scopes for inner in scope.inner or ()]


def _walk(of: BudgetState, parent: StepRun | None) -> Iterator[tuple[StepRun, StepRun | None]]:
    """Each step, and the one that it was begun in: those of the budgets that the body opened, then its own."""
    for inner in of.inner_budgets:
        yield from _walk(inner, parent)
    for row in of.step_runs:
        yield row, parent
        for inner in row.inner or ():
            yield from _walk(inner, row)


def _step(row: StepRun, now: float, parent: int, left: str) -> StepDone:
    detail = f"{row.detail}, goes on all the same" if row.is_abandoned else row.detail
    cost_usd = row.cost_usd + sum(total_cost_usd(inner) for inner in row.inner or ())
    is_excused = row.is_capped or row.blocked_s > 0  # it is not what broke the budget
    return StepDone(row.name[:MAX_NAME], row.began_at, min(row.ended_at, now), row.ends_at - row.began_at,
                    row.outcome if row.is_done else left, detail, is_excused, cost_usd or None, parent, row.kind)


def _lines(of: BudgetState, since: float, whole_s: float, depth: int) -> list[str]:
    lines = []
    for inner in of.inner_budgets:
        lines += _lines(inner, since, whole_s, depth + 1)
    for row in of.step_runs:
        lines.append(_line(row, since, whole_s, depth))
        for inner in row.inner or ():
            lines += _lines(inner, since, whole_s, depth + 1)
    return lines


def _line(row: StepRun, since: float, whole_s: float, depth: int) -> str:
    end_at = min(row.ended_at, since + whole_s)
    first = min(N_COLUMNS - 1, int((row.began_at - since) / whole_s * N_COLUMNS))
    n_filled = max(1, round((end_at - row.began_at) / whole_s * N_COLUMNS))
    bar = (" " * first + "#" * n_filled)[:N_COLUMNS].ljust(N_COLUMNS)
    words = [f"{_format_s(end_at - row.began_at)} of {_format_s(max(0.0, row.ends_at - row.began_at))}", row.outcome]
    if row.n_calls > 1:
        words.append(f"{row.n_calls} calls")
    if row.cost_usd:
        words.append(f"${row.cost_usd:.6g}")
    if row.used_fallback:
        words.append("fallback used")
    if row.detail:
        words.append(row.detail)
    elif row.blocked_s:
        words.append(f"ended {_format_s(row.blocked_s)} late, as the event loop was blocked")
    return f"{'  ' * depth}{row.name:<{_NAME_WIDTH}} |{bar}| {', '.join(words)}"


def _format_s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
