"""The deadline of a request: one absolute instant that bounds every wait.

Formula: `remaining_s = at - now`; nested deadlines take `min()`; a wait of `cap` seconds ends at `min(now + cap, at)`.
Source: gRPC deadlines. The default of `total_s` is that of the OpenAI and Anthropic SDKs, 600 s.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from stayfast.core.setting import SettingDoc, check_bounds


class Deadline(msgspec.Struct, frozen=True, gc=False):
    """An instant on the monotonic clock. Immutable."""

    at: float

    def remaining_s(self, now: float) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - now)

    def end_of_wait(self, cap_s: float, now: float) -> float:
        """The end of a wait of at most `cap_s` seconds, never after this deadline."""
        return min(self.at, now + cap_s)

    def min_with(self, other: "Deadline") -> "Deadline":
        """The earlier of two deadlines."""
        return self if self.at <= other.at else other


def _wait(doc: str) -> SettingDoc:
    return SettingDoc(doc, more_than=0, maximum=86_400)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time-outs of one request, in seconds. All are bounded by `total_s`."""

    # docs/decisions/0027-default-limits.md: what each bound would cut of honest answers
    total_s: Annotated[float, _wait("Accept to last byte: the request's deadline.")] = 300.0
    first_token_s: Annotated[float, _wait("An attempt's start to its first content token.")] = 60.0
    idle_s: Annotated[float, _wait("Between two signs of progress of a running answer; comments and pings are none.")] = 60.0
    connect_s: Annotated[float, _wait("TCP and TLS.")] = 5.0

    def __post_init__(self) -> None:
        check_bounds(self)
