"""From a plan to the first valid content token of a stream, or to a whole answer.

As long as the client has nothing of an answer, attempts may be exchanged unseen; after that, never. An attempt starts where
there is a place under the upstream's limit (`places`).
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_NAME
from stayfast.core.deadline import Deadline
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import COUNT_APIS, Outcome, Stage
from stayfast.pipeline.attempts.attempt import (
    FALLBACK,
    FIRST,
    HEDGE,
    RETRY,
    Attempt,
    AttemptTerms,
    read_to_first_token,
    read_whole,
)
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, StartedAnswer
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.call.hedged_call import HedgedCall, IsShedding, longest_part
from stayfast.pipeline.stages.call.ladder_call import LadderCall
from stayfast.pipeline.stages.call.places import choose_target
from stayfast.pipeline.stages.call.retry import RetryPolicy, allows_fallback, is_once
from stayfast.pipeline.stages.call.warm_hold import NoReplicaReady, hold_until_ready
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.pipeline.tiers.tiered_attempt import TieredAttempt
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.pipeline.warm.route_pool import RoutePool
from stayfast.policy.admission.price import price_of
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.policy.resilience.retry import longest_wait_s
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.upstreams.base import Call, Sending

_CLOSED = BreakerState.CLOSED


class Caller:
    """Makes attempts until one brings content. Holds no state of a request."""

    __slots__ = ("_retrying", "_rng", "clock", "is_shedding", "sink", "tasks")

    def __init__(self, clock: Clock, rng: Random, sink: Sink, is_shedding: IsShedding | None = None) -> None:
        """is_shedding: None: the gateway rejects no request for overload."""
        self.clock = clock
        self._rng = rng
        self.sink = sink
        self.is_shedding = is_shedding
        self._retrying = RetryPolicy(clock, rng, sink)
        self.tasks = BackgroundTasks()

    def start(self, ex: Exchange, plan: Plan) -> Coroutine[Any, Any, StartedAnswer]:
        """The first attempt that brings content; of a whole answer, all of it. A fallback is tried when all candidates
        failed, or used up the time that is not reserved for it. Raises the last attempt's UpstreamFailed, DeadlineExceeded,
        Rejected, Shed.
        """
        ends_at, weight = ex.ledger.ends_at, weight_of(len(plan.prompt.request.body))
        if not ex.arrival.headers or not ex.arrival.is_sdk_retry:  # an SDK's retry earns no budget for more retries
            plan.route.hedging.budget.deposit(weight, self.clock.now())
        if plan.hold is not None:
            return self._call_when_ready(ex, plan, plan.hold, ends_at, weight)
        return self._call(ex, plan, ends_at, weight)

    def _call(self, ex: Exchange, plan: Plan, ends_at: float, weight: float) -> Coroutine[Any, Any, StartedAnswer]:
        if plan.ladder is not None:
            return LadderCall(ex, plan, plan.ladder, ends_at, weight, call_targets=self._call_targets,
                              fall_back=self._call_tiers, retrying=self._retrying, clock=self.clock).run()
        if ex.request.start_within_s is not None or ex.arrival.start_within_s is not None:
            return self._call_within(ex, plan, ends_at, weight)
        if plan.fallback:
            return self._call_with_fallback(ex, plan, ends_at, weight)
        return self._call_targets(ex, plan, plan.candidates, ends_at, is_last=True)

    async def _call_when_ready(self, ex: Exchange, plan: Plan, pool: RoutePool, ends_at: float, weight: float
                               ) -> StartedAnswer:
        """The same, after a replica became ready; from the fallback, which has its reserve, if none did."""
        ready = await hold_until_ready(ex, plan, pool, self.clock)
        if ready is not None:
            return await self._call(ex, ready, ends_at, weight)
        return await self._call_tiers(ex, plan, min(ends_at, ex.start_by), weight, NoReplicaReady(plan))

    async def _call_within(self, ex: Exchange, plan: Plan, ends_at: float, weight: float) -> StartedAnswer:
        """The same, until the latest first token that the client wants."""
        start_by = min(ends_at, ex.start_by)
        ex.timeouts.set_bound(start_by, self.clock.now())
        try:
            if plan.fallback:
                return await self._call_with_fallback(ex, plan, start_by, weight)
            return await self._call_targets(ex, plan, plan.candidates, start_by, is_last=True)
        finally:
            ex.timeouts.set_bound(ends_at, self.clock.now())

    async def _call_with_fallback(self, ex: Exchange, plan: Plan, ends_at: float, weight: float) -> StartedAnswer:
        reserve_s = 0.0 if is_once(ex, plan) else ex.reserve_s
        ex.timeouts.set_bound(ends_at - reserve_s, self.clock.now())
        try:
            return await self._call_targets(ex, plan, plan.candidates, ends_at - reserve_s, is_last=False)
        except StayfastError as failed:
            return await self._call_tiers(ex, plan, ends_at, weight, failed)

    async def _call_tiers(self, ex: Exchange, plan: Plan, ends_at: float, weight: float,
                          failed: StayfastError) -> StartedAnswer:
        """The first fallback tier that answers. Each tier has its part of the reserve, and what earlier tiers left of
        theirs.
        """
        now = self.clock.now()
        tiers = [tier for tier in plan.fallback if awake(plan, tier, now, ends_at)]
        budget, n_left = plan.route.hedging.budget, len(tiers)
        is_stateful = is_once(ex, plan)
        reserve_s = 0.0 if is_stateful else ex.reserve_s
        for targets in tiers:
            now = self.clock.now()
            if ends_at - now < plan.route.retry.min_remaining_s or not allows_fallback(failed, is_once=is_stateful):
                break
            pool = targets[0].member.retry_budget
            if targets is not tiers[0] and not (budget.may_retry(weight, now) and pool.has_room(weight, now)):
                ex.record.note("the next fallback was not tried: the budget of extra attempts is spent")
                break
            n_left -= 1
            until = ends_at - reserve_s * n_left / len(tiers)
            ex.timeouts.set_bound(until, now)
            self._retrying.report_retry(ex, plan, failed, targets[0], "fell back to")
            pool.withdraw(weight, now)
            budget.withdraw_retry(weight, now)  # the first fallback is never refused: it replaces a failed request
            try:
                started = await self._call_targets(ex, plan, targets, until, is_last=not n_left,
                                                   n_before=len(ex.record.attempts))
            except Rejected:  # the fallback's protocol cannot express the request: the earlier failure is the one to raise
                continue
            except StayfastError as later:
                failed = later
            else:
                ex.record.degrade(None if targets is plan.own_targets else "fallback")
                return started
        raise failed from None

    async def _call_targets(self, ex: Exchange, plan: Plan, targets: Sequence[Target], ends_at: float, *,
                            is_last: bool, n_before: int = 0) -> StartedAnswer:
        """The first target that brings content by `ends_at`. is_last: no fallback follows. n_before: earlier attempts."""
        if plan.route.hedging.has_slow and len(targets) > 1:  # slow ones last: a hedge would leave them at once
            targets = self._slow_last(plan, targets)
        candidates = self._reachable(ex, plan, targets, ends_at - ex.grace_s)
        n_made = n_free = 0  # attempts that count, and those by which no upstream did any work
        waited_s = 0.0
        failed: UpstreamFailed | None = None
        try:
            while True:
                target = candidates[0]
                if plan.prompt.layout is not None or not target.member.limiter_of(plan.lane).has_room:
                    target = await self._wait_for_target(ex, plan, candidates, ends_at)
                try:
                    return await self._attempt(ex, plan, target, targets, ends_at, n_made=n_made, is_last=is_last)
                except Rejected:
                    candidates.popleft()  # its protocol cannot express the request; another target's may
                    n_free += 1
                    if failed is None:
                        if candidates:
                            continue
                        raise
                except UpstreamFailed as error:
                    failed = error
                    if error.is_for_operator or error.is_refused:
                        candidates.popleft()
                        n_free += error.is_refused
                    else:
                        candidates.rotate(-1)
                n_made = sum(not attempt.is_hedge for attempt in ex.record.attempts[n_before:]) - n_free
                wait_s = self._retrying.choose_next(ex, plan, failed, candidates, target=target, n_made=n_made,
                                                    waited_s=waited_s, ends_at=ends_at - ex.grace_s, is_last=is_last)
                if wait_s is None:
                    raise failed
                waited_s += wait_s
                await self._retrying.back_off(ex, wait_s)
        finally:
            failed = None  # it refers to this frame, which refers to it

    def _slow_last(self, plan: Plan, targets: Sequence[Target]) -> Sequence[Target]:
        request = plan.prompt.request
        slow = plan.route.hedging.slow_upstreams([target.upstream_model(request.model) for target in targets],
                                                 self.clock.now(), is_whole=not request.stream)
        return sorted(targets, key=lambda target: target.member.upstream.name in slow)

    def _reachable(self, ex: Exchange, plan: Plan, targets: Sequence[Target], ends_at: float) -> deque[Target]:
        """The targets that are not expected to hang. Raises AllHanging."""
        now = self.clock.now()
        found = awake(plan, targets, now, ends_at)
        if not found:
            ex.record.note(f"not sent to {_names(targets)}: calls there hang until they fail")
            raise AllHanging(plan, targets, now)
        return deque(found)

    async def _wait_for_target(self, ex: Exchange, plan: Plan, candidates: deque[Target], ends_at: float) -> Target:
        """`choose_target`, without targets that began to hang during the wait. Raises AllHanging if all did."""
        while True:
            target = await choose_target(ex, plan, candidates, ends_at, self.clock)
            now = self.clock.now()
            if awake(plan, (target,), now, ends_at - ex.grace_s):
                return target
            target.member.limiter_of(plan.lane).grant_waiters()  # the free place goes to the next waiting request
            candidates.popleft()
            if not candidates:
                raise AllHanging(plan, (target,), now)

    async def _attempt(self, ex: Exchange, plan: Plan, target: Target, others: Sequence[Target], ends_at: float, *,
                       n_made: int, is_last: bool) -> StartedAnswer:
        """One attempt in the request's own task, after `n_made` others; the answer of a hedge if that was quicker."""
        attempt = self.begin(ex, plan, ends_at, target)
        ex.record.use_upstream(target.member.upstream.name)
        hedged = started = None
        if _may_hedge(ex, plan, attempt):
            hedged = HedgedCall(self, ex, plan, ends_at, attempt, plan.hedge_to or others, n_made + 1)
            ex.timeouts.schedule_hedge_check(attempt.began_at + plan.route.hedging.first_check_s, hedged.schedule)
        limits = ex.policy.timeouts
        if attempt.is_incremental:
            ex.timeouts.arm("first_token_s", limits.first_token_s, attempt.began_at)
        else:  # a whole answer has no first token
            ex.timeouts.arm_bound()
        try:
            try:
                attempt.stream = stream = await attempt.open()
                lead = await (read_to_first_token(attempt, stream) if attempt.call.request.stream
                              else read_whole(attempt, stream, ex.timeouts, limits.idle_s, self.clock))
                started = StartedAnswer(attempt, stream, lead)
            except asyncio.CancelledError as why:
                started = self._end_interrupted(ex, attempt, hedged, why, is_last=is_last)
            except UpstreamFailed as failed:
                self._end_failed(ex, attempt, failed)
                raise
            except BaseException:
                attempt.abandon()
                raise
            finally:
                ex.timeouts.disarm()
        except UpstreamFailed as failed:
            started = await hedged.wait_for_others(attempt, failed, is_last=is_last) if hedged is not None else None
            if started is None:
                raise
        finally:
            if hedged is not None:
                hedged.end(started)
        if started.source is not attempt:
            ex.record.use_upstream(started.source.name)
        return started

    def begin_retry(self, ex: Exchange, plan: Plan, ends_at: float, failed: UpstreamFailed, others: Sequence[Target], *,
                    of: Attempt, n_made: int) -> Attempt | None:
        """An attempt in place of one that failed while others run, at a target that was not tried. None: there is none."""
        target = self._retrying.choose_concurrent(ex, plan, failed, others, of=of.member, n_made=n_made,
                                                  ends_at=ends_at - ex.grace_s)
        return self.begin(ex, plan, ends_at, target) if target is not None else None

    def begin(self, ex: Exchange, plan: Plan, ends_at: float, target: Target, *, is_hedge: bool = False) -> Attempt:
        """An attempt of which nothing is sent yet; the caller must end it."""
        request = plan.prompt.request
        upstream = target.member.upstream
        is_incremental = request.stream or upstream.always_streams
        model = target.model or request.model
        deadline = ex.deadline if request.stream or ends_at == ex.deadline.at else Deadline(ends_at)
        price, layout = price_of(target.prices, model) if target.prices else None, plan.prompt.layout
        arrival, caps = ex.arrival, ex.policy.cap
        if caps is not None:
            request = caps.limit(request, target, deadline.at - ex.grace_s, self.clock.now(), role=arrival.role,
                                 note=ex.record.note)
        call = Call(request, model, arrival.request_id, deadline, ex.policy.timeouts.connect_s, arrival.headers,
                    arrival.new_span(self._rng) if arrival.trace is not None else None, False,
                    layout.new_marker(upstream.name, model, price) if layout is not None else None,
                    arrival.tenant, arrival.events, ex.policy.ends_partial and not request.stream, Sending(),
                    ex.policy.counting if request.api in COUNT_APIS else None, None, None, plan.route.name,
                    ex.record.notes.append)  # a bound method of the record would make a cycle
        hedging = plan.route.hedging
        known = None  # those of judgements, jobs and token counts are unlike answers to clients
        if hedging.is_on and call.counting is None and not (arrival.role and (arrival.is_judgement or arrival.is_job)):
            known = hedging.first_tokens((upstream.name, model[:MAX_NAME]), len(request.body), is_whole=not request.stream)
        make = Attempt if target.learner is None else partial(TieredAttempt, target.learner)
        role = HEDGE if is_hedge else _role_of(ex, plan, target)
        terms = AttemptTerms(plan.route.name, is_incremental, len(ex.record.attempts) + 1, role, price, known, plan.feedback,
                             plan.lane)
        attempt = make(target.member, call, terms, self.clock, self.sink)
        ex.record.add_attempt(attempt)
        if caps is not None:
            caps.watch(attempt)
        return attempt

    def _end_failed(self, ex: Exchange, attempt: Attempt, failed: UpstreamFailed) -> None:
        """End an attempt that failed. Raises DeadlineExceeded if its time is up: its own timer fired before ours."""
        if failed.fault is Fault.TIMEOUT and ex.timeouts.is_over(self.clock.now()):
            attempt.end(Outcome.DROPPED, Fault.TIMEOUT.value, is_failure=attempt.is_late)
            raise ex.timeouts.timeout_error(Stage.CALL) from None
        attempt.fail(failed)

    def _end_interrupted(self, ex: Exchange, attempt: Attempt, hedged: HedgedCall | None, why: asyncio.CancelledError, *,
                         is_last: bool) -> StartedAnswer:
        """End a cancelled attempt. By a quicker hedge: its answer; by our timeout: a partial answer or an error; else the
        cancellation is raised.
        """
        winner = hedged.take_winner() if hedged is not None else None
        if winner is not None:
            attempt.mark_lost()
            return winner
        late = ex.timeouts.take_timeout_error(Stage.CALL)
        if late is None:
            attempt.abandon()
            raise why
        is_over = late.limit in OF_THE_STAGE
        part = None
        if is_over and is_last and ex.policy.ends_partial and not ex.request.stream:
            part = longest_part([attempt, *(hedged.running() if hedged is not None else ())])
        is_failure = not is_over or attempt.is_late  # else only the client's deadline was short
        attempt.end(Outcome.DROPPED, Fault.TIMEOUT.value, is_failure=is_failure)
        if part is not None:
            return part
        if is_over:
            raise late from None
        raise _TimedOut(attempt.name, late) from None


def awake(plan: Plan, targets: Sequence[Target], now: float, ends_at: float) -> Sequence[Target]:
    """The targets at which a call that starts now is not expected to hang until it fails. None hangs while its breaker is
    closed.
    """
    model = plan.prompt.request.model
    for target in targets:
        if target.member.health_of(target.model or model).breaker.state is not _CLOSED:
            return _without_hanging(targets, model, longest_wait_s(plan.route.retry, ends_at - now), now)
    return targets


def _without_hanging(targets: Sequence[Target], model: str, most_s: float, now: float) -> Sequence[Target]:
    return [target for target in targets
            if (health := target.member.health_of(target.model or model)).breaker.state is _CLOSED
            or not health.is_hanging(most_s, now)]


def _names(targets: Sequence[Target]) -> str:
    return ", ".join(target.member.upstream.name for target in targets)


def _role_of(ex: Exchange, plan: Plan, target: Target) -> str:
    """Why an attempt is made that is no hedge."""
    given = ex.arrival.role or plan.role
    if given:
        return given
    if ex.record.degraded == "fallback" or (plan.fallback and _is_among(target, plan.fallback)):
        return FALLBACK
    return RETRY if ex.record.attempts else FIRST


def _is_among(target: Target, tiers: Sequence[Sequence[Target]]) -> bool:
    return any(target is other for tier in tiers for other in tier)


def _may_hedge(ex: Exchange, plan: Plan, attempt: Attempt) -> bool:
    """Whether it may have hedges: not of an SDK's retry, a judgement or a job, nor if a request changes state."""
    request, arrival, hedging = ex.request, ex.arrival, plan.route.hedging
    if not hedging.is_on or request.stream is not attempt.is_incremental:
        return False
    if arrival.role and (arrival.is_judgement or arrival.is_job):
        return False
    if (request.is_stateful or request.is_stored) and not hedging.config.allow_stateful:
        return False
    return not arrival.headers or not arrival.is_sdk_retry


class _TimedOut(UpstreamFailed):
    """No content within `first_token_s`, or none for `idle_s`: another attempt may still succeed before the deadline."""

    status = 504

    def __init__(self, upstream: str, late: DeadlineExceeded) -> None:
        super().__init__(upstream, Fault.TIMEOUT, late.message, code=late.code, kind=late.kind)


class AllHanging(UpstreamFailed):
    """Nothing was sent: every target is expected to hang until the request's time is over."""

    status = 503

    def __init__(self, plan: Plan, targets: Sequence[Target], now: float) -> None:
        names = _names(targets)
        healths = [target.member.health_of(target.model or plan.prompt.request.model) for target in targets]
        super().__init__(names, Fault.TIMEOUT, f"not sent to {names}: {healths[0].breaker.why}, and calls there last failed "
                         "only after a long wait", code="upstream_down", kind="overloaded_error",
                         retry_after_s=max(1.0, min(health.probe_due_s(now) for health in healths)))

    @property
    def is_undone(self) -> bool:
        return True
