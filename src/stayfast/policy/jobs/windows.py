"""Off-peak windows: the hours in which the batches of a route may run.

Problem: a provider is cheaper, or an engine is idle, at certain hours of the place where its users live.
Rule: a window is `[days] HH:MM-HH:MM [zone]`, in the wall time of the zone (UTC by default). It includes its first minute,
not its last. If it ends at or before its start, it ends on the next day; the days are those of its start. A job that comes
outside waits for the next opening:

    run_at = now                                   if some window contains now
    run_at = the earliest start of a window > now  otherwise

Examples: `22:00-06:00 Europe/Berlin`, `Mon-Fri 19:00-07:00 America/New_York`, `Sat,Sun 00:00-24:00`.
Source: cron's day names; the time-zone database (RFC 6557). A local time that the change to summer time skips is taken with
the offset before the change (PEP 495, fold 0), so a window loses or gains that hour and never vanishes.
When wrong: a job that has started goes on after the window's end.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EVERY_DAY = frozenset(range(7))
_MINUTES_A_DAY = 24 * 60
_FORM = re.compile(r"(?:(?P<days>[A-Za-z,-]+)\s+)?(?P<start>\d\d:\d\d)-(?P<end>\d\d:\d\d)(?:\s+(?P<zone>[A-Za-z0-9_+/-]+))?")
FORM_TEXT = "like `22:00-06:00 Europe/Berlin` or `Mon-Fri 19:00-07:00 America/New_York`"


class OffPeakWindow(msgspec.Struct, frozen=True):
    """start, end: minutes of the day; `end` is after `start`, and beyond 1440 on the next day. days: 0 is Monday."""

    start: int
    end: int
    zone: str = "UTC"
    days: frozenset[int] = _EVERY_DAY

    def next_opening(self, now: float) -> float:
        """When a job may start that comes at `now`: `now` itself inside the window. Unix seconds."""
        zone = ZoneInfo(self.zone)
        today = datetime.fromtimestamp(now, UTC).astimezone(zone).date()
        for n in range(-2, 9):
            day = today + timedelta(days=n)
            if day.weekday() not in self.days:
                continue
            if _instant(day, self.end, zone) > now:
                return max(now, _instant(day, self.start, zone))
        raise AssertionError("a window opens within a week")

    def is_open(self, now: float) -> bool:
        return self.next_opening(now) <= now


def parse_window(text: str) -> OffPeakWindow:
    """Raises ValueError for another form, an unknown day or an unknown zone."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a window has the form {FORM_TEXT}, not {text!r}")
    start, end = _minutes(match["start"], text), _minutes(match["end"], text)
    if start == _MINUTES_A_DAY:
        raise ValueError(f"a window starts at 23:59 at the latest, not at 24:00: {text!r}")
    zone = match["zone"] or "UTC"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {zone!r}; names are like Europe/Berlin, and need the system's time-zone data "
                         "or the package tzdata") from None
    return OffPeakWindow(start, end if end > start else end + _MINUTES_A_DAY, zone, _parse_days(match["days"], text))


def _minutes(text: str, window: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    n = hours * 60 + minutes
    if minutes >= 60 or n > _MINUTES_A_DAY:
        raise ValueError(f"{text} is no time of the day: {window!r}")
    return n


def _parse_days(text: str | None, window: str) -> frozenset[int]:
    if text is None:
        return _EVERY_DAY
    days: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"days are {', '.join(DAYS)}, or a range like mon-fri: {window!r}")
        at = DAYS.index(first)
        days.add(at)
        while DAYS[at] != (last or first):
            at = (at + 1) % 7
            days.add(at)
    return frozenset(days)


def _instant(day: date, minutes: int, zone: ZoneInfo) -> float:
    """The Unix time of a local time, `minutes` after the midnight that starts `day`."""
    extra, minutes = divmod(minutes, _MINUTES_A_DAY)
    local = datetime.combine(day + timedelta(days=extra), time(minutes // 60, minutes % 60), zone)
    return local.timestamp()
