"""The permit of one attempt at one upstream. Its release reports the outcome to the limiter, the breaker and the latency
statistics.
"""

from math import inf

from stayfast.core.types import Outcome
from stayfast.policy.resilience.baselines import ANSWERED, LOST, NOTHING, WAITING, Baseline
from stayfast.upstreams.state.job_places import LoadSample
from stayfast.upstreams.state.limiter import ConcurrencyLimiter
from stayfast.upstreams.state.upstream_state import ModelHealth, RunningCall, UpstreamState

_DROPPED, _SUCCESS = Outcome.DROPPED, Outcome.SUCCESS
LOST_IS_SLOW = 1.5  # times the usual time; an attempt that a faster hedge ended later than this counts as slow


class Permit(RunningCall):
    """The permit of one attempt, from the start of the attempt to its end. Nothing here awaits."""

    __slots__ = ("_is_released", "_sample", "_upstream", "_work")

    def __init__(self, upstream: UpstreamState, limiter: ConcurrencyLimiter, health: ModelHealth, baseline: Baseline,
                 n_concurrent: int, *, work: float, began_at: float, slow_at: float,
                 sample: LoadSample | None = None) -> None:
        self._upstream = upstream
        self.limiter = limiter
        self._sample = sample  # None: no jobs run at this upstream
        self._work = work  # its share of the upstream's prefill backlog
        self.health = health
        self.baseline = baseline
        self.mark = health.breaker.start_call()
        self.n_concurrent = n_concurrent
        self.began_at = began_at
        self.slow_at = slow_at
        self.verdict = WAITING
        self.took_s = self.actual_baseline = self.n_answered = None
        self.n_running = upstream.n_in_flight + 1
        self.n_answered_before = upstream.concurrency.n_answered
        self.is_queued = False
        self._is_released = False

    @property
    def baseline_s(self) -> float:
        """The usual time to a first token for prompts of this size; 0: unknown."""
        return self.baseline.baseline_s

    def is_late(self, now: float) -> bool:
        """Whether a first token now would count as slow; True if the usual time is unknown."""
        return now >= self.slow_at or self.slow_at == inf

    def is_own_load(self, now: float) -> bool:
        """Whether its first token is late because of this gateway's own load."""
        return self.took_s is None and now >= self.slow_at and self._upstream.is_own_load(self, now)

    def record_first_token(self, now: float, baseline: Baseline | None = None) -> None:
        """The first token has arrived. baseline: for the prompt size that the upstream
        has reported; None: not reported.
        """
        if self.took_s is not None:
            return
        self.took_s = now - self.began_at
        if self._work:
            self._leave_backlog()
        del self._upstream.pending[self]
        self.actual_baseline = baseline
        if self._sample is not None and (places := self._upstream.whole_limiter.job_places) is not None:
            places.record_first_token(self._sample, self.took_s, now)
        if self.verdict is WAITING:
            self.verdict = ANSWERED
        self._upstream.record_first_token(self, now)

    def record_gap(self, gap_s: float, now: float) -> None:
        """The mean time between two tokens, at the end of a whole stream."""
        if self._sample is not None and (places := self._upstream.whole_limiter.job_places) is not None:
            places.record_gap(self._sample, gap_s, now)

    def record_slower_than_hedge(self, now: float) -> None:
        """A hedge was faster, so this attempt is cancelled. Its first token would have taken at least as long as it has run.
        """
        if self.took_s is not None:
            return
        took_s = now - self.began_at
        ratio = self.baseline.ratio(took_s)
        if ratio is None:
            return
        is_slow = ratio >= LOST_IS_SLOW
        if is_slow:
            self.took_s = took_s
            if self.verdict is WAITING:
                self.verdict = LOST
        self._upstream.record_slower_than_hedge(self, ratio, now, is_slow=is_slow)

    def record_refusal(self, now: float, why: str, *, is_key: bool, n_enough: int = 1) -> None:
        """The upstream refused the model or the key. From the `n_enough`-th such request in a row, other upstreams are
        preferred for a minute.
        """
        self._upstream.record_refusal(self.health, now, why, is_key=is_key, n_enough=n_enough)

    def _leave_backlog(self) -> None:
        if self._upstream.backlog is not None:
            self._upstream.backlog.end_prefill(self._work)
        self._work = 0.0

    def release(self, outcome: Outcome, now: float, *, is_endpoint: bool = True, retry_after_s: float | None = None) -> None:
        """Release the permit and report the outcome. Further calls have no effect. is_endpoint: if the outcome is DROPPED,
        the endpoint failed; False: it refused the request, as for a quota.
        """
        if self._is_released:
            return
        self._is_released = True
        upstream = self._upstream
        upstream.pending.pop(self, None)
        if self._work:
            self._leave_backlog()
        if self.took_s is None and self.slow_at == inf:
            self.baseline.n_unknown -= 1
        if outcome is _DROPPED:
            upstream.record_drop(self, now, is_endpoint=is_endpoint, retry_after_s=retry_after_s)
        elif self.took_s is None:
            self.health.breaker.discard_call(self.mark)
            upstream.record_no_answer(now)
            if self.verdict is WAITING and (now < self.slow_at or not upstream.is_ordinary(self)):
                self.verdict = NOTHING
        elif outcome is _SUCCESS:
            upstream.concurrency.record_duration(now - self.began_at)
        upstream.n_in_flight -= 1
        if self._sample is not None and (places := upstream.whole_limiter.job_places) is not None:
            places.end_call(self._sample)
        self.limiter.release(now - self.began_at, has_answered=self.took_s is not None)


def acquire_permit(upstream: UpstreamState, baseline: Baseline, now: float, model: str = "", *, n_tokens: float = 0.0,
                   lane: str = "", is_job: bool = False, is_streamed: bool = True) -> Permit:
    """Start an attempt. The caller has checked that the limiter has room. baseline: for its prompt size. n_tokens: the
    length of the prompt.
    """
    limiter, backlog, places = upstream.limiter_of(lane), upstream.backlog, upstream.whole_limiter.job_places
    sample = None
    if places is not None:
        sample = places.start_call(upstream.n_in_flight, n_tokens, now, is_job=is_job, is_streamed=is_streamed)
    permit = Permit(upstream, limiter, upstream.health_of(model), baseline, limiter.acquire(),
                    work=backlog.start_call(n_tokens) if backlog is not None else 0.0, began_at=now,
                    slow_at=now + baseline.time_at_ratio_s(upstream.slow_factor), sample=sample)
    upstream.record_start(permit, now)
    return permit
