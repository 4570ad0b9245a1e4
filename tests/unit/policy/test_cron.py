"""Lines of cron: when they are due, and which are none."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.cron import parse_cron

WEDNESDAY = datetime(2026, 11, 18, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(("line", "due"), [
    ("* * * * *", "2026-11-18 12:35"), ("0 6 * * *", "2026-11-19 06:00"), ("0 6 * * 1-5", "2026-11-19 06:00"),
    ("30 5 * * 6,0", "2026-11-21 05:30"), ("30 5 * * 7", "2026-11-22 05:30"), ("*/15 8-18/2 * * *", "2026-11-18 12:45"),
    ("0 0 1 1 *", "2027-01-01 00:00"), ("0 0 29 2 *", "2028-02-29 00:00"), ("0 0 13 * 5", "2026-11-20 00:00"),
    ("34 12 * * *", "2026-11-19 12:34"), ("50/5 * * * *", "2026-11-18 12:50"), ("0 0 */10 * 5", "2026-12-11 00:00"),
])
def test_cron_next_after_returns_due_minute(line: str, due: str) -> None:
    """As cron itself would have it: steps, lists, Sundays, and either of two days where both are named."""
    assert parse_cron(line).next_after(WEDNESDAY).strftime("%Y-%m-%d %H:%M") == due


@pytest.mark.parametrize(("line", "why"), [
    ("0 6 * *", "five fields"), ("60 * * * *", "minute"), ("* 24 * * *", "hour"), ("* * 0 * *", "day"),
    ("* * * JAN *", "month"), ("* * * * 8", "day of week"), ("*/0 * * * *", "minute"), ("5-1 * * * *", "minute"),
    ("1,, * * * *", "minute"), ("@daily", "five fields"), ("-1 * * * *", "minute"), ("\u0661 * * * *", "minute")])
def test_read_cron_invalid_line_names_the_field(line: str, why: str) -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match=why):
        parse_cron(line)


def test_cron_impossible_day_is_rejected() -> None:
    """The 31st of February is an error, not an endless search."""
    with pytest.raises(ValueError, match="no such day"):
        parse_cron("0 0 31 2 *").next_after(WEDNESDAY)


@given(st.text(alphabet="0123456789*,-/ ", max_size=20), st.integers(0, 10**9))
def test_cron_next_after_matches_all_fields(line: str, seconds: int) -> None:
    """Any text is refused or due at a minute after now."""
    now = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    try:
        due = parse_cron(line).next_after(now)
    except ValueError:
        return
    assert due > now
    assert (due.second, due.microsecond) == (0, 0)
