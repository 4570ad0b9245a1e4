"""Off-peak windows: their form, and when they open, with days, midnight and summer time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.jobs.windows import DAYS, parse_window

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN) -> float:
    """Unix seconds of a local time."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(("window", "now", "opens"), [
    (f"22:00-06:00 {BERLIN}", "2026-07-01T12:00", "2026-07-01T22:00"),
    (f"22:00-06:00 {BERLIN}", "2026-07-01T23:30", "2026-07-01T23:30"),
    (f"22:00-06:00 {BERLIN}", "2026-07-01T05:59", "2026-07-01T05:59"),
    (f"22:00-06:00 {BERLIN}", "2026-07-01T06:00", "2026-07-01T22:00"),
    (f"Mon-Fri 19:00-07:00 {BERLIN}", "2026-07-04T08:00", "2026-07-06T19:00"),  # a Saturday
    (f"Fri 19:00-07:00 {BERLIN}", "2026-07-04T06:00", "2026-07-04T06:00"),  # still Friday's window
    (f"Sat,Sun 00:00-24:00 {BERLIN}", "2026-07-05T23:59", "2026-07-05T23:59"),
    (f"Sat,Sun 00:00-24:00 {BERLIN}", "2026-07-06T00:00", "2026-07-11T00:00"),
    (f"sun-mon 01:00-02:00 {BERLIN}", "2026-07-07T00:00", "2026-07-12T01:00"),
    (f"02:15-02:45 {BERLIN}", "2026-03-29T00:00", "2026-03-29T02:15"),  # skipped by the change to summer time
])
def test_next_opening_is_now_inside_and_the_next_start_outside(window: str, now: str, opens: str) -> None:
    """In the wall time of the zone."""
    assert parse_window(window).next_opening(at(now)) == at(opens)


def test_parse_window_without_a_zone_is_utc() -> None:
    """Not the machine's zone, which a container does not have."""
    assert parse_window("22:00-23:00").next_opening(at("2026-07-01T12:00", "UTC")) == at("2026-07-01T22:00", "UTC")


@pytest.mark.parametrize("text", ["", "22-06", "22:00", "25:00-06:00", "22:60-06:00", "24:00-06:00", "22:00-06:00 Mars/Base",
                                  "Foo 22:00-06:00", "Mon- 22:00-06:00x", "22:00-06:00 ../etc/passwd"])
def test_parse_window_of_another_form_is_an_error(text: str) -> None:
    """With a message for the operator."""
    with pytest.raises(ValueError, match=r"window|time|days|zone"):
        parse_window(text)


MINUTES = st.integers(0, 24 * 60 - 1)


@given(start=MINUTES, end=MINUTES, day=st.sampled_from(DAYS), now=st.integers(1_700_000_000, 1_900_000_000),
       zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe"]))
def test_next_opening_comes_within_eight_days_inside_the_window(start: int, end: int, day: str, now: int, zone: str) -> None:
    """For any window and instant, and a job that starts then starts inside."""
    window = parse_window(f"{day} {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02} {zone}")
    opens = window.next_opening(now)
    assert now <= opens <= now + 8.1 * 86_400
    assert window.next_opening(opens) == opens
    assert window.is_open(opens)
    if opens > now:
        local = datetime.fromtimestamp(opens, UTC).astimezone(ZoneInfo(zone))
        assert local.minute % 30 == start % 60 % 30
