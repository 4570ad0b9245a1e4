"""policy.budget: parts, reserves, and time passed on to later stages."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Stage
from stayfast.policy.budget import STAGES, BudgetConfig, divide_deadline

STAGE_NAMES = tuple(STAGES)


@st.composite
def configs(draw: st.DrawFn) -> tuple[BudgetConfig, float]:
    """Parts that fit into a deadline, some of them missing; and the deadline in seconds."""
    total_s = draw(st.floats(0.1, 1000))
    shares = draw(st.lists(st.one_of(st.none(), st.integers(1, 14)), min_size=7, max_size=7))
    parts = {name: f"{share}%" for name, share in zip(STAGE_NAMES, shares, strict=True) if share is not None}
    return BudgetConfig(**parts), total_s


def walk(config: BudgetConfig, total_s: float, greed: list[float], reserve: str = "") -> list[tuple[Stage, float, float]]:
    """Each stage with its allowance and what it took: a share `greed` of it."""
    budget = divide_deadline(config, total_s, reserve)
    now = carried_s = 0.0
    taken = []
    for stage, share in zip(Stage, greed, strict=True):
        allowance_s = max(0.0, budget.ends_at(stage, now, total_s, carried_s) - now)
        spent_s = allowance_s * share
        taken.append((stage, allowance_s, spent_s))
        carried_s = budget.carried_s(stage, spent_s, carried_s)
        now += spent_s
    return taken


GREED = st.lists(st.floats(0, 1), min_size=7, max_size=7)


@given(configs(), GREED)
def test_stage_budget_sum_stays_within_deadline(made: tuple[BudgetConfig, float], greed: list[float]) -> None:
    """Stages that keep to their allowances are over by the deadline, however greedy they are."""
    config, total_s = made
    assert sum(spent_s for _, _, spent_s in walk(config, total_s, greed)) <= total_s * (1 + 1e-9)


@given(configs(), GREED)
def test_stage_budget_each_stage_gets_its_part(made: tuple[BudgetConfig, float], greed: list[float]) -> None:
    """Whatever the stages before it took: what was promised to a stage is there when it begins."""
    config, total_s = made
    parts_s = divide_deadline(config, total_s).parts_s
    for stage, allowance_s, _ in walk(config, total_s, greed):
        assert allowance_s >= parts_s.get(stage, 0.0) - 1e-6


@given(configs(), GREED, st.integers(0, 5))
def test_stage_budget_less_spent_allows_no_less_later(made: tuple[BudgetConfig, float], greed: list[float],
                                                      index: int) -> None:
    """A stage that takes less never leaves a later one with less: what is left over is handed on, not lost."""
    config, total_s = made
    thrifty = [*greed]
    thrifty[index] = greed[index] / 2
    eager_s, thrifty_s = (sum(spent for _, _, spent in walk(config, total_s, each)[:index + 1]) for each in (greed, thrifty))
    assert thrifty_s <= eager_s + 1e-9
    behind = zip(walk(config, total_s, greed)[index + 1:index + 2], walk(config, total_s, thrifty)[index + 1:index + 2],
                 strict=True)
    for (_, before_s, _), (_, after_s, _) in behind:
        assert after_s >= before_s - 1e-6


@given(configs(), st.floats(0.01, 1))
def test_stage_budget_shorter_deadline_scales_all_parts(made: tuple[BudgetConfig, float], share: float) -> None:
    """If the client's time-out is shorter, all parts shrink by the same factor."""
    config, total_s = made
    budget = divide_deadline(config, total_s).scale_to(total_s * share)
    for stage, part_s in divide_deadline(config, total_s).parts_s.items():
        assert budget.parts_s[stage] == pytest.approx(part_s * share)
    assert sum(budget.parts_s.values()) <= budget.total_s * (1 + 1e-9)


def test_stage_budget_longer_deadline_changes_nothing() -> None:
    """A client more patient than the route changes nothing; of a less patient one's time, the reserve keeps its share."""
    budget = divide_deadline(BudgetConfig(admit="1"), 10, "3")
    assert budget.scale_to(20) is budget
    assert budget.scale_to(5).reserve_s == 1.5


def test_stage_budget_unused_part_is_carried_over() -> None:
    """admit leaves 0.2 of its 0.3 to the cache; the stage between them has no part and takes none."""
    budget = divide_deadline(BudgetConfig(admit="0.3", context="0.1"), 2.0)
    carried_s = budget.carried_s(Stage.ADMIT, 0.1, 0.0)
    assert carried_s == pytest.approx(0.2)
    assert budget.ends_at(Stage.CACHE, 0.1, 2.0, carried_s) == pytest.approx(1.9)  # all but what the context must find
    assert budget.carried_s(Stage.CACHE, 1.0, carried_s) == carried_s
    assert budget.ends_at(Stage.CONTEXT, 0.2, 2.0, carried_s) == pytest.approx(0.5)


def test_stage_budget_earlier_stages_leave_the_reserve() -> None:
    """Even where the call has no part of its own."""
    budget = divide_deadline(BudgetConfig(), 10.0, "3")
    assert budget.ends_at(Stage.CONTEXT, 0.0, 10.0, 0.0) == 7.0
    assert budget.ends_at(Stage.CALL, 0.0, 10.0, 0.0) == 10.0


@pytest.mark.parametrize(("parts", "reserve", "complaint"), [
    ({"admit": "1", "model": "2"}, "", "budget comes to 3 s, which is more than the deadline of 2.5 s"),
    ({"admit": "60%", "model": "50%"}, "", "budget comes to 2.75 s"),
    ({"model": "1"}, "1", "reserve of 1 s leaves no time"),
    ({"admit": "0.5"}, "2", "reserve of 2 s leaves no time"),
    ({}, "100%", "reserve of 2.5 s leaves no time"),
    ({}, "0", "reserve of 0 s leaves no time"),
])
def test_share_out_parts_beyond_deadline_are_rejected(parts: dict[str, str], reserve: str, complaint: str) -> None:
    """The sum must fit into the deadline, and the reserve into the call."""
    with pytest.raises(ValueError, match=re.escape(complaint)):
        divide_deadline(BudgetConfig(**parts), 2.5, reserve)


@pytest.mark.parametrize("text", ["-1", "1s", "0.3 %", "nan", "1e3", "%", "1.", "0", "0.0%", "\uff11"])
def test_budget_config_accepts_seconds_and_shares_only(text: str) -> None:
    """Anything else is refused by its name."""
    with pytest.raises(ValueError, match=r"^cache must be seconds, or a share"):
        BudgetConfig(cache=text)


@given(configs(), st.floats(0.1, 1), st.floats(0.1, 1))
def test_stage_budget_nested_deadlines_take_the_shorter(made: tuple[BudgetConfig, float], one: float, other: float) -> None:
    """Parts, reserved times and the reserve are those of the shorter deadline alone."""
    config, total_s = made
    budget = divide_deadline(config, total_s)
    nested, direct = budget.scale_to(total_s * one).scale_to(total_s * other), budget.scale_to(total_s * min(one, other))
    assert nested.total_s == direct.total_s
    assert nested.parts_s == pytest.approx(direct.parts_s)
    assert nested.reserved_s == pytest.approx(direct.reserved_s)
    scale = min(one, other)
    assert direct.reserved_s == pytest.approx({stage: reserved_s * scale for stage, reserved_s in budget.reserved_s.items()})


def test_stage_budget_part_is_capped_by_what_later_stages_need() -> None:
    """Both caps hold: a stage never uses more than its part and what was carried over, nor time reserved for others."""
    budget = divide_deadline(BudgetConfig(admit="2", model="5"), 10.0)
    assert budget.ends_at(Stage.ADMIT, 0.0, 10.0, 0.0) == 2.0
    assert budget.ends_at(Stage.ADMIT, 4.0, 10.0, 0.0) == 5.0
    assert budget.ends_at(Stage.CALL, 1.0, 10.0, 1.0) == 7.0
    assert budget.ends_at(Stage.CALL, 1.0, 10.0, 100.0) == 10.0
    assert budget.ends_at(Stage.CACHE, 1.0, 10.0, 0.0) == 5.0
