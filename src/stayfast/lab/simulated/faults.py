"""Ways to fail: what goes wrong for a share of the requests (`FaultRule`), or for all of a time (`Regimes`, the weather).

Problem: independent draws make every retry a fresh chance, and a hedge to the same provider looks better than it is. Rule:
a Markov process in continuous time, with a seed of its own, moves between four regimes; a stay in each is exponential
around its mean. What a regime does holds for the requests that arrive in it. It does not depend on the requests.
Durations, factors and moves are assumed: no trustworthy public figures of incidents were found.
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
    """What goes wrong. "Whole" answers are those that are not streamed."""

    REFUSED = "refused"  # no connection
    RESET = "reset"  # the connection is reset before the response head
    HANG = "hang"  # the request is taken and never answered
    SLOW_HEADERS = "slow_headers"  # the head comes `seconds` later
    STATUS = "status"  # an error answer: `status`, in the dialect's form
    SILENT = "silent"  # a good head, then nothing
    RESET_MID = "reset_mid"  # the connection is reset inside the body
    CUT = "cut"  # the connection is closed inside the body, without the last chunk
    TRUNCATED = "truncated"  # the body ends cleanly, the protocol's own end never comes
    IN_BAND = "in_band"  # an error event inside the stream; for whole answers, an error body with status 200
    MALFORMED = "malformed"  # JSON that is none
    STALL = "stall"  # a pause of `seconds` inside the body
    SLOW = "slow"  # every gap is `factor` times as long


BEFORE_BODY: Final = frozenset({FaultKind.REFUSED, FaultKind.RESET, FaultKind.HANG, FaultKind.STATUS})
Form = Literal["usual", "flat", "nested", "failed", "named"]
_FORMS: Final[Mapping[Api, tuple[Form, ...]]] = {
    Api.CHAT: ("usual", "flat", "named"), Api.COMPLETIONS: ("usual", "flat", "named"),
    Api.RESPONSES: ("usual", "flat", "nested", "failed"),
}
_ONE_FORM: Final[tuple[Form, ...]] = ("usual",)


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One way to fail. The first rule that strikes a request is the one it gets.

    rate: share of the requests. from_s, until_s: seconds of the provider's life. max_count: strikes so often and no more.
    after_chunks: content chunks that pass before a fault inside a body; a shorter answer fails before its end.
    form: of an error event; usual: as the dialect's own provider sends it. chat: flat, or named (with `event: error`).
    responses: nested (seen in production), flat (documented) or failed (`response.failed`). A rule for all APIs strikes
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
    form: Annotated[Form, SettingDoc(
        "Form of an error inside a stream; usual: as the dialect's own provider writes it.")] = "usual"

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.until_s is not None and not self.from_s < self.until_s:
            raise ValueError(f"from_s must be before until_s, not {self.from_s} and {self.until_s}")
        if self.api is not None and not self._has_form(self.api):
            raise ValueError(f"form of {self.api.value} must be one of {', '.join(_FORMS.get(self.api, _ONE_FORM))}, "
                             f"not {self.form}")

    def covers(self, api: Api, age_s: float) -> bool:
        """Whether a request of this API, `age_s` seconds into the provider's life, may be struck."""
        is_time = self.from_s <= age_s and (self.until_s is None or age_s < self.until_s)
        return is_time and self.api in (None, api) and self._has_form(api)

    def _has_form(self, api: Api) -> bool:
        return self.form in _FORMS.get(api, _ONE_FORM)


class Broke(Exception):
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
    """What one regime does. mean_s: of a stay. error_rate: share of requests answered as overloaded."""

    mean_s: Annotated[float, SettingDoc("Mean duration.", more_than=0, maximum=1000000000.0)] = 60.0
    ttft_factor: Annotated[float, SettingDoc("Factor on the time to the first token.", more_than=0, maximum=1000)] = 1.0
    gap_factor: Annotated[float, SettingDoc("Factor on every gap.", more_than=0, maximum=1000)] = 1.0
    error_rate: Annotated[float, SettingDoc("Share of requests answered as overloaded.", minimum=0, maximum=1)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Regimes:
    """All four. Assumed."""

    normal: Annotated[Regime, SettingDoc("Normal times.")] = field(default_factory=lambda: Regime(600.0))
    degraded: Annotated[Regime, SettingDoc("Slower times.")] = field(default_factory=lambda: Regime(60.0, 2.0, 1.5))
    brownout: Annotated[Regime, SettingDoc(
        "Much slower, with errors.")] = field(default_factory=lambda: Regime(30.0, 5.0, 3.3, 0.05))
    outage: Annotated[Regime, SettingDoc(
        "Errors for all requests.")] = field(default_factory=lambda: Regime(20.0, error_rate=1.0))

    def of(self, weather: RegimeState) -> Regime:
        found: Regime = getattr(self, weather.value)
        return found


# Where a stay leads, by probability: trouble comes and goes mostly by steps.
_MOVES: Final = {
    RegimeState.NORMAL: ((RegimeState.DEGRADED, 0.75), (RegimeState.BROWNOUT, 0.2), (RegimeState.OUTAGE, 0.05)),
    RegimeState.DEGRADED: ((RegimeState.NORMAL, 0.8), (RegimeState.BROWNOUT, 0.2)),
    RegimeState.BROWNOUT: ((RegimeState.DEGRADED, 0.5), (RegimeState.NORMAL, 0.35), (RegimeState.OUTAGE, 0.15)),
    RegimeState.OUTAGE: ((RegimeState.BROWNOUT, 0.5), (RegimeState.NORMAL, 0.5)),
}
CALM: Final = Regime()


class Forecast:
    """The weather at each second of a provider's life. Grown as far as it is asked for; the same for the same seed."""

    def __init__(self, regimes: Regimes, rng: Random) -> None:
        self._regimes = regimes
        self._rng = rng
        self._from_s = [0.0]
        self._weather = [RegimeState.NORMAL]
        self._until_s = self._stay_s(RegimeState.NORMAL)

    def at(self, age_s: float) -> RegimeState:
        """The weather `age_s` seconds into the provider's life."""
        while age_s >= self._until_s:
            targets, weights = zip(*_MOVES[self._weather[-1]], strict=True)
            weather = self._rng.choices(targets, weights)[0]
            self._from_s.append(self._until_s)
            self._weather.append(weather)
            self._until_s += self._stay_s(weather)
        return self._weather[bisect_right(self._from_s, max(age_s, 0.0)) - 1]

    def _stay_s(self, weather: RegimeState) -> float:
        return self._rng.expovariate(1 / self._regimes.of(weather).mean_s)
