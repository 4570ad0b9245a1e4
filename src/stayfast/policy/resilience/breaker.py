"""Circuit breaker of one upstream: suspends it while it fails or is far slower than its baseline.

Problem: a request sent to an upstream in an outage is delayed, and prolongs the outage. But in a provider's bad minutes a
breaker that rejected the requests for the only upstream made 52.9 % of them fail, against 1.2 % without a breaker. So this
breaker only changes the order: other upstreams are tried first, and without any the suspended one is tried. Rule:

    closed -> open       5 failures in a row; or half of the last 20 calls failed (in the last 30 s, and at least 10 calls);
                         or too many slow calls: each call adds ln(0.5 / p) to the evidence if it was slow, else
                         ln(0.5 / (1 - p)); the evidence is never below 0; the breaker opens at ln(10^6), for example after
                         9 slow calls in a row
    p                    tolerated share of slow calls: 10 %, or 1.5 times the share of the last 1,000 calls
    slow                 3 times the baseline of similar prompts; policy/resilience/baselines.py classifies the calls
    open -> half open    after 60 s * U(0.8, 1.2), one call at a time is a probe; a good one half-opens the breaker
    half open -> closed  at the second good probe; -> open after a bad one
    closed again         the upstream's share of its usual requests grows from 10 % to 100 % in 10 s

A call made while the breaker is open, for lack of other upstreams, is also a probe, so a single upstream recovers at once.
Calls that began before the last change of state are ignored. Refused connections, resets, time-outs, 5xx and broken answers
count as failures; bad requests, bad keys and 429 (policy/resilience/limits.py) are not reported. Only one process probes at
a time (`probes`).
Source: Nygard, "Release It!"; failsafe-go and resilience4j (window by count, minimum, single probes); slow start as in
Envoy; Page, "Continuous Inspection Schemes" (Biometrika, 1954): the cumulative sum, whose mean distance between false alarms
is at least e to the power of its threshold, with the shortest delay (Moustakides, 1986).
When wrong: the breakers of two upstreams with a common cause of failure open together, and both are then tried; slow calls
are assumed independent, although those of one session are not. Each model of an upstream has its own breaker.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import log
from typing import Annotated, NamedTuple

from stayfast.core.clock import Rng
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.resilience.cross_process import ProbeLease

OPENED_ELSEWHERE = "opened in another worker"
JITTER = 0.2
N_PROBES = 2
RAMP_S = 10.0
RAMP_FROM = 0.1
TOLERATED = 0.1  # share of slow calls
TOLERATED_TIMES = 1.5  # relative to the usual share
N_USUAL = 1000  # calls over which the usual share is learned
ENOUGH = log(1e6)


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When one upstream is suspended. Failures are counted in the last `n_calls` calls of the last `window_s` seconds."""

    enabled: Annotated[bool, SettingDoc("Whether the breaker may open.")] = True
    consecutive_failures: Annotated[int, SettingDoc("Opens after this many failures in a row.", minimum=1, maximum=1000)] = 5
    failure_ratio: Annotated[float, SettingDoc("Opens at this share of failed calls.", more_than=0, maximum=1)] = 0.5
    slow_ratio: Annotated[float, SettingDoc(
        "Opens when significantly more than this share of calls is slow; 1: all in a row.", more_than=0, maximum=1)] = 0.5
    slow_factor: Annotated[float, SettingDoc(
        "Slow: this many times the usual first-token time for such a prompt.", more_than=1, maximum=1000)] = 3.0
    n_calls: Annotated[int, SettingDoc("Calls that the failure share covers.", minimum=1, maximum=10_000)] = 20
    min_calls: Annotated[int, SettingDoc("Fewest calls for the failure share.", minimum=1, maximum=10_000)] = 10
    window_s: Annotated[float, SettingDoc("Age of the oldest call that counts.", more_than=0, maximum=86_400)] = 30.0
    open_s: Annotated[float, SettingDoc(
        "Time open before the first probe, with 20 % jitter.", more_than=0, maximum=86_400)] = 60.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.min_calls > self.n_calls:
            raise ValueError(f"min_calls must be at most n_calls ({self.n_calls}), not {self.min_calls}")


class BreakerState(StrEnum):
    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


_CLOSED = BreakerState.CLOSED


class BreakerEvidence(NamedTuple):
    """The numbers of ended calls, by result."""

    n_good: int
    n_failed: int
    n_slow: int


class Breaker:
    """The breaker of one upstream. Pure state; changed only by its owner. Instants are seconds and never go back.
    `start_call` returns a mark for the call. The caller passes it back with the result, or to `discard_call` without one.
    """

    __slots__ = ("_calls", "_closed_at", "_config", "_evidence", "_is_local", "_judged_at", "_n_good_probes",
                 "_n_probing", "_n_quick", "_n_slow", "_open_until", "_rng", "_slow", "_usual_slow", "mark",
                 "n_failed_in_row", "probes", "state", "why")

    def __init__(self, config: BreakerConfig, rng: Rng) -> None:
        self._config = config
        self._rng = rng
        self.state = BreakerState.CLOSED
        self.why = "no failures yet"  # the reason of the last change
        self.n_failed_in_row = 0
        self._calls: deque[tuple[float, bool]] = deque(maxlen=config.n_calls)  # instant, and whether it failed
        self._slow: deque[tuple[float, int]] = deque()  # instant and number of calls then classified as slow
        self._evidence = 0.0  # for too many slow calls; logarithm of the odds
        self._n_slow = self._n_quick = 0  # since the evidence was 0
        self._usual_slow = 0.0  # long-term share of slow calls
        self._judged_at = float("-inf")
        self.mark = 0  # the number of changes of state
        self._n_probing = self._n_good_probes = 0
        self.probes: ProbeLease | None = None  # shared with other processes
        self._open_until = 0.0
        self._closed_at = float("-inf")
        self._is_local = True  # the last change was this process's own, and is published to others

    @property
    def is_enabled(self) -> bool:
        return self._config.enabled

    @property
    def config(self) -> BreakerConfig:
        return self._config

    def configure(self, config: BreakerConfig) -> None:
        """Use other thresholds from the next call on (policy/fleet/breaker_hints.py)."""
        self._config = config
        self._calls = deque(self._calls, config.n_calls)

    def begin_slow_start(self, now: float) -> None:
        """Give a new upstream a growing share of its requests, as after closing."""
        self._closed_at = now
        self._is_local = False  # so that it is not published

    def start_call(self) -> int:
        """Start a call; returns its mark."""
        if self.state is not _CLOSED:
            self._set_probing(self._n_probing + 1)
        return self.mark

    def needs_probe(self, now: float) -> bool:
        if self.state is _CLOSED or self.is_probing:
            return False
        return self.state is BreakerState.HALF_OPEN or now >= self._open_until

    @property
    def is_probing(self) -> bool:
        """Whether a probe is running, here or in another process."""
        return self._n_probing > 0 or (self.probes is not None and self.probes.is_held_elsewhere)

    @property
    def is_down(self) -> bool:
        """Whether it is not closed, and at least the last `consecutive_failures` calls failed."""
        return self.state is not _CLOSED and self.n_failed_in_row >= self._config.consecutive_failures

    def traffic_share(self, now: float) -> float:
        """The share of its usual requests that the upstream gets: 0 while suspended, 1 when healthy."""
        if self.state is not _CLOSED:
            return 0.0
        age_s = now - self._closed_at
        return 1.0 if age_s >= RAMP_S else RAMP_FROM + (1 - RAMP_FROM) * age_s / RAMP_S

    def record_success(self, mark: int, now: float, *, is_slow: bool = False) -> None:
        self.n_failed_in_row = 0
        if mark != self.mark:
            return
        if self.state is _CLOSED:
            self._calls.append((now, False))
        else:
            self._set_probing(self._n_probing - 1)
            self._record_probe(now, is_good=not is_slow, why="a probe was slow")

    def record_lost(self, mark: int, now: float) -> None:
        """A call that was already slow was cancelled for a faster one."""
        if mark == self.mark and self.state is not _CLOSED:
            self._set_probing(self._n_probing - 1)
            self._record_probe(now, is_good=False, why="a probe was slow")

    def record_failure(self, mark: int, now: float) -> None:
        self.n_failed_in_row += 1
        if mark != self.mark:
            return
        if self.state is _CLOSED:
            self._calls.append((now, True))
            self._check_failures(now)
        else:
            self._set_probing(self._n_probing - 1)
            self._record_probe(now, is_good=False, why="a probe failed")

    def record_verdicts(self, n_slow: int, n_quick: int, now: float) -> None:
        """`n_slow` and `n_quick` calls with the present mark were classified (policy/resilience/baselines.py)."""
        if n_slow and self.state is _CLOSED:
            self._slow.append((now, n_slow))
            while self._slow[0][0] < now - self._config.window_s:
                self._slow.popleft()
        self._check_slowness(n_slow, n_quick, now)

    def discard_call(self, mark: int) -> None:
        """A call ended without information about the upstream."""
        if mark == self.mark and self.state is not _CLOSED:
            self._set_probing(self._n_probing - 1)

    def evidence_since(self, since: float) -> "BreakerEvidence":
        """The recent calls that ended, or were classified as slow, after `since`."""
        n = n_failed = 0
        for at, is_failed in reversed(self._calls):
            if at <= since:
                break
            n += 1
            n_failed += is_failed
        n_slow = sum(n_slow for at, n_slow in self._slow if at > since)
        return BreakerEvidence(max(0, n - n_failed - n_slow), n_failed, n_slow)

    def add_evidence(self, evidence: "BreakerEvidence", now: float) -> None:
        """Count calls that other processes made to the same upstream."""
        if self.state is not BreakerState.CLOSED:
            return
        n_others = evidence.n_good + evidence.n_slow
        if n_others:
            self.n_failed_in_row = 0
        else:
            self.n_failed_in_row += evidence.n_failed
        for n, is_failed in ((n_others, False), (evidence.n_failed, True)):
            self._calls.extend([(now, is_failed)] * n)
        if evidence.n_failed:
            self._check_failures(now)
        self._check_slowness(evidence.n_slow, evidence.n_good, now)

    @property
    def published_state(self) -> float:
        """The last change as a number, for `adopt_state` in other processes. Positive: open until this instant; negative:
        closed at its absolute value; 0: no change.
        """
        if not self._is_local or self.state is BreakerState.HALF_OPEN:
            return 0.0
        if self.state is BreakerState.OPEN:
            return self._open_until
        return -self._closed_at if self._closed_at > 0 else 0.0

    def adopt_state(self, published: float, now: float) -> None:
        """Make the same change as another process's breaker of this upstream."""
        if published > 0 and self.state is BreakerState.CLOSED and self._config.enabled:
            self._open_until = published
            self._enter_state(BreakerState.OPEN, OPENED_ELSEWHERE)
            self._is_local = False
        elif published < 0 and self.state is not BreakerState.CLOSED:
            self._closed_at = min(-published, now)
            self.n_failed_in_row = 0
            self._enter_state(BreakerState.CLOSED, "closed in another worker")
            self._is_local = False

    def open_for_probe(self, why: str, now: float) -> None:
        """Open it by the evidence of others. The next call is a probe."""
        if self.state is _CLOSED and self._config.enabled:
            self._open_until = now
            self._enter_state(BreakerState.OPEN, why)

    def has_traffic(self, now: float) -> bool:
        """Whether a call ended within `window_s`, since the last change of state."""
        return bool(self._calls) and self._calls[-1][0] >= now - self._config.window_s

    def open_left_s(self, now: float) -> float:
        """Seconds until it may be probed; 0 if it is not open."""
        return max(0.0, self._open_until - now) if self.state is BreakerState.OPEN else 0.0

    def _check_failures(self, now: float) -> None:
        config = self._config
        if not config.enabled:
            return
        recent = [is_failed for at, is_failed in self._calls if at >= now - config.window_s]
        n, n_failed = len(recent), sum(recent)
        if self.n_failed_in_row >= config.consecutive_failures:
            self._open(now, f"{self.n_failed_in_row} failures in a row")
        elif n >= config.min_calls and n_failed >= config.failure_ratio * n:
            self._open(now, f"{n_failed} of {n} calls failed")

    def _check_slowness(self, n_slow: int, n_quick: int, now: float) -> None:
        config, n = self._config, n_slow + n_quick
        if self.state is not _CLOSED or not n:
            return
        if now - self._judged_at > config.window_s:
            self._evidence = 0.0
        self._judged_at = now
        tolerated = max(min(TOLERATED, config.slow_ratio / 4), TOLERATED_TIMES * self._usual_slow)
        if tolerated < config.slow_ratio:
            against = log((1 - config.slow_ratio) / (1 - tolerated)) if config.slow_ratio < 1 else -ENOUGH
            self._evidence += n_slow * log(config.slow_ratio / tolerated) + n_quick * against
        self._usual_slow += (n_slow - n * self._usual_slow) / max(n, N_USUAL)
        if self._evidence <= 0:
            self._evidence, self._n_slow, self._n_quick = 0.0, 0, 0
            return
        self._n_slow += n_slow
        self._n_quick += n_quick
        if self._evidence >= ENOUGH and config.enabled:
            self._open(now, f"{self._n_slow} of {self._n_slow + self._n_quick} calls were slow")

    def _record_probe(self, now: float, *, is_good: bool, why: str) -> None:
        if not is_good:
            if self.state is BreakerState.HALF_OPEN or now >= self._open_until:
                self._open(now, why)
            return
        if self.state is BreakerState.OPEN:
            self._enter_state(BreakerState.HALF_OPEN, "a probe was good")
        self._n_good_probes += 1
        if self._n_good_probes >= N_PROBES:
            self._closed_at = now
            self._enter_state(BreakerState.CLOSED, f"{N_PROBES} probes were good")

    def _set_probing(self, n: int) -> None:
        self._n_probing = n
        if self.probes is not None:
            self.probes.set_running(n)

    def _open(self, now: float, why: str) -> None:
        self._open_until = now + self._config.open_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
        self._enter_state(BreakerState.OPEN, why)

    def _enter_state(self, state: BreakerState, why: str) -> None:
        self.state = state
        self.why = why
        self._is_local = True
        self.mark += 1
        self._calls.clear()
        self._slow.clear()
        self._evidence = 0.0
        self._n_slow = self._n_quick = self._n_good_probes = 0
        self._set_probing(0)

    def __repr__(self) -> str:
        if not self._config.enabled:
            return "<Breaker off>"
        return f"<Breaker {self.state.value}: {self.why}; {self.n_failed_in_row} failures in a row>"
