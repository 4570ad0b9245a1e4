"""The next time of a cron schedule.

    minute hour day-of-month month day-of-week       each *, a number, a range 1-5, a step */15 or 8-18/2, or a list of those

As in cron, 0 and 7 are Sunday, and if both day fields are restricted, either may match. Names (MON, JAN) and words (@daily)
are not supported. Times are in the time zone of the given instant: a minute skipped in spring is skipped, and one that
occurs twice in autumn is due once.
Source: POSIX.1-2017, crontab. croniter would be thirty times the code, for seconds, names and Jenkins' hashes.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_MOST_DAYS = 8 * 366 + 1  # from one 29th of February to the next across a turn of the century


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed schedule. Days of the week are 0 to 6 from Sunday."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either_day: bool  # both day fields are restricted, and either may match

    def next_after(self, now: datetime) -> datetime:
        """The first due minute after `now`, in the same time zone. Raises ValueError if there is none."""
        at = (now + timedelta(minutes=1)).replace(second=0, microsecond=0, fold=0)
        for _ in range(_MOST_DAYS):
            is_day, is_weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
            if at.month in self.months and (is_day or is_weekday if self.is_either_day else is_day and is_weekday):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        if (hour, minute) >= (at.hour, at.minute):
                            return at.replace(hour=hour, minute=minute)
            at = at.replace(hour=0, minute=0) + timedelta(days=1)
        raise ValueError("the schedule has no such day")


def parse_cron(line: str) -> Cron:
    """Parse a line of five fields. Raises ValueError that names the wrong field."""
    fields = line.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"a cron line has five fields, minute hour day month weekday, as in 0 6 * * 1-5; not {len(fields)}")
    minutes, hours, days, months, weekdays = (
        _values(text, name, low, high) for text, (name, low, high) in zip(fields, _FIELDS, strict=True))
    return Cron(minutes, hours, days, months, frozenset(day % 7 for day in weekdays),
                not fields[2].startswith("*") and not fields[4].startswith("*"))


def _values(text: str, name: str, low: int, high: int) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = (str(low), "-", str(high)) if span == "*" else span.partition("-")
        numbers = [first, last] if dash else [first, str(high) if step else first]
        if not all(number.isascii() and number.isdigit() for number in (*numbers, step or "1")):
            raise ValueError(f"{name}: {part!r} is not a number, range, step or *")
        begin, end, by = int(numbers[0]), int(numbers[1]), int(step or "1")
        if not low <= begin <= end <= high or by < 1:
            raise ValueError(f"{name}: {part!r} is not within {low} to {high}")
        values.update(range(begin, end + 1, by))
    return frozenset(values)
