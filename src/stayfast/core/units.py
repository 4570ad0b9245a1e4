"""Numbers for people: three digits and a unit, a dash for missing values; and durations as people type them (1m30s)."""

import re
from math import inf, isfinite

DASH = "-"
FAILED = "failed"


def format_seconds(value_s: float) -> str:
    """0.000578 -> "578 us", 0.0421 -> "42.1 ms", 4.4914 -> "4.49 s"."""
    if not isfinite(value_s):
        return DASH if value_s != float("inf") else "never"
    size = abs(value_s)
    if size >= 0.9995:
        return f"{format_digits(value_s)} s"
    if size >= 0.0009995:
        return f"{format_digits(value_s * 1e3)} ms"
    return f"{format_digits(value_s * 1e6)} us" if size >= 5e-8 else "0"


def format_in_unit(value_s: float, unit: str) -> str:
    """0.226, "s" -> "0.226 s"; 1.5, "ms" -> "1500 ms"; values below a hundredth of the unit get a smaller unit."""
    value = value_s / {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    return f"{format_digits(value)} {unit}" if isfinite(value) and value >= 0.01 else format_seconds(value_s)


def format_quantile(value_s: float) -> str:
    """A quantile; "failed" if it falls among the failed requests (infinity)."""
    return FAILED if value_s == inf else format_seconds(value_s)


def format_digits(value: float) -> str:
    """Three significant digits, never in exponents: 0.123, 1.23, 12.3, 123, 1234."""
    size = abs(value)
    for bound, digits in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if size >= bound:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


def format_share(value: float) -> str:
    """0.98434 -> "98.4 %"; never rounded up to 100 %, nor down to 0 %."""
    if not isfinite(value):
        return DASH
    if 0.9995 <= value < 1:
        return f"{min(value, 0.99999) * 100:.3f} %"
    return f"{max(value, 0.00001) * 100:.3f} %" if 0 < value < 0.0005 else f"{value * 100:.1f} %"


def format_rate(value: float) -> str:
    """12.3 -> "12.3/s"."""
    return f"{format_digits(value)}/s" if isfinite(value) else DASH


def format_count(n: int) -> str:
    """1234567 -> "1,234,567"."""
    return f"{n:,}"


def format_factor(value: float) -> str:
    """7.75 -> "7.8x"."""
    return f"{value:.1f}x" if isfinite(value) else DASH


def make_printable(text: str) -> str:
    """Untrusted text with control characters replaced by "?", so that it is safe on a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Parse a duration such as 1m30s, in seconds. A unit is required. Raises ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration: write 500ms, 30s, 1m30s, 2h or 90d")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """A duration for people: 500 ms, 30 s, 5 min."""
    if seconds < 1:
        return f"{seconds * 1e3:g} ms"
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min"
