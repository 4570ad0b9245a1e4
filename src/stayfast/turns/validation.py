"""Checks of numbers passed by callers: seconds, dollars, counts. Wrong values raise at once, with an example of a right one.

`True` is not accepted as a number, although Python treats it as 1. NaN is rejected: it compares as neither above nor below
any limit.
"""

from math import inf
from numbers import Real
from typing import Any


def is_seconds(value: Any) -> bool:
    """Whether the value is a finite number above 0."""
    kind = type(value)
    return (kind is float or kind is int or _is_number(value)) and 0 < value < inf


def is_amount(value: Any) -> bool:
    """Whether the value is a finite number, 0 or more."""
    return _is_number(value) and 0 <= value < inf


def is_count(value: Any, minimum: int = 0) -> bool:
    """Whether the value is an integer, `minimum` or more."""
    return type(value) is int and value >= minimum


def argument_error(rule: str, value: object) -> Exception:
    """The exception to raise: TypeError if the value is not a number, else ValueError."""
    return ValueError(rule) if _is_number(value) else TypeError(rule)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
