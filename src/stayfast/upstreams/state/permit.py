"""One attempt's place at one upstream: what it teaches depends on when and how it is left."""

from math import inf

from stayfast.core.types import Outcome
from stayfast.policy.resilience.baselines import ANSWERED, LOST, NOTHING, WAITING, Baseline
from stayfast.upstreams.state.limiter import ConcurrencyLimiter
from stayfast.upstreams.state.upstream_state import ModelHealth, RunningCall, UpstreamState

_DROPPED, _SUCCESS = Outcome.DROPPED, Outcome.SUCCESS
LOST_IS_SLOW = 1.5  # times its usual time, after which a call is given up for a quicker one: few are, unless most are slow


class Permit(RunningCall):
    """One attempt's place at one upstream, from its start to its one end. Nothing here awaits."""

    __slots__ = ("_is_left", "_member", "_work")

    def __init__(self, member: UpstreamState, limited: ConcurrencyLimiter, health: ModelHealth, norm: Baseline,
                 n_concurrent: int, *, work: float,
                 began_at: float, slow_at: float) -> None:
        self._member = member
        self.limited = limited
        self._work = work  # of its upstream's backlog
        self.health = health
        self.norm = norm
        self.mark = health.breaker.began()
        self.n_concurrent = n_concurrent
        self.began_at = began_at
        self.slow_at = slow_at
        self.became = WAITING
        self.took_s = self.real = self.n_answered = None
        self.n_running = member.n_in_flight + 1
        self.n_answered_before = member.concurrency.n_answered
        self.is_queued = False
        self._is_left = False

    @property
    def usual_s(self) -> float:
        """What the first token of a prompt of this size usually takes; 0 before that is known."""
        return self.norm.baseline_s

    def is_late(self, now: float) -> bool:
        """Whether its first token has been waited for as long as for a slow one; yes where nobody knows how long that is."""
        return now >= self.slow_at or self.slow_at == inf

    def is_own_load(self, now: float) -> bool:
        """Whether its first token is late for our own load."""
        return self.took_s is None and now >= self.slow_at and self._member.is_own_load(self, now)

    def answered(self, now: float, norm: Baseline | None = None) -> None:
        """The first token came; `norm` is of the prompt's real size where that has come to be known."""
        if self.took_s is not None:
            return
        self.took_s = now - self.began_at
        if self._work:
            self._read()
        del self._member.pending[self]
        self.real = norm
        if self.became is WAITING:
            self.became = ANSWERED
        self._member.answered(self, now)

    def outlasted(self, now: float) -> None:
        """Another attempt was quicker, and this one is given up: it took at least so long."""
        if self.took_s is not None:
            return
        took_s = now - self.began_at
        ratio = self.norm.ratio(took_s)
        if ratio is None:
            return
        is_slow = ratio >= LOST_IS_SLOW
        if is_slow:
            self.took_s = took_s
            if self.became is WAITING:
                self.became = LOST
        self._member.outlasted(self, ratio, now, is_slow=is_slow)

    def refused(self, now: float, why: str, *, is_key: bool, n_enough: int = 1) -> None:
        """Its model, or its key, is no good there: from the `n_enough`-th such request in a row on others go first for a
        minute.
        """
        self._member.refused(self.health, now, why, is_key=is_key, n_enough=n_enough)

    def _read(self) -> None:
        backlog = self._member.backlog
        if backlog is not None:
            backlog.ended(self._work)
        self._work = 0.0

    def leave(self, outcome: Outcome, now: float, *, is_endpoint: bool = True, retry_after_s: float | None = None) -> None:
        """Give it back, with what came of the attempt; only the first call counts. `is_endpoint`: a drop was by the
        endpoint's fault, and not a refusal for a quota."""
        if self._is_left:
            return
        self._is_left = True
        member = self._member
        member.pending.pop(self, None)
        if self._work:
            self._read()
        if self.took_s is None and self.slow_at == inf:
            self.norm.n_unknown -= 1
        if outcome is _DROPPED:
            member.dropped(self, now, is_endpoint=is_endpoint, retry_after_s=retry_after_s)
        elif self.took_s is None:
            self.health.breaker.forgotten(self.mark)
            member.learned_nothing(now)
            if self.became is WAITING and (now < self.slow_at or not member.is_ordinary(self)):
                self.became = NOTHING
        elif outcome is _SUCCESS:
            member.concurrency.ended(now - self.began_at)
        member.n_in_flight -= 1
        self.limited.left(now - self.began_at, has_answered=self.took_s is not None)


def acquire_permit(member: UpstreamState, norm: Baseline, now: float, model: str = "", *, n_tokens: float = 0.0,
                   lane: str = "") -> Permit:
    """Start an attempt at this model, of this class of `usual`, with so many tokens to read. Room is checked before."""
    limited, backlog = member.limited(lane), member.backlog
    place = Permit(member, limited, member.health(model), norm, limited.take(),
                  work=backlog.began(n_tokens) if backlog is not None else 0.0, began_at=now,
                  slow_at=now + norm.after_s(member.slow_factor))
    member.started(place, now)
    return place
