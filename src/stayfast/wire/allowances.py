"""What a client has left of its quota, as the rate-limit headers of its dialect. SDKs and their users read them.

OpenAI: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, reset as a duration of Go's (`1m0.5s`) until it is full.
Anthropic: `anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}`, reset as an instant (RFC 3339).
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from stayfast.core.types import Allowance, Api


def rate_limit_lines(api: Api, allowances: Sequence[Allowance], wall_at: float) -> bytes:
    """Whole header lines. `wall_at`: now, in seconds since the epoch."""
    lines = ""
    if api.is_anthropic:
        for its in allowances:
            at = datetime.fromtimestamp(wall_at + its.full_in_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            name = f"anthropic-ratelimit-{its.kind}"
            lines += f"{name}-limit: {its.limit}\r\n{name}-remaining: {its.remaining}\r\n{name}-reset: {at}\r\n"
    else:
        for its in allowances:
            kind = its.kind
            lines += (f"x-ratelimit-limit-{kind}: {its.limit}\r\nx-ratelimit-remaining-{kind}: {its.remaining}\r\n"
                      f"x-ratelimit-reset-{kind}: {duration(its.full_in_s)}\r\n")
    return lines.encode()


def duration(seconds: float) -> str:
    """A duration as Go prints it: 0s, 12ms, 1.5s, 6m0s, 1h30m0s."""
    n_ms = round(seconds * 1e3)
    if n_ms < 1000:
        return f"{n_ms}ms" if n_ms else "0s"
    minutes, rest_ms = divmod(n_ms, 60_000)
    text = f"{rest_ms / 1e3:g}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return text
