"""From a plan to the first valid content token of a stream, or to a whole answer.

As long as the client has nothing of an answer, attempts may be swapped unseen; after that, never. An attempt begins where
there is a place under the upstream's limit: elsewhere, or after a wait. Where prompts are laid out for a provider's cache,
it first waits for one that begins alike and went first (`pipeline.prompt_cache.planner`), within its own time.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.deadline import Deadline
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Outcome, Stage
from stayfast.pipeline.attempts.attempt import FALLBACK, FIRST, HEDGE, RETRY, Attempt, read_to_first_token, read_whole
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, StartedAnswer
from stayfast.pipeline.prompt_cache.planner import PlannedPrompt
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.call.hedged_call import HedgedCall, IsShedding, longest_part
from stayfast.pipeline.stages.call.retry import LeftAlone, RetryPolicy, awake, is_once
from stayfast.pipeline.tasks import TaskGroupRegistry
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.policy.admission.price import price_of
from stayfast.policy.resilience.cross_process import occupancy
from stayfast.policy.resilience.limits import TOLERANCE
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.upstreams.base import Call, Sending
from stayfast.upstreams.state.limiter import ConcurrencyLimiter, LimiterWaiter, LimitOption

SHARE_OF_THE_TIME: Final = 0.25  # that is spent on waiting, at most


async def follow(ex: Exchange, layout: PlannedPrompt, target: Target, ends_at: float, clock: Clock) -> None:
    """Wait while another request has the same beginning remembered at the target. Raises DeadlineExceeded."""
    found = layout.leads(target.member.upstream.name, target.model or ex.request.model)
    if found is None or found[0].ahead(found[1]) is None:
        return
    leads, key = found
    began_at = clock.now()
    until = began_at + min(layout.wait_s, (ends_at - began_at) * SHARE_OF_THE_TIME)
    leads.n_waited += 1
    ex.timeouts.arm_bound()
    try:
        async with asyncio.timeout_at(until):
            while (lead := leads.ahead(key)) is not None:
                await asyncio.shield(lead)  # it is not this request's own to cancel
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        verdict = ex.timeouts.take_timeout_error(Stage.CALL)
        if verdict is None:
            raise
        raise verdict from None
    finally:
        ex.timeouts.disarm()
        ex.record.note(f"waited {(clock.now() - began_at) * 1e3:.0f} ms for another request to fill the prompt cache")


async def make_room(ex: Exchange, plan: Plan, candidates: deque[Target], ends_at: float, clock: Clock) -> Target:
    """Who comes to the front of the candidates: an attempt may begin there, before anything else is awaited.

    The first; where it is full, another that has room and is no worse; where none has, whichever of those has a place first,
    after a wait under the request's deadline. Before that it lets another that begins alike go first (see `follow`).
    Raises Shed (too many wait, or it would take too long) and DeadlineExceeded.
    """
    layout, lane = plan.prompt.layout, plan.lane
    if layout is not None:
        await follow(ex, layout, candidates[0], ends_at, clock)
    if candidates[0].member.limited(lane).has_room:
        return candidates[0]
    target: Target | None = None
    while target is None:  # again where a reload has brought lanes, or ended them
        targets = _well(ex, lane, candidates, clock.now())
        target = next((one for at, one in targets.items() if at.has_room), None)
        if target is None:
            target = await _wait(ex, plan, targets, ends_at, clock)
        elif target is not candidates[0]:
            first = candidates[0].member
            ex.record.note(f"{target.member.upstream.name} before {first.upstream.name}, which is full: "
                            f"{_full(first.limited(lane))}")
    if target is not candidates[0]:
        candidates.remove(target)
        candidates.appendleft(target)
    return target


def _well(ex: Exchange, lane: str, candidates: deque[Target], now: float) -> Mapping[ConcurrencyLimiter, Target]:
    """The first, and those that are no worse, by the limits that they are under."""
    targets: dict[ConcurrencyLimiter, Target] = {}
    takes_any = False
    for target in candidates:
        is_well = target.member.is_well(now, target.model or ex.request.model)
        if not targets:
            takes_any = not is_well
        elif not is_well and not takes_any:
            continue
        targets.setdefault(target.member.limited(lane), target)
    return targets


async def _wait(ex: Exchange, plan: Plan, targets: Mapping[ConcurrencyLimiter, Target], ends_at: float, clock: Clock
                ) -> Target | None:
    """The target that has a place first; None: ask again."""
    began_at = clock.now()
    were_full = {limited: f"{target.member.upstream.name}: {_full(limited)}" for limited, target in targets.items()}
    at = next(iter(targets))
    ex.record.use_upstream(targets[at].member.upstream.name)
    ex.timeouts.arm_bound()
    is_away = False
    share = plan.share
    tenant, weight = (ex.arrival.tenant or "", 1.0) if share is None else (share.name, share.weight)
    try:
        called = await LimiterWaiter(clock, ends_at - ex.grace_s, plan.band, tenant, weight).wait(
            [LimitOption(limited, _first_s(ex, target)) for limited, target in targets.items()])
    except Shed as shed:
        is_away = True
        ex.record.note(f"turned away, no place in time at {' nor at '.join(were_full.values())}; to come again in "
                        f"{shed.retry_after_s or 0:.2g} s")
        raise
    except asyncio.CancelledError:
        verdict = ex.timeouts.take_timeout_error(Stage.CALL)
        if verdict is None:
            raise
        raise verdict from None
    else:
        at = called or at
        return targets[called] if called is not None else None
    finally:
        ex.timeouts.disarm()
        waited_s = clock.now() - began_at
        if waited_s > 0 and not is_away:
            ex.record.note(f"waited {waited_s * 1e3:.0f} ms for a place at {were_full[at]}")


def _first_s(ex: Exchange, target: Target) -> float:
    """What the first token of such a request takes there unless it is slow; in a class that nobody knows yet, any."""
    member, request = target.member, ex.request
    is_whole = not (request.stream or member.upstream.always_streams)
    norm = member.usual.norm(target.model or request.model, len(request.body) // BYTES_A_TOKEN, is_whole)
    return TOLERANCE * (norm.baseline_s or member.quickest_s)


def _full(limited: ConcurrencyLimiter) -> str:
    lane = f" of lane {limited.lane}" if limited.lane else ""
    taken = occupancy(limited.n_taken, limited.limit.value, limited.common, " were", lane)
    return f"{taken}, {limited.n_waiting} others waiting"


class Caller:
    """Makes attempts until one brings content. Task-safe: holds no state of a request."""

    __slots__ = ("_clock", "_is_shedding", "_retrying", "_rng", "_sink", "_tasks")

    def __init__(self, clock: Clock, rng: Random, sink: Sink, is_shedding: IsShedding | None = None) -> None:
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._is_shedding = is_shedding  # None: nobody is ever turned away
        self._retrying = RetryPolicy(clock, rng, sink)
        self._tasks = TaskGroupRegistry()

    def start(self, ex: Exchange, plan: Plan) -> Coroutine[Any, Any, StartedAnswer]:
        """The first attempt that brings content; of a whole answer, all of it. A fallback is asked when everybody else
        failed or used up the time that is not reserved for it. Raises the last attempt's UpstreamFailed, DeadlineExceeded,
        Rejected, Shed.
        """
        ends_at, weight = ex.ledger.ends_at, weight_of(len(plan.prompt.request.body))
        if not ex.arrival.headers or not ex.arrival.is_repeat:  # what an SDK sends again is no live traffic
            plan.route.hedging.budget.request(weight, self._clock.now())
        if plan.fallback:
            return self._with_fallback(ex, plan, ends_at, weight)
        return self._first(ex, plan, plan.candidates, ends_at, is_last=True)

    async def _with_fallback(self, ex: Exchange, plan: Plan, ends_at: float, weight: float) -> StartedAnswer:
        reserve_s = 0.0 if is_once(ex, plan) else ex.reserve_s
        ex.timeouts.bound(ends_at - reserve_s, self._clock.now())
        try:
            return await self._first(ex, plan, plan.candidates, ends_at - reserve_s, is_last=False)
        except StayfastError as failed:
            return await self._from_tiers(ex, plan, ends_at, weight, failed)

    async def _from_tiers(self, ex: Exchange, plan: Plan, ends_at: float, weight: float,
                          failed: StayfastError) -> StartedAnswer:
        """The answer of the first tier that gives one. Each has its part of the reserve, and what those before it left."""
        now = self._clock.now()
        tiers = [tier for tier in plan.fallback if awake(plan, tier, now, ends_at)]
        budget, n_left = plan.route.hedging.budget, len(tiers)
        is_stateful = is_once(ex, plan)
        reserve_s = 0.0 if is_stateful else ex.reserve_s
        for targets in tiers:
            now = self._clock.now()
            if ends_at - now < plan.route.retry.min_left_s or not _is_for_fallback(failed, is_once=is_stateful):
                break
            pool = targets[0].member.retry_budget
            if targets is not tiers[0] and not (budget.may_retry(weight, now) and pool.has_room(weight, now)):
                ex.record.note("the next fallback was not asked: the budget of extra attempts is spent")
                break
            n_left -= 1
            until = ends_at - reserve_s * n_left / len(tiers)
            ex.timeouts.bound(until, now)
            self._retrying.retried(ex, plan, failed, targets[0], "fell back to")
            pool.take(weight, now)
            budget.take_retry(weight, now)  # the first is never refused: it goes elsewhere, once, instead of failing
            try:
                started = await self._first(ex, plan, targets, until, is_last=not n_left, n_before=len(ex.record.attempts))
            except Rejected:  # the fallback's protocol cannot say it: the failure before it is the one that counts
                continue
            except StayfastError as its:
                failed = its
            else:
                ex.record.degrade(None if targets is plan.own else "fallback")
                return started
        raise failed from None

    async def _first(self, ex: Exchange, plan: Plan, targets: Sequence[Target], ends_at: float, *,
                     is_last: bool, n_before: int = 0) -> StartedAnswer:
        """The first target that brings content by `ends_at`. `is_last`: none is asked after. `n_before`: earlier ones."""
        if plan.route.hedging.has_slow and len(targets) > 1:  # slow ones behind: a second attempt would go there at once
            slow = plan.route.hedging.slow([target.member.upstream.name for target in targets], self._clock.now(),
                                           is_whole=not plan.prompt.request.stream)
            targets = sorted(targets, key=lambda target: target.member.upstream.name in slow)
        candidates = self._retrying.candidates(ex, plan, targets, ends_at - ex.grace_s)
        n_made = n_free = 0  # attempts that count, and those by which nothing was asked of anybody
        waited_s = 0.0
        failed: UpstreamFailed | None = None
        try:
            while True:
                target = candidates[0]
                if plan.prompt.layout is not None or not target.member.limited(plan.lane).has_room:
                    target = await self._wait_for_place(ex, plan, candidates, ends_at)
                try:
                    return await self._attempt(ex, plan, target, targets, ends_at, n_made=n_made, is_last=is_last)
                except Rejected:
                    candidates.popleft()  # this upstream's protocol cannot say it; another's may
                    n_free += 1
                    if failed is None:
                        if candidates:
                            continue
                        raise
                except UpstreamFailed as its:
                    failed = its
                    if its.is_for_operator or its.is_refused:
                        candidates.popleft()
                        n_free += its.is_refused
                    else:
                        candidates.rotate(-1)
                n_made = sum(not attempt.is_hedge for attempt in ex.record.attempts[n_before:]) - n_free
                wait_s = self._retrying.following(ex, plan, failed, candidates, target=target, n_made=n_made,
                                                   waited_s=waited_s, ends_at=ends_at - ex.grace_s, is_last=is_last)
                if wait_s is None:
                    raise failed
                waited_s += wait_s
                await self._retrying.back_off(ex, wait_s)
        finally:
            failed = None  # it holds this frame, which would hold it

    async def _wait_for_place(self, ex: Exchange, plan: Plan, candidates: deque[Target], ends_at: float) -> Target:
        """See `make_room`. Who has come to hang in the meantime is left out. Raises LeftAlone where all have."""
        while True:
            target = await make_room(ex, plan, candidates, ends_at, self._clock)
            now = self._clock.now()
            if awake(plan, (target,), now, ends_at - ex.grace_s):
                return target
            target.member.limited(plan.lane).call_up()  # whoever is next in line for the place
            candidates.popleft()
            if not candidates:
                raise LeftAlone(plan, (target,), now)

    async def _attempt(self, ex: Exchange, plan: Plan, target: Target, others: Sequence[Target], ends_at: float, *,
                       n_made: int, is_last: bool) -> StartedAnswer:
        """One attempt, after `n_made` others, and what is sent beside it where it is slow."""
        attempt = self.begin(ex, plan, ends_at, target)
        request, hedging = plan.prompt.request, plan.route.hedging
        if not hedging.is_on or request.stream is not attempt.is_incremental or not _may_race(ex, hedging):
            return await self._read(ex, attempt, None, is_last=is_last)
        race = HedgedCall(ex, plan, attempt, others, n_made=n_made, begin=partial(self.begin, ex, plan, ends_at),
                    instead=partial(self._instead, ex, plan, ends_at), tasks=self._tasks, clock=self._clock, sink=self._sink,
                    is_shedding=self._is_shedding)
        started: StartedAnswer | None = None
        try:
            try:
                started = await self._read(ex, attempt, race, is_last=is_last)
            except UpstreamFailed as failed:
                if race.has_hedges:
                    race.replace(attempt, failed)
                    started = await race.others(ex.policy.timeouts.first_token_s,
                                                ends_partial=is_last and ex.policy.ends_partial)
                if started is None:
                    raise
        finally:
            race.end(started)
        ex.record.use_upstream(started.source.name)
        return started

    def _instead(self, ex: Exchange, plan: Plan, ends_at: float, failed: UpstreamFailed, others: Sequence[Target], *,
                 of: Attempt, n_made: int) -> Attempt | None:
        """An attempt in place of one that failed beside another: with somebody who was not asked. None: there is nobody."""
        target = self._retrying.retry_concurrently(ex, plan, failed, others, of=of.member, n_made=n_made,
                                        ends_at=ends_at - ex.grace_s)
        return self.begin(ex, plan, ends_at, target) if target is not None else None

    def begin(self, ex: Exchange, plan: Plan, ends_at: float, target: Target, *, is_hedge: bool = False) -> Attempt:
        """An attempt that nothing is sent of yet; whoever begins it ends it."""
        request = plan.prompt.request
        upstream = target.member.upstream
        is_incremental = request.stream or upstream.always_streams
        model = target.model or request.model
        deadline = ex.deadline if request.stream or ends_at == ex.deadline.at else Deadline(ends_at)
        price, layout = price_of(target.prices, model) if target.prices else None, plan.prompt.layout
        arrival = ex.arrival
        call = Call(request, model, arrival.request_id, deadline, ex.policy.timeouts.connect_s, arrival.headers,
                    arrival.new_span(self._rng), False,
                    layout.marker(upstream.name, model, price) if layout is not None else None,
                    arrival.tenant, arrival.events, ex.policy.ends_partial and not request.stream, Sending())
        hedging = plan.route.hedging
        known = None
        if hedging.is_on:
            known = hedging.first_tokens(upstream.name, len(request.body), is_whole=not request.stream)
        attempt = Attempt(target.member, call, plan.route.name, len(ex.record.attempts) + 1, is_incremental=is_incremental,
                          clock=self._clock, sink=self._sink, price=price, first_tokens=known,
                          role=HEDGE if is_hedge else _role_of(ex, plan, target),
                          aim=plan.aim, lane=plan.lane)
        ex.record.add_attempt(attempt)
        return attempt

    async def _read(self, ex: Exchange, attempt: Attempt, race: HedgedCall | None, *, is_last: bool) -> StartedAnswer:
        """What comes of an attempt in the request's own task, or of what was quicker beside it."""
        timeouts = ex.policy.timeouts
        ex.record.use_upstream(attempt.name)
        if attempt.is_incremental:
            ex.timeouts.arm("first_token_s", timeouts.first_token_s, attempt.began_at)
        else:  # nothing of a whole answer comes before all of it
            ex.timeouts.arm_bound()
        try:
            attempt.stream = stream = await attempt.open()
            if attempt.call.request.stream:
                lead = await read_to_first_token(attempt, stream)
            else:
                lead = await read_whole(attempt, stream, ex.timeouts, timeouts.idle_s, self._clock)
        except asyncio.CancelledError as why:
            started = race.won() if race is not None else None
            if started is None:
                return self._interrupted(ex, attempt, race, why, is_last=is_last)
            attempt.lose()
            return started
        except UpstreamFailed as failed:
            if failed.fault is Fault.TIMEOUT and ex.timeouts.is_over(self._clock.now()):  # it was quicker than our own timer
                attempt.end(Outcome.DROPPED, Fault.TIMEOUT.value, is_failure=attempt.is_late)
                raise ex.timeouts.exceeded(Stage.CALL) from None
            attempt.fail(failed)
            raise
        except BaseException:
            attempt.abandon()
            raise
        finally:
            ex.timeouts.disarm()
        return StartedAnswer(attempt, stream, lead)

    def _interrupted(self, ex: Exchange, attempt: Attempt, race: HedgedCall | None, why: asyncio.CancelledError, *,
                     is_last: bool) -> StartedAnswer:
        """What a cancelled attempt comes to: by our time-out an error or a partial answer, else the cancellation."""
        verdict = ex.timeouts.take_timeout_error(Stage.CALL)
        if verdict is None:
            attempt.abandon()
            raise why
        is_over = verdict.limit in OF_THE_STAGE
        part = None
        if is_over and is_last and ex.policy.ends_partial and not ex.request.stream:
            part = longest_part([attempt, *(race.running() if race is not None else ())])
        is_failure = not is_over or attempt.is_late  # or was it only a client without patience?
        attempt.end(Outcome.DROPPED, Fault.TIMEOUT.value, is_failure=is_failure)
        if part is not None:
            return part
        if is_over:
            raise verdict from None
        raise _TimedOut(attempt.name, verdict) from None


def _role_of(ex: Exchange, plan: Plan, target: Target) -> str:
    """Why an attempt is made that is no hedge."""
    if ex.arrival.role:
        return ex.arrival.role
    if ex.record.degraded == "fallback" or any(target is other for tier in plan.fallback for other in tier):
        return FALLBACK
    return RETRY if ex.record.attempts else FIRST


def _may_race(ex: Exchange, hedging: Hedging) -> bool:
    """Whether it may be sent twice at a time: not what its client sends again anyway, nor what leaves something behind."""
    request = ex.request
    if (request.is_stateful or request.is_stored) and not hedging.config.stateful:
        return False
    return not ex.arrival.headers or not ex.arrival.is_repeat


def _is_for_fallback(failed: StayfastError, *, is_once: bool) -> bool:
    """Whether somebody else may be asked: not for a request at fault itself, nor when a stateful one may have been heard."""
    if isinstance(failed, UpstreamFailed):
        return (failed.is_model_missing or not failed.is_clients_fault) and (not is_once or failed.is_undone)
    return not (isinstance(failed, DeadlineExceeded) and is_once)


class _TimedOut(UpstreamFailed):
    """No content within `first_token_s`, or none for `idle_s`: another attempt may still make it before the deadline."""

    status = 504

    def __init__(self, upstream: str, verdict: DeadlineExceeded) -> None:
        super().__init__(upstream, Fault.TIMEOUT, verdict.message, code=verdict.code, kind=verdict.kind)
