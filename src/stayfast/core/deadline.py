"""One absolute instant a request, and how far each wait may reach into the time that is left.

Formula: `remaining = at - now`; nested deadlines take `min()`; a wait of `cap` seconds ends at `min(now + cap, at)`.
Source: gRPC deadlines; the SDKs' own 600 s default for `total_s`.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from stayfast.core.setting import SettingDoc, check_bounds


class Deadline(msgspec.Struct, frozen=True, gc=False):
    """An instant on the monotonic clock. Immutable, so safe to share."""

    at: float

    def remaining(self, now: float) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - now)

    def has_passed(self, now: float) -> bool:
        """Whether nothing may be started any more."""
        return now >= self.at

    def within(self, cap_s: float, now: float) -> float:
        """The instant at which a wait of at most `cap_s` seconds ends, never after this deadline."""
        return min(self.at, now + cap_s)

    def earlier(self, other: "Deadline") -> "Deadline":
        """The stricter of two: how budgets nest."""
        return self if self.at <= other.at else other


def _wait(doc: str) -> SettingDoc:
    return SettingDoc(doc, more_than=0, maximum=86_400)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a request may wait for each thing, in seconds. All are bounded by `total_s`."""

    # what the OpenAI and Anthropic SDKs themselves wait
    total_s: Annotated[float, _wait("Accept to last byte: the request's deadline.")] = 600.0
    # a long prompt on a busy self-hosted engine prefills for a minute
    first_token_s: Annotated[float, _wait("An attempt's start to its first content token.")] = 120.0
    idle_s: Annotated[float, _wait("Between two reads of a running answer.")] = 60.0
    connect_s: Annotated[float, _wait("TCP and TLS.")] = 5.0

    def __post_init__(self) -> None:
        check_bounds(self)
