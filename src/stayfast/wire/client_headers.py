"""Headers between a client and the gateway: the client's time-out in, its remaining quota out.

Rate-limit headers follow the client's dialect. OpenAI: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; reset is a
Go duration until the quota is full (`1m0.5s`). Anthropic: `anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}`;
reset is an instant (RFC 3339).
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from stayfast.core.errors import Rejected
from stayfast.core.types import Allowance, Api

_TIMEOUT_UNITS_S = {
    b"x-request-timeout": 1.0, b"x-stayfast-deadline": 1.0, b"x-litellm-timeout": 1.0, b"x-request-timeout-ms": 1e-3,
    b"x-stayfast-deadline-ms": 1e-3, b"x-deadline-ms": 1e-3, b"x-envoy-expected-rq-timeout-ms": 1e-3}
_GRPC_TIMEOUT_HEADER = b"grpc-timeout"
TIMEOUT_HEADERS = frozenset((*_TIMEOUT_UNITS_S, _GRPC_TIMEOUT_HEADER))
_GRPC_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_GRPC_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_TIMEOUT_S = 86_400.0
START_WITHIN = b"x-stayfast-start-within"
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_client_timeout_s(fields: Mapping[bytes, bytes]) -> float | None:
    """The shortest time-out among the client's headers, in seconds; None without one. Raises Rejected naming the header."""
    if TIMEOUT_HEADERS.isdisjoint(fields):
        return None
    least_s: float | None = None
    for name, unit_s in _TIMEOUT_UNITS_S.items():
        value = fields.get(name)
        if value is not None:
            seconds = parse_number(value) * unit_s
            if not 0 < seconds <= _MAX_TIMEOUT_S:  # false for NaN
                unit = "seconds" if unit_s == 1.0 else "milliseconds"
                raise _bad_timeout(name, f"{unit}, more than 0 and at most {_MAX_TIMEOUT_S / unit_s:.0f}")
            least_s = seconds if least_s is None else min(seconds, least_s)
    if (value := fields.get(_GRPC_TIMEOUT_HEADER)) is not None:
        found = _GRPC_TIMEOUT.fullmatch(value)
        seconds = float(found[1]) * _GRPC_UNITS_S[found[2]] if found is not None else 0.0
        if seconds <= 0:
            raise _bad_timeout(_GRPC_TIMEOUT_HEADER, "digits and a unit of H, M, S, m, u or n, and more than 0")
        least_s = seconds if least_s is None else min(seconds, least_s)
    return least_s


def parse_start_within_s(value: str, name: str) -> float:
    """The client's time to the first token, in seconds: `30`, `1.5s`, `500ms`, `2m`. Raises Rejected naming the field."""
    found = _DURATION.fullmatch(value)
    seconds = float(found[1]) * _UNITS_S[found[2] or "s"] if found is not None else 0.0
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise Rejected(f"{name} must be seconds, more than 0 and at most {_MAX_TIMEOUT_S:.0f}, or a duration such as 500ms, "
                       "30s or 2m.", code="bad_timeout", param=name)
    return seconds


def parse_number(value: bytes) -> float:
    """The number in a header; NaN for any other text."""
    try:
        return math.nan if b"_" in value else float(value)  # float() accepts 1_000
    except ValueError:
        return math.nan


def _bad_timeout(name: bytes, expected: str) -> Rejected:
    return Rejected(f"{name.decode()} must be {expected}.", code="bad_timeout", param=name.decode())


def rate_limit_lines(api: Api, allowances: Sequence[Allowance], wall_at: float) -> bytes:
    """The rate-limit headers, as encoded lines. `wall_at`: now, in seconds since the epoch."""
    lines = ""
    if api.is_anthropic:
        for left in allowances:
            at = datetime.fromtimestamp(wall_at + left.full_in_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            name = f"anthropic-ratelimit-{left.kind}"
            lines += f"{name}-limit: {left.limit}\r\n{name}-remaining: {left.remaining}\r\n{name}-reset: {at}\r\n"
    else:
        for left in allowances:
            kind = left.kind
            lines += (f"x-ratelimit-limit-{kind}: {left.limit}\r\nx-ratelimit-remaining-{kind}: {left.remaining}\r\n"
                      f"x-ratelimit-reset-{kind}: {format_duration(left.full_in_s)}\r\n")
    return lines.encode()


def format_duration(seconds: float) -> str:
    """Format as Go does: 0s, 12ms, 1.5s, 6m0s, 1h30m0s."""
    n_ms = round(seconds * 1e3)
    if n_ms < 1000:
        return f"{n_ms}ms" if n_ms else "0s"
    minutes, rest_ms = divmod(n_ms, 60_000)
    text = f"{rest_ms / 1e3:g}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return text
