"""When a line of cron is due next.

    minute hour day-of-month month day-of-week       each *, a number, a range 1-5, a step */15 or 8-18/2, or a list of those

As in cron: day 0 and 7 are Sunday; where both days are restricted, either of them will do. Names (MON, JAN) and words
(@daily) are not read. Times are those of the instant that is asked with: its time zone, and what its clocks do. A minute
that is skipped in spring is skipped here, one that comes twice in autumn is due once.
Source: POSIX.1-2017, crontab. croniter was weighed: thirty times the code, for seconds, names and Jenkins' hashes.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_MOST_DAYS = 8 * 366 + 1  # from one 29th of February to the next over a century's end


@dataclass(frozen=True, slots=True)
class Cron:
    """A line that was read. Days of the week are 0 to 6 from Sunday."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either_day: bool  # day of month or of week, where both are restricted

    def next_after(self, now: datetime) -> datetime:
        """The first minute after `now` at which it is due, in the same time zone. Raises ValueError where there is none."""
        at = (now + timedelta(minutes=1)).replace(second=0, microsecond=0, fold=0)
        for _ in range(_MOST_DAYS):
            is_day, is_weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
            if at.month in self.months and (is_day or is_weekday if self.is_either_day else is_day and is_weekday):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        if (hour, minute) >= (at.hour, at.minute):
                            return at.replace(hour=hour, minute=minute)
            at = at.replace(hour=0, minute=0) + timedelta(days=1)
        raise ValueError("there is no such day")


def read_cron(line: str) -> Cron:
    """Read a line of five fields. Raises ValueError, which says what is wrong with which."""
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
            raise ValueError(f"{name}: {part!r} is no number, range, step or *")
        begin, end, by = int(numbers[0]), int(numbers[1]), int(step or "1")
        if not low <= begin <= end <= high or by < 1:
            raise ValueError(f"{name}: {part!r} is not within {low} to {high}")
        values.update(range(begin, end + 1, by))
    return frozenset(values)
