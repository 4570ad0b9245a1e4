"""What a number may be that somebody writes: seconds, dollars, counts. What is none is told at once, with what to write.

`True` is no number here, though it is one in Python; NaN would be neither more nor less than any limit.
"""

from math import inf
from numbers import Real
from typing import Any


def is_seconds(value: Any) -> bool:
    """Whether it is a finite number above 0, whatever it is."""
    kind = type(value)
    return (kind is float or kind is int or _is_number(value)) and 0 < value < inf


def is_amount(value: Any) -> bool:
    """Whether it is a finite number, 0 or more."""
    return _is_number(value) and 0 <= value < inf


def is_count(value: Any, minimum: int = 0) -> bool:
    """Whether it is a whole number, `least` or more."""
    return type(value) is int and value >= minimum


def argument_error(rule: str, value: object) -> Exception:
    """What to raise of one: TypeError where it is no number, else ValueError."""
    return ValueError(rule) if _is_number(value) else TypeError(rule)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
