"""When an upstream is left alone for a while, because it fails or is far slower than usual.

Problem: a request that is sent to an upstream in an outage is late before it is sent on, and keeps it down. A naive breaker
is worse than none: one that refuses requests at the last upstream there is turned a provider's bad minutes into 52.9 % of
failed requests, where without it 1.2 % failed. So this one only advises whom to prefer: others go first, and with nobody
else left the request is tried. Rule, over the last 20 calls of the last 30 s:

    opens     5 failures in a row; or, of at least 10 calls, half failed; or half were slow
    slow      3 times what is usual for such a prompt (policy/usual.py), at the first token or still waiting for it
    open      60 s * U(0.8, 1.2); then one call at a time is a probe: 2 good ones close it, a bad one opens it
    closed    again: of the requests that would prefer it, a share that grows from 10 % to all in 10 s may do so

A call that was made while it is open, for want of anybody else, is a probe as well: that is how an only upstream is back at
once. Calls that began before the last change of state say nothing any more.

Whose fault: refused connections, resets, time-outs, 5xx and broken answers are the endpoint's. Bad requests and bad keys are
not, nor is 429 (policy/limits.py): they are never told to a breaker.
Source: Nygard, "Release It!"; failsafe-go and resilience4j (the window by count, the minimum, single probes); slow start as
in Envoy.
When wrong: two upstreams that share what fails open together, and are then both tried; below 5 calls in 30 s only luck opens
it; half of the calls to one model failing at an upstream with many opens it for all.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

JITTER = 0.2
N_PROBES = 2
RAMP_S = 10.0
RAMP_FROM = 0.1


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When one upstream is left alone. Ratios are of the last `n_calls` calls of the last `window_s` seconds."""

    enabled: bool = True
    failures_in_row: int = 5
    failure_ratio: float = 0.5
    slow_ratio: float = 1.0  # in a pause the slow answers come last: a lower one opens on a provider with a long tail
    slow_factor: float = 3.0  # times what is usual
    n_calls: int = 20
    min_calls: int = 10
    window_s: float = 30.0
    open_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.failures_in_row <= 1000:
            raise ValueError(f"failures_in_row must be from 1 to 1000, not {self.failures_in_row}")
        for name in ("failure_ratio", "slow_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be more than 0 and at most 1, not {getattr(self, name)}")
        if not 1 < self.slow_factor <= 1000:
            raise ValueError(f"slow_factor must be more than 1 and at most 1000, not {self.slow_factor}")
        if not 1 <= self.min_calls <= self.n_calls <= 10_000:
            raise ValueError(f"1 <= min_calls <= n_calls <= 10000 must hold, not min_calls={self.min_calls}, "
                             f"n_calls={self.n_calls}")
        for name in ("window_s", "open_s"):
            if not 0 < getattr(self, name) <= 86_400:
                raise ValueError(f"{name} must be more than 0 and at most 86400 seconds, not {getattr(self, name)}")


class State(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Breaker:
    """Of one upstream. Pure state; changed only by its owner. Instants are seconds and never go backwards.

    `began` gives each call a mark, which comes back with what became of it; `forgotten` where nothing did.
    """

    __slots__ = ("_calls", "_closed_at", "_config", "_mark", "_n_failed", "_n_good_probes", "_n_probing", "_n_slow",
                 "_open_until", "_rng", "n_failed_in_row", "state", "why")

    def __init__(self, config: BreakerConfig, rng: "Random") -> None:
        self._config = config
        self._rng = rng
        self.state = State.CLOSED
        self.why = "nothing has failed"  # of the last change
        self.n_failed_in_row = 0
        self._calls: deque[tuple[float, bool, bool]] = deque()  # at, failed, slow
        self._n_failed = self._n_slow = 0
        self._mark = 0  # changes with the state
        self._n_probing = self._n_good_probes = 0
        self._open_until = 0.0
        self._closed_at = float("-inf")

    def began(self) -> int:
        """A call begins; its mark."""
        if self.state is not State.CLOSED:
            self._n_probing += 1
        return self._mark

    def wants_probe(self, now: float) -> bool:
        """Whether the next call should be a probe of this one."""
        if self.state is State.CLOSED or self._n_probing:
            return False
        return self.state is State.HALF_OPEN or now >= self._open_until

    def share(self, now: float) -> float:
        """Of the requests that would prefer it, the share that may: 0 while it is left alone, 1 when it is well."""
        if self.state is not State.CLOSED:
            return 0.0
        age_s = now - self._closed_at
        return 1.0 if age_s >= RAMP_S else RAMP_FROM + (1 - RAMP_FROM) * age_s / RAMP_S

    def succeeded(self, mark: int, now: float, *, is_slow: bool = False) -> None:
        """A first token came."""
        self.n_failed_in_row = 0
        if mark != self._mark:
            return
        if self.state is State.CLOSED:
            self._note(now, is_failed=False, is_slow=is_slow)
            if is_slow:
                self._judge(now)
        else:
            self._n_probing -= 1
            self._probed(now, is_good=not is_slow, why="a probe was slow")

    def outlasted(self, mark: int, now: float) -> None:
        """A call was given up for a quicker one, having waited as long as for a slow one."""
        if mark != self._mark:
            return
        if self.state is State.CLOSED:
            self._note(now, is_failed=False, is_slow=True)
            self._judge(now)
        else:
            self._n_probing -= 1
            self._probed(now, is_good=False, why="a probe was slow")

    def failed(self, mark: int, now: float) -> None:
        """An attempt failed by the endpoint's fault."""
        self.n_failed_in_row += 1
        if mark != self._mark:
            return
        if self.state is State.CLOSED:
            self._note(now, is_failed=True, is_slow=False)
            self._judge(now)
        else:
            self._n_probing -= 1
            self._probed(now, is_good=False, why="a probe failed")

    def forgotten(self, mark: int) -> None:
        """A call ended that says nothing of the endpoint."""
        if mark == self._mark and self.state is not State.CLOSED:
            self._n_probing -= 1

    def since(self, now: float) -> float:
        """When the oldest call of the window ended: what began earlier is not of these times."""
        return max(self._calls[0][0], now - self._config.window_s) if self._calls else now

    def overdue(self, n: int, now: float) -> None:
        """So many running calls that began after `since` have waited as long as slow ones do."""
        if self.state is State.CLOSED:
            self._judge(now, n)

    def _note(self, now: float, *, is_failed: bool, is_slow: bool) -> None:
        calls, oldest_at = self._calls, now - self._config.window_s
        calls.append((now, is_failed, is_slow))
        self._n_failed += is_failed
        self._n_slow += is_slow
        while len(calls) > self._config.n_calls or calls[0][0] < oldest_at:
            _, was_failed, was_slow = calls.popleft()
            self._n_failed -= was_failed
            self._n_slow -= was_slow

    def _judge(self, now: float, n_overdue: int = 0) -> None:
        config = self._config
        if not config.enabled:
            return
        n, n_failed, n_slow = len(self._calls), self._n_failed, self._n_slow + n_overdue
        if self.n_failed_in_row >= config.failures_in_row:
            self._open(now, f"{self.n_failed_in_row} failures in a row")
        elif n >= config.min_calls and n_failed >= config.failure_ratio * n:
            self._open(now, f"{n_failed} of {n} calls failed")
        elif n + n_overdue >= config.min_calls and n_slow >= config.slow_ratio * (n + n_overdue):
            self._open(now, f"{n_slow} of {n + n_overdue} calls were slow")

    def _probed(self, now: float, *, is_good: bool, why: str) -> None:
        if not is_good:
            if self.state is State.HALF_OPEN or now >= self._open_until:
                self._open(now, why)
            return
        if self.state is State.OPEN:
            self._enter(State.HALF_OPEN, "a probe was good")
        self._n_good_probes += 1
        if self._n_good_probes >= N_PROBES:
            self._closed_at = now
            self._enter(State.CLOSED, f"{N_PROBES} probes were good")

    def _open(self, now: float, why: str) -> None:
        self._open_until = now + self._config.open_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
        self._enter(State.OPEN, why)

    def _enter(self, state: State, why: str) -> None:
        self.state = state
        self.why = why
        self._mark += 1
        self._calls.clear()
        self._n_failed = self._n_slow = self._n_probing = self._n_good_probes = 0

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}: {self.why}; {self.n_failed_in_row} failures in a row>"
