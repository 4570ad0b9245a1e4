"""Two summaries as one, and a summary of bounded length."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.context import Summary, SummaryItem
from stayfast.policy.context.summary_merge import limit_summary, merge_summaries
from stayfast.wire.context.summary import render_summary

OLDER = Summary(("never on Friday",), (SummaryItem("budget = 5 EUR", 1), SummaryItem("city = Rome", 2)), ("A-1",),
                (SummaryItem("migrate", 2, "open"), SummaryItem("build", 3, "done")), "Anna asks.", (1, 3), "aa", "r@1")
NEWER = Summary(("never on Friday", "only by rail"), (SummaryItem("Budget = 7 EUR", 5),), ("A-1", "B-2"),
                (SummaryItem("migrate", 5, "done"),), "Ben answers.", (4, 6), "bb", "r@2")
TEXT = st.text("abc =", min_size=1, max_size=30)
ITEM = st.builds(SummaryItem, TEXT, st.integers(1, 9), st.sampled_from(["done", "failed", "open"]))
ITEMS = st.lists(ITEM, max_size=5).map(tuple)
SUMMARIES = st.builds(Summary, pinned=st.lists(TEXT, max_size=3).map(tuple), facts=ITEMS, status=ITEMS,
                      ids=st.lists(TEXT, max_size=4).map(tuple), narrative=st.text("abc\n", max_size=60))


def test_merge_summaries_carries_all_on_and_lets_newer_facts_replace_older_ones() -> None:
    """Pins and ids once each; a changed value and a finished step only as they are now."""
    whole = merge_summaries(OLDER, NEWER, "cc")
    assert whole.pinned == ("never on Friday", "only by rail")
    assert [fact.text for fact in whole.facts] == ["city = Rome", "Budget = 7 EUR"]
    assert whole.ids == ("A-1", "B-2")
    assert [(step.text, step.state) for step in whole.status] == [("build", "done"), ("migrate", "done")]
    assert whole.narrative == "Anna asks.\nBen answers."
    assert (whole.covers, whole.digest, whole.made_by) == ((1, 6), "cc", "r@2")


@given(SUMMARIES, SUMMARIES)
def test_merge_summaries_never_loses_a_pin_or_an_id(older: Summary, newer: Summary) -> None:
    """Append-only."""
    whole = merge_summaries(older, newer, "")
    assert {*older.pinned, *newer.pinned} == set(whole.pinned)
    assert {*older.ids, *newer.ids} == set(whole.ids)
    assert len(set(whole.pinned)) == len(whole.pinned)


@given(SUMMARIES, st.integers(0, 800))
def test_limit_summary_fits_and_drops_pins_never(summary: Summary, most: int) -> None:
    """None only if what cannot be dropped is too long."""
    limited = limit_summary(summary, most, lambda one: len(render_summary(one)))
    if limited is None:
        assert len(render_summary(Summary(summary.pinned, covers=summary.covers))) > most
    else:
        assert len(render_summary(limited)) <= most
        assert limited.pinned == summary.pinned


def test_limit_summary_drops_the_oldest_of_the_narrative_first() -> None:
    """Then steps that are done, facts, other steps, ids."""
    whole = merge_summaries(OLDER, NEWER, "cc")
    count = len(render_summary(whole))
    assert limit_summary(whole, count, lambda one: len(render_summary(one))) is whole
    shorter = limit_summary(whole, count - 1, lambda one: len(render_summary(one)))
    assert shorter is not None
    assert shorter.narrative == "Ben answers."
    assert shorter.facts == whole.facts
    bare = limit_summary(whole, 0, lambda one: len(one.narrative) + len(one.facts) + len(one.status) + len(one.ids))
    assert bare is not None
    assert (bare.facts, bare.ids, bare.status) == ((), (), ())
