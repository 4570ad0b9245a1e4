"""Faults of a share of the requests (`FaultRule`), and regimes that affect all requests of a time (`Regimes`).

Problem: with independent draws every retry has a fresh chance, and a hedge to the same provider looks better than it is.
Rule: a continuous-time Markov process, with its own seed, moves between four regimes; the length of a stay is exponential
with mean `mean_s`. A regime applies to the requests that arrive in it, and does not depend on them.
When wrong: durations, factors and transitions are assumed; no reliable public figures of incidents were found.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Annotated, Final, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Api


class FaultKind(StrEnum):
    """What fails. A "whole" answer is one that is not streamed."""

    REFUSED = "refused"  # no connection
    RESET = "reset"  # the connection is reset before the response head
    HANG = "hang"  # the request is never answered
    SLOW_HEADERS = "slow_headers"  # the head is `seconds` late
    STATUS = "status"  # an error answer: `status`, in the dialect's form
    SILENT = "silent"  # a good head, then no content: nothing, or only a role and comments
    RESET_MID = "reset_mid"  # the connection is reset inside the body
    CUT = "cut"  # the connection is closed inside the body, without the last chunk
    TRUNCATED = "truncated"  # the HTTP body ends cleanly, but without the dialect's last event
    IN_BAND = "in_band"  # an error event inside the stream; for whole answers, an error body with status 200
    MALFORMED = "malformed"  # invalid JSON
    STALL = "stall"  # a pause of `seconds` inside the body
    SLOW = "slow"  # every gap is `factor` times longer


BEFORE_BODY: Final = frozenset({FaultKind.REFUSED, FaultKind.RESET, FaultKind.HANG, FaultKind.STATUS})
Form = Literal["usual", "flat", "nested", "failed", "named"]
_FORMS: Final[Mapping[Api, tuple[Form, ...]]] = {
    Api.CHAT: ("usual", "flat", "named"), Api.COMPLETIONS: ("usual", "flat", "named"),
    Api.RESPONSES: ("usual", "flat", "nested", "failed"),
}
_USUAL_FORM: Final[tuple[Form, ...]] = ("usual",)


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One fault. If several rules match a request, the first one applies.

    rate: share of the requests. from_s, until_s: age of the provider in seconds. max_count: maximum number of times.
    after_chunks: content chunks before a fault inside a body; a shorter answer fails before its end.
    sends_role: a silent stream sends what precedes its content: a role, `message_start` and `ping`, `response.created`.
    comments_every_s: a silent stream sends comments (messages: pings), as gateways and engines do; None: none.
    form: of an error event; usual: as the dialect's own provider sends it. chat: flat, or named (with `event: error`).
    responses: nested (seen in production), flat (documented) or failed (`response.failed`). A rule for all APIs applies to
    those that have its form.
    """

    kind: Annotated[FaultKind, SettingDoc("The fault.")] = FaultKind.STATUS
    rate: Annotated[float, SettingDoc("Share of requests.", more_than=0, maximum=1)] = 1.0
    from_s: Annotated[float, SettingDoc("Start, in seconds of the provider's life.", minimum=0)] = 0.0
    until_s: Annotated[float | None, SettingDoc("End, in seconds of the provider's life. null: never.", more_than=0)] = None
    max_count: Annotated[int | None, SettingDoc("Most occurrences. null: unlimited.", minimum=1)] = None
    api: Annotated[Api | None, SettingDoc("Only requests of this API. null: all.")] = None
    status: Annotated[int, SettingDoc("Status of an error.", minimum=400, maximum=599)] = 500
    code: Annotated[str, SettingDoc("Error code. Unset: the status's usual one.")] = ""
    retry_after_s: Annotated[float | None, SettingDoc(
        "Retry-After of the error. null: none.", minimum=0, maximum=1000000000.0)] = None
    seconds: Annotated[float, SettingDoc("Length of a pause or of a late head.", minimum=0, maximum=86_400)] = 10.0
    factor: Annotated[float, SettingDoc("Factor on the gaps of a slow answer.", minimum=1, maximum=1000)] = 3.3
    after_chunks: Annotated[int, SettingDoc("Content chunks before a fault inside the body.", minimum=0)] = 3
    sends_role: Annotated[bool, SettingDoc("A silent stream sends the events before its content, with the role.")] = False
    comments_every_s: Annotated[float | None, SettingDoc(
        "Interval of a silent stream's keep-alive comments. null: none.", more_than=0, maximum=3600)] = None
    form: Annotated[Form, SettingDoc(
        "Form of an error inside a stream; usual: as the dialect's own provider writes it.")] = "usual"

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.until_s is not None and not self.from_s < self.until_s:
            raise ValueError(f"from_s must be before until_s, not {self.from_s} and {self.until_s}")
        if self.api is not None and not self._has_form(self.api):
            raise ValueError(f"form of {self.api.value} must be one of {', '.join(_FORMS.get(self.api, _USUAL_FORM))}, "
                             f"not {self.form}")

    def covers(self, api: Api, age_s: float) -> bool:
        """Whether the rule may apply to a request of this API when the provider is `age_s` old."""
        is_time = self.from_s <= age_s and (self.until_s is None or age_s < self.until_s)
        return is_time and self.api in (None, api) and self._has_form(api)

    def _has_form(self, api: Api) -> bool:
        return self.form in _FORMS.get(api, _USUAL_FORM)


class ConnectionBroken(Exception):
    """The connection failed. `kind`: refused, reset (at any time), or cut (closed inside the body)."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class RegimeState(StrEnum):
    NORMAL = "normal"
    DEGRADED = "degraded"
    BROWNOUT = "brownout"
    OUTAGE = "outage"


@dataclass(frozen=True, slots=True)
class Regime:
    """The effect of one regime. mean_s: length of a stay. error_rate: share of requests answered as overloaded."""

    mean_s: Annotated[float, SettingDoc("Mean duration.", more_than=0, maximum=1000000000.0)] = 60.0
    ttft_factor: Annotated[float, SettingDoc("Factor on the time to the first token.", more_than=0, maximum=1000)] = 1.0
    gap_factor: Annotated[float, SettingDoc("Factor on every gap.", more_than=0, maximum=1000)] = 1.0
    error_rate: Annotated[float, SettingDoc("Share of requests answered as overloaded.", minimum=0, maximum=1)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Regimes:
    """The four regimes. Assumed."""

    normal: Annotated[Regime, SettingDoc("Normal times.")] = field(default_factory=lambda: Regime(600.0))
    degraded: Annotated[Regime, SettingDoc("Slower times.")] = field(default_factory=lambda: Regime(60.0, 2.0, 1.5))
    brownout: Annotated[Regime, SettingDoc(
        "Much slower, with errors.")] = field(default_factory=lambda: Regime(30.0, 5.0, 3.3, 0.05))
    outage: Annotated[Regime, SettingDoc(
        "Errors for all requests.")] = field(default_factory=lambda: Regime(20.0, error_rate=1.0))

    def regime_of(self, state: RegimeState) -> Regime:
        regime: Regime = getattr(self, state.value)
        return regime


# The next regime by probability: mostly by one step.
_TRANSITIONS: Final = {
    RegimeState.NORMAL: ((RegimeState.DEGRADED, 0.75), (RegimeState.BROWNOUT, 0.2), (RegimeState.OUTAGE, 0.05)),
    RegimeState.DEGRADED: ((RegimeState.NORMAL, 0.8), (RegimeState.BROWNOUT, 0.2)),
    RegimeState.BROWNOUT: ((RegimeState.DEGRADED, 0.5), (RegimeState.NORMAL, 0.35), (RegimeState.OUTAGE, 0.15)),
    RegimeState.OUTAGE: ((RegimeState.BROWNOUT, 0.5), (RegimeState.NORMAL, 0.5)),
}
CALM: Final = Regime()


class RegimeTimeline:
    """The regime at each age of a provider, computed on demand. Reproducible from the seed."""

    def __init__(self, regimes: Regimes, rng: Random) -> None:
        self._regimes = regimes
        self._rng = rng
        self._from_s = [0.0]
        self._states = [RegimeState.NORMAL]
        self._until_s = self._stay_s(RegimeState.NORMAL)

    def state_at(self, age_s: float) -> RegimeState:
        """The regime when the provider is `age_s` old."""
        while age_s >= self._until_s:
            targets, weights = zip(*_TRANSITIONS[self._states[-1]], strict=True)
            state = self._rng.choices(targets, weights)[0]
            self._from_s.append(self._until_s)
            self._states.append(state)
            self._until_s += self._stay_s(state)
        return self._states[bisect_right(self._from_s, max(age_s, 0.0)) - 1]

    def _stay_s(self, state: RegimeState) -> float:
        return self._rng.expovariate(1 / self._regimes.regime_of(state).mean_s)
