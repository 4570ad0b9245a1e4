"""After a failure: which target is tried next, when, and whether the budget allows it."""

import asyncio
from collections import deque
from collections.abc import Iterable
from math import inf
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Retried, RetryWithheld, Sink
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan
from stayfast.pipeline.routing.selector import Target
from stayfast.policy.resilience.retry import longest_wait_s, wait_before_next
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.upstreams.state.upstream_state import UpstreamState

NOT_MENDED = (Fault.CONNECT, Fault.TIMEOUT)  # faults that a back-off within one request does not cure


class RetryPolicy:
    """Holds no state of a request."""

    __slots__ = ("_clock", "_rng", "_sink")

    def __init__(self, clock: Clock, rng: Random, sink: Sink) -> None:
        self._clock = clock
        self._rng = rng
        self._sink = sink

    def choose_next(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, candidates: deque[Target], *,
                    target: Target, n_made: int, waited_s: float, ends_at: float, is_last: bool) -> float | None:
        """Move the next target to the front, draw its attempt from the budgets, and return the seconds to wait before it;
        None: no retry. target: the one that failed. n_made: attempts so far. waited_s: all waits so far. is_last: no
        fallback follows.
        """
        if not candidates or not _may_follow(ex, plan, failed, target.member):
            return None
        now, alone_s, retry = self._clock.now(), 0.0, plan.route.retry
        following = _untried(ex, plan, candidates, now, is_any=failed.is_refused)
        is_fresh = following is not None
        if following is None:
            most_s = longest_wait_s(retry, ends_at - now, waited_s)
            alone_s, following = _tried(ex, plan, candidates, now, most_s, failed=failed, target=target, is_last=is_last)
            if following is None:
                return None
        wait_s = wait_before_next(retry, n_made, ends_at - now, self._rng, is_fresh=is_fresh, retry_after_s=alone_s,
                                  min_attempt_s=following.member.fastest_ttft_s)
        if wait_s is None or not self._draw(ex, plan, failed, following, wait_s):
            return None
        candidates.remove(following)
        candidates.appendleft(following)
        return wait_s

    def choose_concurrent(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, others: Iterable[Target], *,
                          of: UpstreamState, n_made: int, ends_at: float) -> Target | None:
        """A target for a retry while another attempt still runs: healthy, untried, with a free place; drawn from the
        budgets. None: there is none. of: the upstream that failed.
        """
        if not _may_follow(ex, plan, failed, of):
            return None
        now = self._clock.now()
        fresh = _untried(ex, plan, [other for other in others if other.member.limiter_of(plan.lane).has_room], now)
        if fresh is None or wait_before_next(plan.route.retry, n_made, ends_at - now, self._rng, is_fresh=True,
                                             min_attempt_s=fresh.member.fastest_ttft_s) is None:
            return None
        return fresh if self._draw(ex, plan, failed, fresh, 0.0) else None

    def _draw(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, following: Target, wait_s: float) -> bool:
        """Take one more attempt from the budgets of the route and of the next upstream; False: they are spent. A request
        that an SDK retries is never retried here. A refused key or model costs no budget: no upstream did any work.
        """
        if failed.is_refused:
            self.report_retry(ex, plan, failed, following, "retried at", wait_s=wait_s, draws=False)
            return True
        now, budget, pool = self._clock.now(), plan.route.hedging.budget, following.member.retry_budget
        weight = weight_of(len(plan.prompt.request.body))
        if ex.arrival.is_sdk_retry:
            why, note = "client", "the client's SDK retries"
        elif not budget.may_retry(weight, now):
            why, note = "budget", f"extra attempts came to {budget.extra_share(now):.1%} in the last minute"
        elif not pool.has_room(weight, now):
            why, note = "upstream", f"{following.member.upstream.name} has had its extra attempts of the last minute"
        else:
            self.report_retry(ex, plan, failed, following, "retried at", wait_s=wait_s)
            budget.withdraw_retry(weight, now)
            pool.withdraw(weight, now)
            return True
        ex.record.note(f"not retried: {note} ({failed.what} of {failed.upstream})")
        self._sink.emit(RetryWithheld(plan.route.name, failed.upstream, why, budget.extra_share(now), budget.max_share))
        return False

    def report_retry(self, ex: Exchange, plan: Plan, failed: StayfastError, following: Target, verb: str, *,
                     wait_s: float = 0.0, draws: bool = True) -> None:
        """Note and emit a further attempt, with the budget before it. draws: it costs budget."""
        now, budget, to = self._clock.now(), plan.route.hedging.budget, following.member.upstream.name
        what, of = (failed.what, failed.upstream) if isinstance(failed, UpstreamFailed) else (failed.code, "")
        event = Retried(plan.route.name, of, to, now, what, wait_s, budget.extra_share(now), budget.max_share if draws
                        else 0.0)
        ex.record.note(f"{verb} {to}: {event.why}")
        self._sink.emit(event)

    async def back_off(self, ex: Exchange, wait_s: float) -> None:
        """Wait, holding no place at any upstream."""
        if not wait_s:
            return
        ex.timeouts.arm_bound()
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            late = ex.timeouts.take_timeout_error(Stage.CALL)
            if late is None:
                raise
            raise late from None
        finally:
            ex.timeouts.disarm()


def is_once(ex: Exchange, plan: Plan) -> bool:
    """Whether the request changes state, so that it must not be sent again after an upstream may have executed it."""
    return (ex.request.is_stateful or ex.request.is_stored) and not plan.route.retry.allow_stateful


def allows_fallback(failed: StayfastError, *, is_once: bool) -> bool:
    """Not for an error of the request itself, nor if a stateful request may have been executed."""
    if isinstance(failed, UpstreamFailed):
        return (failed.is_model_missing or not failed.is_clients_fault) and (not is_once or failed.is_undone)
    return not (isinstance(failed, DeadlineExceeded) and is_once)


def _may_follow(ex: Exchange, plan: Plan, failed: UpstreamFailed, member: UpstreamState) -> bool:
    """Whether another attempt may succeed, and is allowed after this upstream had the request."""
    return failed.can_retry and (failed.is_undone or not (member.is_not_idempotent or is_once(ex, plan)))


def _untried(ex: Exchange, plan: Plan, targets: Iterable[Target], now: float, *, is_any: bool = False) -> Target | None:
    """The first healthy target that this request has not tried; else one that only refused other keys or models, which no
    wait would cure. is_any: else the first untried one.
    """
    model = plan.prompt.request.model
    already_called = {(attempt.member, attempt.call.model) for attempt in ex.record.attempts}
    others = [target for target in targets if (target.member, target.model or model) not in already_called]
    for target in others:
        if target.member.is_healthy(now, target.model or model):
            return target
    for target in others:
        health = target.member.health_of(target.model or model)
        if is_any or (now >= health.suspended_until and health.breaker.traffic_share(now) > 0):
            return target
    return None


def _tried(ex: Exchange, plan: Plan, candidates: Iterable[Target], now: float, most_s: float, *, failed: UpstreamFailed,
           target: Target, is_last: bool) -> tuple[float, Target | None]:
    """The target to go back to: the one with the shortest Retry-After, at most `most_s`; and that time. If a fallback
    follows, only one that a back-off may cure: without a Retry-After, an open breaker, a refused connection or a timeout.
    """
    model, found, least_s = plan.prompt.request.model, None, inf
    lost = {attempt.member for attempt in ex.record.attempts
            if attempt.done is not None and attempt.done.fault in NOT_MENDED}
    for other in candidates:
        health = other.member.health_of(other.model or model)
        alone_s = max(0.0, health.suspended_until - now)
        if other is target and failed.retry_after_s is not None:  # the upstream's state keeps at most a minute of it
            alone_s = max(alone_s, failed.retry_after_s)
        if alone_s > most_s or alone_s >= least_s or health.is_hanging(most_s, now):
            continue
        if is_last or not (alone_s or health.breaker.traffic_share(now) == 0 or other.member in lost):
            found, least_s = other, alone_s
    return least_s, found
