"""Where code stands: in the body of a budget, or in one of its steps. Tasks and threads that it starts stand there too."""

from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING

from stayfast.turns.amounts import is_amount, wrong

if TYPE_CHECKING:
    from stayfast.turns.budget import Budget


class Scope:
    """One such place; `ends_at` is an instant of the budget's clock."""

    __slots__ = ("budget", "cost_usd", "ends_at", "inner")

    def __init__(self, budget: "Budget", ends_at: float) -> None:
        self.budget = budget
        self.ends_at = ends_at
        self.cost_usd = 0.0  # what was charged to it
        self.inner: list[Budget] | None = None  # those that were opened in it


here: ContextVar[Scope | None] = ContextVar("stayfast_turn", default=None)


def current() -> "Budget":
    """The innermost budget around this code. Raises RuntimeError where there is none."""
    scope = here.get()
    if scope is None:
        raise RuntimeError("no budget is open around this code: write `async with budget(total=2.5):` around what calls it, "
                           "or ask remaining(), which is infinite then")
    return scope.budget


def remaining() -> float:
    """Seconds left for this code, by the budget and the step that it runs in; infinite where there is none.

    So that code which knows of no turn can be given its time: `timeout=min(5.0, remaining())`.
    """
    scope = here.get()
    return inf if scope is None else max(0.0, scope.ends_at - scope.budget.now())


def charge(usd: float) -> None:
    """What the step that runs here has just cost, in dollars, for the report; nothing without a budget.

    Raises ValueError and TypeError for what is no amount: it is summed up, and one such sum would spoil all that come after.
    """
    if not is_amount(usd):
        raise wrong(f"charge({usd!r:.80}): what a step cost is dollars, 0 or more, as in charge(0.0004)", usd)
    scope = here.get()
    if scope is not None:
        scope.cost_usd += usd
