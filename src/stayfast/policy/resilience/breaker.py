"""When an upstream is left alone for a while, because it fails or is far slower than usual.

Problem: a request that is sent to an upstream in an outage is late before it is sent on, and keeps it down. A naive breaker
is worse than none: one that refuses requests at the last upstream there is turned a provider's bad minutes into 52.9 % of
failed requests, where without it 1.2 % failed. So this one only advises whom to prefer: others go first, and with nobody
else left the request is tried. Rule:

    opens     5 failures in a row; or half of the last 20 calls of the last 30 s failed, of at least 10; or slow:
              of each call  evidence += ln(0.5 / p) if it was slow, else ln(0.5 / (1 - p)); never below 0; at ln(10^6)
    p         the share that is tolerated: 10 %, or 1.5 times the share of the last 1,000 or so
    slow      3 times what is usual for such a prompt, judged in the order in which calls began
    (policy/resilience/baselines.py) open      60 s * U(0.8, 1.2); then one call at a time is a probe: 2 good ones
    close it, a bad one opens it closed    again: of the requests that would prefer it, a share that grows from 10 % to all
    in 10 s may do so

So 9 slow calls in a row are enough, whatever came before; half of all being slow is soon noticed; a share below p is not in
10^6 calls, and as the judging does not depend on when calls were made or answered, no pattern of arrivals changes that.

A call that was made while it is open, for want of anybody else, is a probe as well: that is how an only upstream is back at
once. Calls that began before the last change of state say nothing any more.

Whose fault: refused connections, resets, time-outs, 5xx and broken answers are the endpoint's. Bad requests and bad keys are
not, nor is 429 (policy/resilience/limits.py): they are never told to a breaker. Of several processes one probes at a time
(`probes`). Source: Nygard, "Release It!"; failsafe-go and resilience4j (the window by count, the minimum, single probes);
slow start as in Envoy; Page, "Continuous Inspection Schemes" (Biometrika, 1954): the running sum, whose mean distance
between false alarms is at least e to the power of its threshold, and than which none is quicker (Moustakides, 1986).
When wrong: two upstreams that share what fails open together, and are then both tried; slow calls that come in clumps (one
session's prompts) are taken for independent ones. An upstream of several models has a breaker for each: one that is down
as a whole is found out for each of them.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import log
from typing import Annotated, NamedTuple

from stayfast.core.clock import Rng
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.resilience.cross_process import ProbeLease

JITTER = 0.2
N_PROBES = 2
RAMP_S = 10.0
RAMP_FROM = 0.1
TOLERATED = 0.1  # share of slow calls
TOLERATED_TIMES = 1.5  # what is usual
N_USUAL = 1000  # calls in which that is learned
ENOUGH = log(1e6)


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When one upstream is left alone. Failures are of the last `n_calls` calls of the last `window_s` seconds."""

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


class Evidence(NamedTuple):
    """Calls that ended, by what became of them."""

    n_good: int
    n_failed: int
    n_slow: int


class Breaker:
    """Of one upstream. Pure state; changed only by its owner. Instants are seconds and never go backwards. `began` gives
    each call a mark, which comes back with what became of it; `forgotten` where nothing did.
    """

    __slots__ = ("_calls", "_closed_at", "_config", "_evidence", "_follows", "_judged_at", "_n_failed", "_n_good_probes",
                 "_n_probing", "_n_quick", "_n_slow", "_open_until", "_rng", "_slow", "_usual_slow", "mark",
                 "n_failed_in_row", "probes", "state", "why")

    def __init__(self, config: BreakerConfig, rng: Rng) -> None:
        self._config = config
        self._rng = rng
        self.state = BreakerState.CLOSED
        self.why = "nothing has failed"  # of the last change
        self.n_failed_in_row = 0
        self._calls: deque[tuple[float, bool]] = deque()  # at, failed
        self._n_failed = 0
        self._slow: deque[tuple[float, int]] = deque()  # when so many were judged as slow
        self._evidence = 0.0  # that too many are slow; a logarithm of odds
        self._n_slow = self._n_quick = 0  # since there was none
        self._usual_slow = 0.0  # the share that is slow in the long run
        self._judged_at = float("-inf")
        self.mark = 0  # changes with the state
        self._n_probing = self._n_good_probes = 0
        self.probes: ProbeLease | None = None  # of other processes, too
        self._open_until = 0.0
        self._closed_at = float("-inf")
        self._follows = False  # the last change was another's

    @property
    def is_enabled(self) -> bool:
        return self._config.enabled

    def begin_slowly(self, now: float) -> None:
        """It is new among others: its share grows as after a break."""
        self._closed_at = now
        self._follows = True  # no news to other processes

    def began(self) -> int:
        """A call begins; its mark."""
        if self.state is not _CLOSED:
            self._probing(self._n_probing + 1)
        return self.mark

    def wants_probe(self, now: float) -> bool:
        """Whether the next call should be a probe of this one."""
        if self.state is _CLOSED or self.is_probing:
            return False
        return self.state is BreakerState.HALF_OPEN or now >= self._open_until

    @property
    def is_probing(self) -> bool:
        """Whether a call runs that may close it, here or in another process."""
        return self._n_probing > 0 or (self.probes is not None and self.probes.are_elsewhere)

    @property
    def is_down(self) -> bool:
        """Whether it is not closed, and `consecutive_failures` calls have failed since the last good one."""
        return self.state is not _CLOSED and self.n_failed_in_row >= self._config.consecutive_failures

    def share(self, now: float) -> float:
        """Of the requests that would prefer it, the share that may: 0 while it is left alone, 1 when it is well."""
        if self.state is not _CLOSED:
            return 0.0
        age_s = now - self._closed_at
        return 1.0 if age_s >= RAMP_S else RAMP_FROM + (1 - RAMP_FROM) * age_s / RAMP_S

    def succeeded(self, mark: int, now: float, *, is_slow: bool = False) -> None:
        self.n_failed_in_row = 0
        if mark != self.mark:
            return
        if self.state is _CLOSED:
            self._note(now, is_failed=False)
        else:
            self._probing(self._n_probing - 1)
            self._probed(now, is_good=not is_slow, why="a probe was slow")

    def outlasted(self, mark: int, now: float) -> None:
        """A call was given up for a quicker one, having waited as long as for a slow one."""
        if mark == self.mark and self.state is not _CLOSED:
            self._probing(self._n_probing - 1)
            self._probed(now, is_good=False, why="a probe was slow")

    def failed(self, mark: int, now: float) -> None:
        self.n_failed_in_row += 1
        if mark != self.mark:
            return
        if self.state is _CLOSED:
            self._note(now, is_failed=True)
            self._judge(now)
        else:
            self._probing(self._n_probing - 1)
            self._probed(now, is_good=False, why="a probe failed")

    def judged(self, n_slow: int, n_quick: int, now: float) -> None:
        """So many calls with the present mark are known to be slow, and to be not (policy/resilience/baselines.py)."""
        if n_slow and self.state is _CLOSED:
            self._slow.append((now, n_slow))
            while self._slow[0][0] < now - self._config.window_s:
                self._slow.popleft()
        self._weigh(n_slow, n_quick, now)

    def forgotten(self, mark: int) -> None:
        """A call ended that says nothing of the endpoint."""
        if mark == self.mark and self.state is not _CLOSED:
            self._probing(self._n_probing - 1)

    def evidence_since(self, since: float) -> "Evidence":
        """What the calls of the window say that ended, or were judged as slow, after `since`."""
        n = n_failed = 0
        for at, is_failed in reversed(self._calls):
            if at <= since:
                break
            n += 1
            n_failed += is_failed
        n_slow = sum(n_slow for at, n_slow in self._slow if at > since)
        return Evidence(max(0, n - n_failed - n_slow), n_failed, n_slow)

    def add_evidence(self, evidence: "Evidence", now: float) -> None:
        """Calls that other processes made to the same upstream."""
        if self.state is not BreakerState.CLOSED:
            return
        n_others = evidence.n_good + evidence.n_slow
        if n_others:
            self.n_failed_in_row = 0
        else:
            self.n_failed_in_row += evidence.n_failed
        for n, is_failed in ((n_others, False), (evidence.n_failed, True)):
            for _ in range(n):
                self._note(now, is_failed=is_failed)
        if evidence.n_failed:
            self._judge(now)
        self._weigh(evidence.n_slow, evidence.n_good, now)

    @property
    def published_state(self) -> float:
        """The last change, for others to `adopt`: until when open; when it closed, as a negative; 0: it followed itself."""
        if self._follows or self.state is BreakerState.HALF_OPEN:
            return 0.0
        if self.state is BreakerState.OPEN:
            return self._open_until
        return -self._closed_at if self._closed_at > 0 else 0.0

    def adopt(self, published: float, now: float) -> None:
        """Another process's breaker of the same upstream changed, and with it this one."""
        if published > 0 and self.state is BreakerState.CLOSED and self._config.enabled:
            self._open_until = published
            self._enter(BreakerState.OPEN, "another worker's opened")
            self._follows = True
        elif published < 0 and self.state is not BreakerState.CLOSED:
            self._closed_at = min(-published, now)
            self.n_failed_in_row = 0
            self._enter(BreakerState.CLOSED, "another worker's closed")
            self._follows = True

    def _note(self, now: float, *, is_failed: bool) -> None:
        calls, oldest_at = self._calls, now - self._config.window_s
        calls.append((now, is_failed))
        self._n_failed += is_failed
        while len(calls) > self._config.n_calls or calls[0][0] < oldest_at:
            _, was_failed = calls.popleft()
            self._n_failed -= was_failed

    def _judge(self, now: float) -> None:
        config = self._config
        if not config.enabled:
            return
        n, n_failed = len(self._calls), self._n_failed
        if self.n_failed_in_row >= config.consecutive_failures:
            self._open(now, f"{self.n_failed_in_row} failures in a row")
        elif n >= config.min_calls and n_failed >= config.failure_ratio * n:
            self._open(now, f"{n_failed} of {n} calls failed")

    def _weigh(self, n_slow: int, n_quick: int, now: float) -> None:
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

    def _probed(self, now: float, *, is_good: bool, why: str) -> None:
        if not is_good:
            if self.state is BreakerState.HALF_OPEN or now >= self._open_until:
                self._open(now, why)
            return
        if self.state is BreakerState.OPEN:
            self._enter(BreakerState.HALF_OPEN, "a probe was good")
        self._n_good_probes += 1
        if self._n_good_probes >= N_PROBES:
            self._closed_at = now
            self._enter(BreakerState.CLOSED, f"{N_PROBES} probes were good")

    def _probing(self, n: int) -> None:
        self._n_probing = n
        if self.probes is not None:
            self.probes.running(n)

    def _open(self, now: float, why: str) -> None:
        self._open_until = now + self._config.open_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
        self._enter(BreakerState.OPEN, why)

    def _enter(self, state: BreakerState, why: str) -> None:
        self.state = state
        self.why = why
        self._follows = False
        self.mark += 1
        self._calls.clear()
        self._slow.clear()
        self._evidence = 0.0
        self._n_failed = self._n_slow = self._n_quick = self._n_good_probes = 0
        self._probing(0)

    def __repr__(self) -> str:
        if not self._config.enabled:
            return "<Breaker off>"
        return f"<Breaker {self.state.value}: {self.why}; {self.n_failed_in_row} failures in a row>"
