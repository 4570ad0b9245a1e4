"""Breakers in each state, for the tests of each state."""

from random import Random

from stayfast.policy.resilience.breaker import Breaker, BreakerConfig, BreakerState
from stayfast.policy.resilience.cross_process import ProbeLease

CONFIG = BreakerConfig()
PROBE_AT = 80.0  # after any suspension that began at 0


def closed_breaker() -> Breaker:
    """A new breaker."""
    return Breaker(CONFIG, Random(1))


def open_breaker(seed: int = 1) -> Breaker:
    """A breaker that five failures opened at 0."""
    breaker = Breaker(CONFIG, Random(seed))
    fail(breaker, 0.0, 5)
    assert breaker.state is BreakerState.OPEN
    return breaker


def half_open_breaker() -> Breaker:
    """A breaker with one good probe, at PROBE_AT."""
    breaker = open_breaker()
    succeed(breaker, PROBE_AT)
    assert breaker.state is BreakerState.HALF_OPEN
    return breaker


def is_open(breaker: Breaker) -> bool:
    """Whether the breaker is open."""
    return breaker.state is BreakerState.OPEN


def succeed(breaker: Breaker, now: float, n: int = 1, *, is_slow: bool = False) -> None:
    """Make `n` calls that get a token."""
    for _ in range(n):
        breaker.record_success(breaker.start_call(), now, is_slow=is_slow)


def fail(breaker: Breaker, now: float, n: int = 1) -> None:
    """Make `n` calls that fail."""
    for _ in range(n):
        breaker.record_failure(breaker.start_call(), now)


class ProbeCells:
    """The shared memory of two processes."""

    def __init__(self) -> None:
        self.numbers = [0.0, 0.0]

    def attach(self, breaker: Breaker, own: int) -> Breaker:
        """Let a breaker share its probes with the other process."""
        breaker.probes = ProbeLease(self.numbers, own, [1 - own])
        return breaker
