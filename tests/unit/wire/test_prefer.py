"""The Prefer header, as clients write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.jobs.prefer import MAX_PREFER_WAIT_S, AsyncPreference, parse_prefer


@pytest.mark.parametrize(("value", "wait_s"), [
    ("respond-async", 0), ("respond-async, wait=10", 10), ("wait=10,respond-async", 10), ("Respond-Async;x=1, WAIT = 3", 3),
    ('respond-async, wait="7"', 7), ("respond-async=?1", 0), ("respond-async, wait=10, wait=20", 10),
    ("respond-async, wait=soon", 0), ("respond-async, wait=-1", 0), ("respond-async, wait=99999", MAX_PREFER_WAIT_S),
    ('return=minimal, foo="a, b", respond-async', 0)])
def test_parse_prefer_with_respond_async_returns_wait(value: str, wait_s: int) -> None:
    """In every legal form; a malformed wait is none."""
    assert parse_prefer(value) == AsyncPreference(wait_s)


@pytest.mark.parametrize("value", ["", "wait=10", "return=minimal", "respond-async=?0", 'foo="respond-async"',
                                   'foo="a, respond-async, b"', "respond-asynchronously", "respond-async=no"])
def test_parse_prefer_without_respond_async_is_none(value: str) -> None:
    """Only a client that wants a later answer gets 202."""
    assert parse_prefer(value) is None


@given(st.text(alphabet='resp-async,wait=10; "\\', max_size=60))
def test_parse_prefer_of_any_text_never_raises(value: str) -> None:
    """And never waits longer than the limit."""
    found = parse_prefer(value)
    assert found is None or 0 <= found.wait_s <= MAX_PREFER_WAIT_S


def test_applied_names_what_was_honoured() -> None:
    """For Preference-Applied."""
    assert (AsyncPreference().applied, AsyncPreference(5).applied) == ("respond-async", "respond-async, wait=5")
