"""What is sent of a long conversation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.context.history import (
    GAIN,
    HistoryConfig,
    KnownSummary,
    SentHistory,
    divide_span,
    find_cut,
    plan_history,
    share_tokens,
)

TRIM = HistoryConfig("trim", allowance_tokens=1000)
SUMMARIZE = HistoryConfig("summarize", allowance_tokens=1000, by="small")
SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=60)


def test_plan_history_within_the_start_sends_everything_raw() -> None:
    """Nothing is cut or summarized up to 60 % of the allowance."""
    plan = plan_history([100] * 6, SUMMARIZE)
    assert (plan.cut, plan.start, plan.n_tokens, plan.n_dropped) == (0, None, 600, 0)


def test_plan_history_beyond_the_start_summarizes_all_but_the_last_turns_and_sends_them_raw_meanwhile() -> None:
    """The request itself is unchanged until the summary exists."""
    plan = plan_history([100] * 8, SUMMARIZE)
    assert (plan.cut, plan.start) == (0, (0, 5))


def test_plan_history_with_a_summary_sends_it_and_the_turns_after_it() -> None:
    """No new summary until the start is exceeded again."""
    plan = plan_history([100] * 8, SUMMARIZE, KnownSummary(5, 120))
    assert (plan.cut, plan.n_summarized, plan.n_tokens, plan.start) == (5, 5, 420, None)


def test_plan_history_extends_a_summary_only_by_enough_turns() -> None:
    """The prompt's beginning changes seldom: the next summary starts where the first one ends."""
    plan = plan_history([100] * 11, SUMMARIZE, KnownSummary(5, 120))
    assert plan.start == (5, 8)
    assert plan_history([150] * 3, SUMMARIZE, None).start is None
    assert plan_history([700, 10, 10, 10], HistoryConfig("summarize", allowance_tokens=1000, by="s")).start == (0, 1)
    assert plan_history([100, 10, 10, 700], HistoryConfig("summarize", allowance_tokens=1000, by="s")).start is None


def test_plan_history_while_a_summary_is_made_starts_no_other() -> None:
    """A tried one is tried again one allowance later."""
    assert plan_history([100] * 17, SUMMARIZE, tried=(5,)).start is None
    assert plan_history([100] * 18, SUMMARIZE, tried=(5,)).start == (0, 15)


def test_plan_history_beyond_the_allowance_leaves_out_the_oldest_turns_in_steps() -> None:
    """The cut stays at the same turn until the allowance is exceeded again."""
    cuts = [plan_history([100] * n, TRIM).cut for n in range(1, 22)]
    assert cuts == [0] * 10 + [5] * 5 + [10] * 5 + [15]


def test_plan_history_with_a_summary_drops_only_turns_after_it() -> None:
    """What the summary covers stays covered."""
    plan = plan_history([100] * 20, TRIM, KnownSummary(5, 200))
    assert plan.cut > plan.n_summarized == 5
    assert plan.n_tokens <= 1000


def test_plan_history_with_large_last_turns_keeps_them_all() -> None:
    """The last turns are sent even beyond the allowance."""
    assert plan_history([100, 900, 900, 900], TRIM).cut == 1


@given(SIZES, st.sampled_from([TRIM, SUMMARIZE]), st.integers(0, 20), st.integers(1, 250))
def test_plan_history_of_any_sizes_keeps_the_last_turns_and_the_allowance(
        sizes: list[int], config: HistoryConfig, after: int, n_tokens: int) -> None:
    """Fits the allowance, unless only the last turns are left."""
    known = KnownSummary(after, n_tokens) if 0 < after <= len(sizes) - config.raw_turns else None
    plan = plan_history(sizes, config, known)
    assert plan.n_summarized <= plan.cut <= max(plan.n_summarized, len(sizes) - config.raw_turns)
    assert plan.n_tokens <= config.allowance_tokens or plan.cut == max(plan.n_summarized, len(sizes) - config.raw_turns)
    if plan.start is not None:
        first, end = plan.start
        assert first == plan.n_summarized
        assert end == len(sizes) - config.raw_turns
        assert sum(sizes[first:end]) >= GAIN * config.allowance_tokens


def test_plan_history_after_another_request_leaves_out_what_that_did() -> None:
    """Whatever the sizes are estimated at now, until the allowance is exceeded; unless the summary is another one."""
    before = SentHistory(0, 5)
    assert [plan_history([size] * 11, TRIM, before=before).cut for size in (50, 90, 100, 110, 160)] == [5] * 5
    assert plan_history([100] * 16, TRIM, before=before).cut == 10
    assert plan_history([100] * 11, TRIM, KnownSummary(3, 50), before=before).cut == 3
    assert plan_history([100] * 4, TRIM, before=before).cut == 0  # another branch of the conversation, which is shorter


@given(SIZES)
def test_find_cut_never_goes_back_as_a_conversation_grows(sizes: list[int]) -> None:
    """A turn that was left out stays out."""
    cuts = [find_cut(sizes[:n], TRIM, 0, 0) for n in range(len(sizes) + 1)]
    assert cuts == sorted(cuts)


@given(SIZES, st.integers(1, 2000))
def test_divide_span_covers_all_turns_once_in_order(sizes: list[int], most: int) -> None:
    """Parts are within the bound, or single turns."""
    parts = divide_span(sizes, 0, len(sizes), most)
    assert [turn for first, after in parts for turn in range(first, after)] == list(range(len(sizes)))
    assert all(sum(sizes[first:after]) <= most or after == first + 1 for first, after in parts)


def test_share_tokens_divides_by_bytes() -> None:
    """No part is free."""
    assert share_tokens(100, 400, [200, 100, 1]) == [50, 25, 1]
    assert share_tokens(0, 0, [5]) == [1]


@pytest.mark.parametrize(("options", "word"), [
    ({"mode": "summarize"}, "by"), ({"raw_turns": 1}, "raw_turns"), ({"pins": ("(",)}, "pins.0"),
    ({"start_at": 1.0}, "start_at")])
def test_history_config_with_a_wrong_value_names_the_field(options: dict[str, Any], word: str) -> None:
    """Wrong settings are found at load."""
    with pytest.raises(ValueError, match=word):
        HistoryConfig(**options)
