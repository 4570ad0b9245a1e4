"""The output limit of an attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import OutputCap
from stayfast.policy.context.output_cap import CapConfig, PaceEstimate, choose_cap, fit_tokens, may_share

FITTED = CapConfig(fit_deadline=True, reserve_s=0.5)
PACE = PaceEstimate(ttft_s=0.5, tpot_s=0.02, n_longest=1000)


def test_fit_tokens_is_the_rest_of_the_time_over_tpot() -> None:
    assert fit_tokens(3.0, 0.5, PACE) == 100
    assert fit_tokens(1.0, 0.5, PACE) == 0
    assert fit_tokens(0.2, 0.5, PACE) == 0


@pytest.mark.parametrize(("config", "own", "left_s", "pace", "expected"), [
    (CapConfig(), 100_000, 3.0, PACE, None),
    (FITTED, 100_000, 3.0, PACE, OutputCap("deadline", 100)),
    (FITTED, 100, 3.0, PACE, None),
    (FITTED, 99, 3.0, PACE, None),
    (FITTED, 100_000, 3.0, None, None),  # unknown: nothing is fitted
    (FITTED, 100_000, 1.3, PACE, None),  # 15 tokens: below the floor
    (FITTED, 100_000, 1.33, PACE, OutputCap("deadline", 16)),
    (FITTED, None, 3.0, PACE, OutputCap("deadline", 100)),
    (FITTED, None, 30.0, PACE, None),  # longer than any answer so far
    (CapConfig(default_tokens=300), None, 3.0, None, OutputCap("default", 300)),
    (CapConfig(default_tokens=300), 500, 3.0, None, None),
    (CapConfig(max_tokens=300), 500, 3.0, None, OutputCap("route", 300)),
    (CapConfig(max_tokens=300), None, 3.0, None, OutputCap("route", 300)),
    (CapConfig(max_tokens=300), 200, 3.0, None, None),
    (CapConfig(fit_deadline=True, default_tokens=300, reserve_s=0.5), None, 3.0, PACE, OutputCap("deadline", 100)),
    (CapConfig(fit_deadline=True, default_tokens=300, reserve_s=0.5), None, 30.0, PACE, OutputCap("default", 300)),
])
def test_choose_cap_takes_the_least_limit(config: CapConfig, own: int | None, left_s: float, pace: PaceEstimate | None,
                                          expected: OutputCap | None) -> None:
    assert choose_cap(config, own, left_s, pace) == expected


def test_choose_cap_with_reasoning_leaves_room_for_it() -> None:
    pace = PaceEstimate(0.5, 0.02, n_reasoning=400, n_longest=1000)
    assert choose_cap(FITTED, 100_000, 3.0, pace) == OutputCap("deadline", 500)


def test_choose_cap_stays_above_the_reasoning_budget_of_the_request() -> None:
    assert choose_cap(FITTED, 100_000, 3.0, PACE, n_budget=84) == OutputCap("deadline", 100)
    assert choose_cap(FITTED, 100_000, 3.0, PACE, n_budget=85) is None
    assert choose_cap(CapConfig(max_tokens=2000), 100_000, 3.0, None, n_budget=2000) is None


def test_choose_cap_below_the_shortest_answer_fits_nothing() -> None:
    assert choose_cap(FITTED, 100_000, 3.0, PACE, n_least=101) is None
    assert choose_cap(CapConfig(default_tokens=20), None, 3.0, None, n_least=20) is None


PACES = st.builds(PaceEstimate, st.floats(0, 100), st.floats(0, 10), st.integers(0, 10**5), st.integers(0, 10**5))


@given(st.integers(1, 10**6) | st.none(), st.floats(-10, 1e4), PACES)
def test_choose_cap_only_lowers_and_never_below_the_floor(own: int | None, left_s: float, pace: PaceEstimate) -> None:
    cap = choose_cap(FITTED, own, left_s, pace)
    if cap is not None:
        assert FITTED.floor <= cap.n_tokens < (own if own is not None else pace.n_longest)
        assert pace.ttft_s + (cap.n_tokens - pace.n_reasoning) * pace.tpot_s <= left_s - FITTED.reserve_s + 1e-6


def test_cap_config_with_a_default_above_the_highest_raises() -> None:
    with pytest.raises(ValueError, match="default_tokens must be at most max_tokens"):
        CapConfig(default_tokens=200, max_tokens=100)


@pytest.mark.parametrize(("until", "expected"), [(10.0, True), (10.9, True), (11.1, False), (9.99, False)])
def test_may_share_needs_a_similar_deadline(until: float, expected: bool) -> None:
    assert may_share(10.0, until, 0.0) is expected
