"""A turn seen from outside: per step its time, cost and outcome, and the step that broke the budget.

As a text waterfall for people, and as `StepDone` records for the gateway's traces and metrics.
"""

from collections.abc import Iterable, Iterator
from math import inf

from stayfast.core.steps import StepDone, TurnSnapshot
from stayfast.turns.step_run import BudgetState, StepRun

EVENT_LOOP = "the event loop"
N_COLUMNS = 40
_NAME_WIDTH = 16
MAX_STEPS = 200
MAX_NAME = 64


def render_waterfall(budget: BudgetState) -> str:
    """A header, one line per step with its bar, then the step that broke the budget and the abandoned steps."""
    end_at = budget.ended_at if budget.ended_at < inf else budget.now()
    spent_s, total_s = end_at - budget.began_at, budget.deadline_at - budget.began_at
    head = f"turn: {_format_s(spent_s)} of {_format_s(total_s)}"
    cost_usd = total_cost_usd(budget)
    if cost_usd:
        head += f", ${cost_usd:.6g}"
    lines = [head, *_render_steps(budget, budget.began_at, max(spent_s, 1e-9), 1)]
    broken_by, abandoned = find_broken_by(budget), list_abandoned(budget)
    if broken_by is not None:
        lines.append(f"broke the budget: {broken_by}")
    if abandoned:
        lines.append(f"abandoned, may still be running: {', '.join(abandoned)}")
    return "\n".join(lines)


def find_blamed(runs: Iterable[StepRun]) -> str | None:
    """The first of these steps that used all the time the turn had, or EVENT_LOOP; None if there is none."""
    late: str | None = None  # a step with no time to start; an earlier step is to blame, if there is one
    for run in runs:
        if run.is_capped:
            continue
        if run.blocked_s:
            return EVENT_LOOP
        if run.outcome == "timeout":
            if run.n_calls:
                return run.name
            late = late or run.name
    return late


def total_cost_usd(budget: BudgetState) -> float:
    """Dollars charged in all steps, including those of inner budgets."""
    return sum(scope.cost_usd + sum(total_cost_usd(inner) for inner in scope.inner or ()) for scope in budget.scopes)


def list_abandoned(budget: BudgetState) -> list[str]:
    """The names of steps that were cancelled but still run; those of inner budgets last."""
    own = [run.name for run in budget.step_runs if run.is_abandoned]
    return own + [name for inner in _list_inner(budget) for name in list_abandoned(inner)]


def find_broken_by(budget: BudgetState) -> str | None:
    """The first step that used all the turn's time, or EVENT_LOOP; else that of an inner budget which was shortened."""
    own = find_blamed(budget.step_runs)
    if own is not None:
        return own
    by_inner = (find_broken_by(inner) for inner in _list_inner(budget)
                if inner.deadline_at < inner.began_at + (inner.total_s or inf))
    return next(filter(None, by_inner), None)


def find_blamed_anywhere(budget: BudgetState) -> str | None:
    """The first step, in this budget or any inner one, that used all its time and not only its own cap."""
    return find_blamed(run for run, _ in _walk(budget, None))


def list_steps(budget: BudgetState, *, since: float = -inf, is_ending: bool = False) -> TurnSnapshot:
    """The steps of a turn, including inner budgets, in start order; without those that ended before the instant `since`.
    The outcome of an unfinished step is `running`, or `cancelled` if the whole turn `is_ending`.
    """
    found = [(run, parent) for run, parent in _walk(budget, None) if run.ended_at > since]
    found.sort(key=lambda pair: pair[0].began_at)
    del found[MAX_STEPS:]
    indexes = {id(run): index for index, (run, _) in enumerate(found)}
    now = budget.now()
    unfinished = "cancelled" if is_ending else "running"
    steps = tuple([_to_step_done(run, now, indexes.get(id(parent), -1), unfinished) for run, parent in found])
    if since == -inf:
        return TurnSnapshot(steps, total_cost_usd(budget) or None)
    return TurnSnapshot(steps, sum(step.cost_usd for step in steps if step.cost_usd) or None)


def _list_inner(budget: BudgetState) -> list[BudgetState]:
    return [inner for scope in budget.scopes for inner in scope.inner or ()]


def _walk(budget: BudgetState, parent: StepRun | None) -> Iterator[tuple[StepRun, StepRun | None]]:
    """Each step with its parent step: first the budgets opened in the body, then the own steps."""
    for inner in budget.inner_budgets:
        yield from _walk(inner, parent)
    for run in budget.step_runs:
        yield run, parent
        for inner in run.inner or ():
            yield from _walk(inner, run)


def _to_step_done(run: StepRun, now: float, parent: int, unfinished: str) -> StepDone:
    detail = f"{run.detail}, still running" if run.is_abandoned else run.detail
    cost_usd = run.cost_usd + sum(total_cost_usd(inner) for inner in run.inner or ())
    is_excused = run.is_capped or run.blocked_s > 0  # not the cause of a broken budget
    return StepDone(run.name[:MAX_NAME], run.began_at, min(run.ended_at, now), run.ends_at - run.began_at,
                    run.outcome if run.is_done else unfinished, detail, is_excused, cost_usd or None, parent, run.kind)


def _render_steps(budget: BudgetState, since: float, total_s: float, depth: int) -> list[str]:
    lines = []
    for inner in budget.inner_budgets:
        lines += _render_steps(inner, since, total_s, depth + 1)
    for run in budget.step_runs:
        lines.append(_render_step(run, since, total_s, depth))
        for inner in run.inner or ():
            lines += _render_steps(inner, since, total_s, depth + 1)
    return lines


def _render_step(run: StepRun, since: float, total_s: float, depth: int) -> str:
    end_at = min(run.ended_at, since + total_s)
    first = min(N_COLUMNS - 1, int((run.began_at - since) / total_s * N_COLUMNS))
    n_filled = max(1, round((end_at - run.began_at) / total_s * N_COLUMNS))
    bar = (" " * first + "#" * n_filled)[:N_COLUMNS].ljust(N_COLUMNS)
    words = [f"{_format_s(end_at - run.began_at)} of {_format_s(max(0.0, run.ends_at - run.began_at))}", run.outcome]
    if run.n_calls > 1:
        words.append(f"{run.n_calls} calls")
    if run.cost_usd:
        words.append(f"${run.cost_usd:.6g}")
    if run.used_fallback:
        words.append("fallback used")
    if run.detail:
        words.append(run.detail)
    elif run.blocked_s:
        words.append(f"ended {_format_s(run.blocked_s)} late, as the event loop was blocked")
    return f"{'  ' * depth}{run.name:<{_NAME_WIDTH}} |{bar}| {', '.join(words)}"


def _format_s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
