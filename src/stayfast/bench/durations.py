"""Lengths of time as people type them: 500ms, 30s, 1m30s, 2h."""

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_in(text: str) -> float:
    """Read a length of time. A unit must be given. Raises ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a length of time: write 500ms, 30s, 1m30s or 2h")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def said(seconds: float) -> str:
    """A length of time for a person: 500 ms, 30 s, 5 min."""
    if seconds < 1:
        return f"{seconds * 1e3:g} ms"
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min"
