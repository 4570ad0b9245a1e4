"""What a provider says is left of its limits, in the headers of an answer."""

from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

_NAMES: Final = {kind: (f"x-ratelimit-remaining-{kind}", f"anthropic-ratelimit-{kind}-remaining")
                 for kind in ("requests", "tokens")}
_PAIRS: Final = (*((kind, f"x-ratelimit-remaining-{kind}", f"x-ratelimit-limit-{kind}")
                   for kind in ("requests", "tokens", "project-tokens")),
                 *((kind, f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-limit")
                   for kind in ("requests", "tokens", "input-tokens", "output-tokens")))
_LONGEST: Final = 24


class Remaining(NamedTuple):
    """None: not reported."""

    requests: float | None
    tokens: float | None


def parse_remaining(headers: Mapping[str, str]) -> Remaining:
    """Requests and tokens that are left of the limits per minute; OpenAI's or Anthropic's names, in lower case."""
    return Remaining(_amount(headers, "requests"), _amount(headers, "tokens"))


def parse_headroom(headers: Mapping[str, str]) -> dict[str, float]:
    """The share, 0 to 1, that is left of each limit whose size is reported, too: requests, tokens, input_tokens, ..."""
    left: dict[str, float] = {}
    for kind, remaining, limit in _PAIRS:
        if remaining in headers:
            n_left, most = _number(headers[remaining]), _number(headers.get(limit, ""))
            if n_left is not None and most:
                left[kind.replace("-", "_")] = min(1.0, n_left / most)
    return left


def _amount(headers: Mapping[str, str], kind: str) -> float | None:
    amounts = [_number(headers.get(name, "")) for name in _NAMES[kind]]
    return next((amount for amount in amounts if amount is not None), None)


def _number(text: str) -> float | None:
    text = text.strip()
    if text and len(text) <= _LONGEST and text.isascii() and text.replace(".", "", 1).isdigit():
        amount = float(text)
        return amount if isfinite(amount) else None
    return None
