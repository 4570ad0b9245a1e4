"""When an upstream that refused a request wants to be asked again: its Retry-After, or what it says of its limits.

Retry-After is meant for this and goes first. Where there is none, a refusal for a quota (429) or for load (503, 529) says in
its vendor's words when a limit is full again; only limits of which nothing is left count, and of those the last one.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final

import msgspec

MAX_SAID_S: Final = 86_400.0  # whoever says more means the same: not now
_REFUSALS: Final = frozenset({429, 503, 529})
_OPENAI: Final = tuple((f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}") for what in ("requests", "tokens"))
_ANTHROPIC: Final = tuple((f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset")
                          for what in ("requests", "tokens", "input-tokens", "output-tokens"))
_PLAIN: Final = (("x-ratelimit-remaining", "x-ratelimit-reset"), ("ratelimit-remaining", "ratelimit-reset"))
_LIMITS: Final = (*_OPENAI, *_ANTHROPIC, *_PLAIN)
_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = r"\d{1,15}(?:\.\d{1,15})?(?:h|ms|m|s|us|µs|ns)"
_DURATION: Final = re.compile(rf"(?:{_PART})+", re.ASCII)
_AMOUNT: Final = re.compile(r"([\d.]+)(h|ms|m|s|us|µs|ns)", re.ASCII)
_EPOCH_S, _EPOCH_MS = 1e9, 1e12  # what is more than this counts since 1970
_ANY: Final = msgspec.json.Decoder()
_IN_BODY: Final = b"X-RateLimit-Reset"


def retry_after_s(status: int, headers: Mapping[str, str], body: bytes, now_wall: float | None) -> float | None:
    """Seconds to leave it alone, at most a day; None where it does not say. Never raises.

    `headers` have lower-case names. `now_wall`: seconds since the epoch; without it dates and instants say nothing.
    """
    said = _retry_after(headers, now_wall)
    if said is not None or status not in _REFUSALS:
        return said
    found = _of_limits(headers, now_wall)
    return found if found is not None or _IN_BODY not in body else _in_body(body, now_wall)


def _retry_after(headers: Mapping[str, str], now_wall: float | None) -> float | None:
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        number = _number(headers.get(name, ""))
        if number is not None:
            return min(number * unit_s, MAX_SAID_S)
    if now_wall is None or "retry-after" not in headers:
        return None
    try:
        at = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (ValueError, OverflowError):
        return None
    return _until(at, now_wall)


def _of_limits(headers: Mapping[str, str], now_wall: float | None) -> float | None:
    """By the limits of which nothing is left; by all, where none says what is left."""
    resets = [(headers.get(left), headers[reset]) for left, reset in _LIMITS if reset in headers]
    if any(left is not None for left, _ in resets):
        resets = [(left, reset) for left, reset in resets if left is not None and _number(left) == 0]
    return _longest(_reset_s(reset, now_wall) for _, reset in resets)


def _in_body(body: bytes, now_wall: float | None) -> float | None:
    """OpenRouter's way: the upstream's headers, inside the error."""
    try:
        said: Any = _ANY.decode(body)
        for name in ("error", "metadata", "headers"):
            said = said[name]
        reset = said["X-RateLimit-Reset"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return _reset_s(str(reset), now_wall)


def _reset_s(text: str, now_wall: float | None) -> float | None:
    """A duration of Go's, a number of seconds, an instant of the epoch in s or ms, or of RFC 3339."""
    number = _number(text)
    if number is not None:
        if number < _EPOCH_S:
            return min(number, MAX_SAID_S)
        return _until(number if number < _EPOCH_MS else number / 1e3, now_wall)
    text = text.strip()
    if _DURATION.fullmatch(text):
        return min(sum(float(amount) * _UNITS_S[unit] for amount, unit in _AMOUNT.findall(text)), MAX_SAID_S)
    try:
        at = datetime.fromisoformat(text)
        return _until(at.timestamp(), now_wall) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _until(at_wall: float, now_wall: float | None) -> float | None:
    return None if now_wall is None else min(max(0.0, at_wall - now_wall), MAX_SAID_S)


def _longest(waits_s: Iterable[float | None]) -> float | None:
    return max((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None
