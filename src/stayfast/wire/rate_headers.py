"""What a provider says is left of its limits, in the headers of an answer.

    OpenAI, Azure, xAI, GitHub   x-ratelimit-{remaining,limit,reset}-{requests,tokens}, per minute; reset as 6m0s or seconds
    Groq                         the same names; requests are those of a day (quirk daily_requests); reset as 1m26.4s
    Cerebras, SambaNova          ...-{requests,tokens}-{minute,hour,day}; reset in seconds, or an instant
    Mistral                      ...-req-minute, ...-tokens-minute, without a reset
    Fireworks                    ...-tokens-prompt, ...-tokens-generated, without a reset
    Together                     x-ratelimit-{remaining,limit,reset} of requests, x-tokenlimit-{...} of tokens
    Anthropic                    anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{...}; reset as an instant
    Databricks, Bedrock, Vertex, Perplexity, NVIDIA, OpenRouter   none: only their 429s tell

A name without a window counts a minute. Of several limits with nothing left, the last to reset counts (wire.errors).
Source: the vendors' documentation, and headers recorded in public repositories in 2026 (Groq, Cerebras, Mistral, Fireworks,
Together). When wrong: a provider's own window under a name without one; the gateway then learns from 429s only.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

_LONGEST: Final = 24


class LimitNames(NamedTuple):
    """The headers of one limit. kind: as in metrics. quota: the setting of `rate` that limits the same; may be empty."""

    kind: str
    remaining: str
    limit: str
    reset: str
    quota: str = ""


def _openai_names(kind: str, name: str, quota: str = "", prefix: str = "x-ratelimit") -> LimitNames:
    suffix = f"-{name}" if name else ""
    return LimitNames(kind, f"{prefix}-remaining{suffix}", f"{prefix}-limit{suffix}", f"{prefix}-reset{suffix}", quota)


LIMITS: Final = (
    _openai_names("requests", "requests", "requests_per_minute"),
    _openai_names("tokens", "tokens", "tokens_per_minute"),
    _openai_names("project_tokens", "project-tokens"),
    *(_openai_names(f"{kind}_per_{window}" if window != "minute" else kind, f"{kind}-{window}",
                    f"{kind}_per_{window}" if window != "hour" else "")
      for kind in ("requests", "tokens") for window in ("minute", "hour", "day")),
    _openai_names("requests", "req-minute", "requests_per_minute"),
    _openai_names("input_tokens", "tokens-prompt"), _openai_names("output_tokens", "tokens-generated"),
    _openai_names("requests", ""), _openai_names("tokens", "", prefix="x-tokenlimit"),
    _openai_names("requests", "", prefix="ratelimit"),
    *(LimitNames(kind.replace("-", "_"), f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-limit",
                 f"anthropic-ratelimit-{kind}-reset", f"{kind}_per_minute" if kind in ("requests", "tokens") else "")
      for kind in ("requests", "tokens", "input-tokens", "output-tokens")),
)
_REQUESTS: Final = "x-ratelimit-remaining-requests"


def parse_remaining(headers: Mapping[str, str], *, are_requests_daily: bool = False) -> dict[str, float]:
    """What is left, by the setting of `rate`: requests_per_minute, tokens_per_day, .... Header names in lower case.
    are_requests_daily: a name without a window counts the requests of a day.
    """
    left: dict[str, float] = {}
    for names in LIMITS:
        if names.quota and names.remaining in headers:
            amount = _number(headers[names.remaining])
            is_daily = are_requests_daily and names.remaining == _REQUESTS
            if amount is not None:
                left.setdefault("requests_per_day" if is_daily else names.quota, amount)
    return left


def parse_headroom(headers: Mapping[str, str]) -> dict[str, float]:
    """The share, 0 to 1, that is left of each limit whose size is reported, too: requests, tokens_per_day, ..."""
    left: dict[str, float] = {}
    for names in LIMITS:
        if names.remaining in headers:
            n_left, most = _number(headers[names.remaining]), _number(headers.get(names.limit, ""))
            if n_left is not None and most:
                left.setdefault(names.kind, min(1.0, n_left / most))
    return left


def _number(text: str) -> float | None:
    text = text.strip()
    if text and len(text) <= _LONGEST and text.isascii() and text.replace(".", "", 1).isdigit():
        amount = float(text)
        return amount if isfinite(amount) else None
    return None
