"""What a provider says is left of its limits, in the headers of an answer."""

from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

_NAMES: Final = {kind: (f"x-ratelimit-remaining-{kind}", f"anthropic-ratelimit-{kind}-remaining")
                 for kind in ("requests", "tokens")}
_LONGEST: Final = 24


class Remaining(NamedTuple):
    """None: not reported."""

    requests: float | None
    tokens: float | None


def parse_remaining(headers: Mapping[str, str]) -> Remaining:
    """Requests and tokens that are left of the limits per minute; OpenAI's or Anthropic's names, in lower case."""
    return Remaining(_amount(headers, "requests"), _amount(headers, "tokens"))


def _amount(headers: Mapping[str, str], kind: str) -> float | None:
    for name in _NAMES[kind]:
        text = headers.get(name, "").strip()
        if text and len(text) <= _LONGEST and text.isascii() and text.replace(".", "", 1).isdigit():
            amount = float(text)
            return amount if isfinite(amount) else None
    return None
