"""After a failure: who is asked next, when, and whether there is budget for it."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Retried, RetryWithheld, Sink
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan
from stayfast.pipeline.routing.selector import Target
from stayfast.policy.resilience.retry import patience_s, wait_before_next
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.upstreams.state.upstream_state import UpstreamState

NOT_MENDED = (Fault.CONNECT, Fault.TIMEOUT)  # by a back-off within one request


class RetryPolicy:
    """Task-safe: holds no state of a request."""

    __slots__ = ("_clock", "_rng", "_sink")

    def __init__(self, clock: Clock, rng: Random, sink: Sink) -> None:
        self._clock = clock
        self._rng = rng
        self._sink = sink

    def candidates(self, ex: Exchange, plan: Plan, targets: Sequence[Target], ends_at: float) -> deque[Target]:
        """Those of the targets that may be asked. Raises LeftAlone: none of them."""
        now = self._clock.now()
        found = awake(plan, targets, now, ends_at)
        if not found:
            names = ", ".join(target.member.upstream.name for target in targets)
            ex.record.note(f"not sent to {names}: calls there hang, and fail in the end")
            raise LeftAlone(plan, targets, now)
        return deque(found)

    def following(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, candidates: deque[Target], *,
                  target: Target, n_made: int, waited_s: float, ends_at: float, is_last: bool) -> float | None:
        """Bring whom to ask next to the front, with what it takes of the budgets; seconds to wait before that. None: nobody.
        `target` is who failed, `n_made` counts the attempts so far, `waited_s` is the sum of the waits before them.
        `is_last`: nobody is asked after these.
        """
        if not candidates or not _may_follow(ex, plan, failed, target.member):
            return None
        now, alone_s, retry = self._clock.now(), 0.0, plan.route.retry
        following = _fresh(ex, plan, candidates, now, is_any=failed.is_refused)
        is_fresh = following is not None
        if following is None:
            most_s = patience_s(retry, ends_at - now, waited_s)
            alone_s, following = _again(ex, plan, candidates, now, most_s, failed=failed, target=target, is_last=is_last)
            if following is None:
                return None
        wait_s = wait_before_next(retry, n_made, ends_at - now, self._rng, is_fresh=is_fresh, alone_s=alone_s,
                                  least_s=following.member.quickest_s)
        if wait_s is None or not self._may_retry(ex, plan, failed, following, wait_s):
            return None
        candidates.remove(following)
        candidates.appendleft(following)
        return wait_s

    def retry_concurrently(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, others: Iterable[Target], *,
                           of: UpstreamState,
               n_made: int, ends_at: float) -> Target | None:
        """Whom to ask at once in place of `of`, which failed while another attempt runs: somebody who is well, has room and
        was not asked. None: nobody. Taken from the budgets.
        """
        if not _may_follow(ex, plan, failed, of):
            return None
        now = self._clock.now()
        fresh = _fresh(ex, plan, [other for other in others if other.member.limited(plan.lane).has_room], now)
        if fresh is None or wait_before_next(plan.route.retry, n_made, ends_at - now, self._rng, is_fresh=True,
                                             least_s=fresh.member.quickest_s) is None:
            return None
        return fresh if self._may_retry(ex, plan, failed, fresh, 0.0) else None

    def _may_retry(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, following: Target, wait_s: float) -> bool:
        """Whether the budgets of extra attempts, the route's and that of whom it would ask, have room for one more; it is
        taken then. What an SDK sends again is a retry already. A refused key or model draws on none: nothing was done.
        """
        if failed.is_refused:
            self.retried(ex, plan, failed, following, "retried at", wait_s=wait_s, draws=False)
            return True
        now, budget, pool = self._clock.now(), plan.route.hedging.budget, following.member.retry_budget
        weight = weight_of(len(plan.prompt.request.body))
        if ex.arrival.is_repeat:
            why, note = "client", "its client retries by itself"
        elif not budget.may_retry(weight, now):
            why, note = "budget", f"extra attempts came to {budget.extra_share(now):.1%} in the last minute"
        elif not pool.has_room(weight, now):
            why, note = "upstream", f"{following.member.upstream.name} has had its extra attempts of the last minute"
        else:
            self.retried(ex, plan, failed, following, "retried at", wait_s=wait_s)
            budget.take_retry(weight, now)
            pool.take(weight, now)
            return True
        ex.record.note(f"not retried: {note} ({failed.what} of {failed.upstream})")
        self._sink.emit(RetryWithheld(plan.route.name, failed.upstream, why, budget.extra_share(now), budget.share))
        return False

    def retried(self, ex: Exchange, plan: Plan, failed: StayfastError, following: Target, how: str, *,
                 wait_s: float = 0.0, draws: bool = True) -> None:
        """Tell of another attempt, and of what the budget stands at before it."""
        now, budget, to = self._clock.now(), plan.route.hedging.budget, following.member.upstream.name
        what, of = (failed.what, failed.upstream) if isinstance(failed, UpstreamFailed) else (failed.code, "")
        fact = Retried(plan.route.name, of, to, now, what, wait_s, budget.extra_share(now), budget.share if draws else 0.0)
        ex.record.note(f"{how} {to}: {fact.why}")
        self._sink.emit(fact)

    async def back_off(self, ex: Exchange, wait_s: float) -> None:
        """Wait with nothing held but the request itself."""
        if not wait_s:
            return
        ex.timeouts.arm_bound()
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            verdict = ex.timeouts.take_timeout_error(Stage.CALL)
            if verdict is None:
                raise
            raise verdict from None
        finally:
            ex.timeouts.disarm()


def is_once(ex: Exchange, plan: Plan) -> bool:
    """Whether it must not be sent again where it may have been heard."""
    return (ex.request.is_stateful or ex.request.is_stored) and not plan.route.retry.allow_stateful


def _may_follow(ex: Exchange, plan: Plan, failed: UpstreamFailed, member: UpstreamState) -> bool:
    """Whether another attempt may mend it, and the request may be sent again after this upstream had it."""
    return failed.can_retry and (failed.is_undone or not (member.is_not_idempotent or is_once(ex, plan)))


def _fresh(ex: Exchange, plan: Plan, targets: Iterable[Target], now: float, *, is_any: bool = False) -> Target | None:
    """The first that is well and that this request has not asked; else one that only refused others' keys or models, since
    no wait mends that; `is_any`: else the first not asked.
    """
    model = plan.prompt.request.model
    already_called = {(attempt.member, attempt.call.model) for attempt in ex.record.attempts}
    others = [target for target in targets if (target.member, target.model or model) not in already_called]
    for target in others:
        if target.member.is_well(now, target.model or model):
            return target
    for target in others:
        health = target.member.health(target.model or model)
        if is_any or (now >= health.alone_until and health.breaker.share(now) > 0):
            return target
    return None


def _again(ex: Exchange, plan: Plan, candidates: Iterable[Target], now: float, most_s: float, *, failed: UpstreamFailed,
           target: Target, is_last: bool) -> tuple[float, Target | None]:
    """Whom to go back to, and what is left of its Retry-After, `most_s` at most: the one with the least. Where others are
    asked after these, only one that a back-off alone may mend: not one that asked to be left alone, is left alone for
    failing, takes no connection, or took all the time for its first token.
    """
    model, found, least_s = plan.prompt.request.model, None, inf
    lost = {attempt.member for attempt in ex.record.attempts
            if attempt.done is not None and attempt.done.fault in NOT_MENDED}
    for other in candidates:
        health = other.member.health(other.model or model)
        alone_s = max(0.0, health.alone_until - now)
        if other is target and failed.retry_after_s is not None:  # of the member it is known up to a minute only
            alone_s = max(alone_s, failed.retry_after_s)
        if alone_s > most_s or alone_s >= least_s or health.is_hanging(most_s, now):
            continue
        if is_last or not (alone_s or health.breaker.share(now) == 0 or other.member in lost):
            found, least_s = other, alone_s
    return least_s, found


def awake(plan: Plan, targets: Sequence[Target], now: float, ends_at: float) -> Sequence[Target]:
    """Those at which a call that begins now is not expected to hang until it fails."""
    model, most_s = plan.prompt.request.model, patience_s(plan.route.retry, ends_at - now)
    return [target for target in targets if not target.member.health(target.model or model).is_hanging(most_s, now)]


class LeftAlone(UpstreamFailed):
    """Nothing was sent: every upstream that may answer hangs until the request's time is up, as far as is known."""

    status = 503

    def __init__(self, plan: Plan, targets: Sequence[Target], now: float) -> None:
        names = ", ".join(target.member.upstream.name for target in targets)
        healths = [target.member.health(target.model or plan.prompt.request.model) for target in targets]
        super().__init__(names, Fault.TIMEOUT, f"not sent to {names}: {healths[0].breaker.why}, and calls there last failed "
                         "only after a long wait", code="upstream_down", kind="overloaded_error",
                         retry_after_s=max(1.0, min(health.probe_due_s(now) for health in healths)))

    @property
    def is_undone(self) -> bool:
        return True
