"""The steps of a turn, as those who watch requests are told of them."""

from math import inf

from stayfast.core.steps import StepDone, TurnSeen
from stayfast.turns.budget import Budget
from stayfast.turns.report import blamed
from stayfast.turns.running import Running

MAX_STEPS = 200
MAX_NAME = 64


def seen(of: Budget, *, since: float = -inf, is_ending: bool = False) -> TurnSeen:
    """The steps of a turn, budgets inside included, in the order in which they began; those that were not over by the
    instant `since`. What has not ended ends now: it is `running`, or `cancelled` where all of the turn `is_ending`.
    """
    found: list[tuple[Running, Running | None]] = []
    _walk(of, None, found)
    found = [(row, parent) for row, parent in found if row.ended_at > since]
    found.sort(key=lambda one: one[0].began_at)
    del found[MAX_STEPS:]
    places = {id(row): place for place, (row, _) in enumerate(found)}
    now = of.now()
    left = "cancelled" if is_ending else "running"
    steps = tuple([_step(row, now, places.get(id(parent), -1), left) for row, parent in found])
    if since == -inf:
        return TurnSeen(steps, of.cost_usd or None)
    return TurnSeen(steps, sum(step.cost_usd for step in steps if step.cost_usd) or None)


def broken_by(of: Budget) -> str | None:
    """The first step, in whichever budget inside, that used all the time that there was for it and not just its own cap."""
    found: list[tuple[Running, Running | None]] = []
    _walk(of, None, found)
    return blamed(row for row, _ in found)


def _walk(of: Budget, parent: Running | None, found: list[tuple[Running, Running | None]]) -> None:
    for inner in of.inner:
        _walk(inner, parent, found)
    for row in of.rows:
        found.append((row, parent))
        for inner in row.inner or ():
            _walk(inner, row, found)


def _step(row: Running, now: float, parent: int, left: str) -> StepDone:
    detail = f"{row.detail}, goes on all the same" if row.is_abandoned else row.detail
    cost_usd = row.cost_usd + sum(inner.cost_usd for inner in row.inner or ())
    is_excused = row.is_capped or row.blocked_s > 0  # it is not what broke the budget
    return StepDone(row.name[:MAX_NAME], row.began_at, min(row.ended_at, now), row.ends_at - row.began_at,
                    row.how if row.is_over else left, detail, is_excused, cost_usd or None, parent)
