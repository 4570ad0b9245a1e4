"""Attempts of one request in parallel: the first one in the request's own task, each further one in a Task of its own.

The first attempt with a content token wins; for a whole (not streamed) answer, the first with the complete answer. A hedge
that wins interrupts the request's task as a timeout does. The losers are closed at once, in the same iteration of the event
loop. If an attempt fails while another one runs, a retry at an untried target replaces it, because the running one may hang.
For a request that is answered in time, all this costs one timer.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError, UpstreamFailed
from stayfast.core.events import Hedged, Sink, describe_budget
from stayfast.core.types import Stage
from stayfast.pipeline.attempts.attempt import Attempt, read_to_first_token, read_whole
from stayfast.pipeline.attempts.hedge_plans import UpstreamModel
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, StartedAnswer
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.policy.resilience.hedge import HedgePlan
from stayfast.policy.resilience.retry_budget import weight_of

REPLAN_S = 1.0  # until the next check, if by present knowledge no hedge would help
RECHECK_S = 0.1  # until the next check, if a hedge would help but may not be sent
LONG = 3.0  # times the usual latency; the record of a slower answer notes why it was not hedged
NO_HELP = "no help"
IsShedding = Callable[[float], bool]  # takes an instant: whether the gateway has more requests than places
WHY_NOT: Mapping[str, str] = {"busy": "it is failing, or full", "deadline": "there is no time left for it",
                              "slow": "it is slow now", "budget": "the hedge budget is used up",
                              "shedding": "requests wait for places, or are rejected"}


def longest_part(attempts: Iterable[Attempt]) -> StartedAnswer | None:
    """End the attempt that has received the longest part of a whole answer, and return that part; None: no attempt has any.
    Called at the deadline.
    """
    for attempt in sorted(attempts, key=lambda attempt: attempt.n_content, reverse=True):
        lead = attempt.end_partial()
        if lead is not None and attempt.stream is not None:
            return StartedAnswer(attempt, attempt.stream, lead)
    return None


class AttemptMaker(Protocol):
    """What hedged calls of all requests share: `Caller`."""

    clock: Clock
    sink: Sink
    tasks: BackgroundTasks
    is_shedding: IsShedding | None  # None: the gateway rejects no request for overload

    def begin(self, ex: Exchange, plan: Plan, ends_at: float, target: Target, *, is_hedge: bool = False) -> Attempt:
        """An attempt of which nothing is sent yet; the caller must end it."""

    def begin_retry(self, ex: Exchange, plan: Plan, ends_at: float, failed: UpstreamFailed, others: Sequence[Target], *,
                    of: Attempt, n_made: int) -> Attempt | None:
        """An attempt in place of one that failed while others run. None: no target is left."""


class HedgedCall(Struct, eq=False):
    """The first attempt of a request, with its hedges and retries. Owned by the request's task, which must call `end`."""

    _maker: AttemptMaker
    _ex: Exchange
    _plan: Plan
    _ends_at: float
    _running: Attempt  # the newest attempt
    _others: Sequence[Target]  # targets, best first, including that of the first attempt
    _n_made: int  # attempts without the hedges
    _concurrent: list[tuple[Attempt, asyncio.Task[None]]] = []  # hedges and retries
    _n_hedges: int = 0
    _n_running: int = 0
    _refused: str = ""
    _winner: StartedAnswer | None = None
    _over: asyncio.Future[None] | None = None  # resolved when all hedges and retries have failed
    _is_over: bool = False
    _late: Attempt | None = None  # the last attempt reported as late

    def replace(self, attempt: Attempt, failed: UpstreamFailed) -> None:
        """An attempt failed while another one runs: begin a retry in its place, if an untried target is left."""
        if self._is_over or self._winner is not None or self._ex.timeouts.has_cancelled:
            return
        another = self._maker.begin_retry(self._ex, self._plan, self._ends_at, failed, self._others, of=attempt,
                                          n_made=self._n_made)
        if another is not None:
            self._n_made += 1
            self._send(another)

    def take_winner(self) -> StartedAnswer | None:
        """The answer of the hedge that interrupted the task; None: something else did. Call it on CancelledError."""
        return self._winner if self._ex.timeouts.was_interrupted() else None

    def running(self) -> list[Attempt]:
        """The hedges and retries that are running."""
        return [attempt for attempt, _ in self._concurrent if attempt.done is None]

    async def wait_for_others(self, attempt: Attempt, failed: UpstreamFailed, *, is_last: bool) -> StartedAnswer | None:
        """After the first attempt has failed, the answer of a hedge or retry; None if none runs, or all fail. is_last: no
        fallback follows, so that a part of a whole answer may be returned at the deadline. Raises DeadlineExceeded,
        CancelledError.
        """
        if self._winner is not None:
            return self.take_winner()
        if not self._n_running:
            return None
        self.replace(attempt, failed)
        policy, request, timeouts = self._ex.policy, self._ex.request, self._ex.timeouts
        self._over = asyncio.get_running_loop().create_future()
        timeouts.arm("first_token_s", policy.timeouts.first_token_s, self._maker.clock.now())
        try:
            await self._over
        except asyncio.CancelledError:
            started = self.take_winner()
            if started is not None:
                return started
            late = timeouts.take_timeout_error(Stage.CALL)
            if late is None:
                raise
            if late.limit in OF_THE_STAGE:
                ends_partial = is_last and policy.ends_partial and not request.stream
                part = longest_part(self.running()) if ends_partial else None
                if part is None:
                    raise late from None
                return part
        finally:
            timeouts.disarm()
        return None

    def end(self, answer: StartedAnswer | None) -> None:
        """Close every attempt that is not the answer."""
        self._is_over = True
        self._ex.timeouts.cancel_hedge_check()
        if not self._concurrent:
            return
        for attempt, task in self._concurrent:
            if answer is None or answer.source is not attempt:
                attempt.mark_lost() if answer is not None else attempt.abandon()
            elif not answer.stream.summary.is_cut:
                continue  # its task has ended
            task.cancel()

    def schedule(self) -> None:
        """Plan the next hedge, and check then whether to send it."""
        running, others = self._running, self._others
        for second in others:
            if second.member is not running.member:
                break
        else:
            second = others[0]
        after_s = self._plan_hedge(second, running.began_at).after_s
        self._ex.timeouts.schedule_hedge_check(running.began_at + (after_s if after_s < inf else REPLAN_S), self._check)

    def _plan_hedge(self, target: Target, now: float) -> HedgePlan:
        request = self._ex.request
        return self._plan.route.hedging.plan_hedge(self._running.upstream_model, self._upstream_model(target),
                                                   len(request.body), now, is_whole=not request.stream)

    def _check(self) -> None:
        """Send a hedge, or check again later. Called by the timer."""
        ex, hedging, now = self._ex, self._plan.route.hedging, self._maker.clock.now()
        target = self._choose_target()
        running, name = self._running, target.member.upstream.name
        budget, weight = hedging.budget, weight_of(len(ex.request.body))
        plan = self._plan_hedge(target, now)
        if plan.after_s == inf:
            if not self._refused and not now - running.began_at < LONG * plan.usual_s < inf:
                self._refused = NO_HELP
                ex.record.note(f"not hedged to {name}: no help is expected, as {plan.why_never}")
            self._ex.timeouts.schedule_hedge_check(now + REPLAN_S, self._check)
            return
        due_at = running.began_at + plan.after_s
        if now < due_at:
            self._ex.timeouts.schedule_hedge_check(due_at, self._check)
            return
        if self._late is not running:
            self._late = running
            hedging.note_late(running.upstream_model, now, is_whole=not ex.request.stream)
        refused = self._find_refusal(target, plan.usual_s, now)
        if refused:
            if self._refused in ("", NO_HELP):
                self._refused = refused
                if refused == "budget":
                    budget.record_blocked_hedge(weight, now)
                hedge_event = self._emit_event(plan, name, now, refused)
                at = f" ({describe_budget(hedge_event.spent, hedge_event.budget)})" if refused == "budget" else ""
                ex.record.note(f"not hedged to {name} at once: {WHY_NOT[refused]}{at}")
            self._ex.timeouts.schedule_hedge_check(now + RECHECK_S, self._check)
            return
        ex.record.note(f"hedged to {name}: {self._emit_event(plan, name, now, '').why}")
        if hedging.config.mode != "race":  # the hedges of a race are configured, so they are not charged to the budget
            budget.withdraw_hedge(weight, now)
            target.member.retry_budget.withdraw(weight, now)
        self._n_hedges += 1
        self._send(self._maker.begin(ex, self._plan, self._ends_at, target, is_hedge=True))
        if self._n_hedges < hedging.max_extra:
            self.schedule()

    def _emit_event(self, plan: HedgePlan, to: str, now: float, refused: str) -> Hedged:
        hedging = self._plan.route.hedging
        fact = Hedged(self._ex.route or "", self._running.name, now, refused, to, plan.after_s, plan.quantile, plan.n,
                      hedging.budget.hedged_share(now), hedging.config.max_share)
        self._maker.sink.emit(fact)
        return fact

    def _find_refusal(self, target: Target, usual_s: float, now: float) -> str:
        """The reason (a key of WHY_NOT) why no hedge may be sent now; empty: one may."""
        member, hedging, is_shedding = target.member, self._plan.route.hedging, self._maker.is_shedding
        if not member.limiter_of(self._plan.lane).has_room or member.is_failing(now, target.model or self._ex.request.model):
            return "busy"
        if self._ex.deadline.at - self._ex.grace_s - now < usual_s:
            return "deadline"
        if is_shedding is not None and is_shedding(now):
            return "shedding"
        if hedging.config.mode == "race":
            return ""
        if hedging.is_slow(self._upstream_model(target), now, is_whole=not self._ex.request.stream):
            return "slow"
        n_more, weight = hedging.max_extra - self._n_hedges - 1, weight_of(len(self._ex.request.body))
        has_budget = hedging.budget.may_hedge(weight, now, n_more) and member.retry_budget.has_room(weight, now)
        return "" if has_budget else "budget"

    def _choose_target(self) -> Target:
        """The target of the next hedge. Targets with room that do not fail come first, then those that are not slow now,
        then untried ones. A breaker that is open for slowness counts least: its samples may be a minute old.
        """
        if len(self._others) == 1:
            return self._others[0]
        now, hedging, request = self._maker.clock.now(), self._plan.route.hedging, self._ex.request
        already_called = {self._running.member, *(attempt.member for attempt, _ in self._concurrent)}

        def rank(target: Target) -> tuple[bool, bool, bool, bool]:
            member, model = target.member, target.model or request.model
            is_slow = hedging.is_slow(self._upstream_model(target), now, is_whole=not request.stream)
            return (not member.limiter_of(self._plan.lane).has_room or member.is_failing(now, model), is_slow,
                    member in already_called,
                    not member.is_healthy(now, model))

        return min(self._others, key=rank)

    def _upstream_model(self, target: Target) -> UpstreamModel:
        return target.upstream_model(self._ex.request.model)

    def _send(self, attempt: Attempt) -> None:
        self._running = attempt
        self._n_running += 1
        self._concurrent.append((attempt, self._maker.tasks.spawn(self._run(attempt))))

    async def _run(self, attempt: Attempt) -> None:
        """The Task of a hedge or retry."""
        ex = self._ex
        try:
            attempt.stream = stream = await attempt.open()
            if attempt.done is not None:  # the request ended in this iteration of the loop
                stream.close()
                return
            if ex.request.stream:
                lead = await read_to_first_token(attempt, stream)
            else:
                lead = await read_whole(attempt, stream, self._ex.timeouts, ex.policy.timeouts.idle_s, self._maker.clock)
        except UpstreamFailed as failed:
            attempt.fail(failed)
            self.replace(attempt, failed)
        except StayfastError:
            attempt.abandon()
        except BaseException:
            attempt.abandon()
            raise
        else:
            if not self._is_over and self._winner is None and self._ex.timeouts.interrupt():
                self._winner = StartedAnswer(attempt, stream, lead)
            else:
                attempt.mark_lost()
        finally:
            self._n_running -= 1
            if not self._n_running and self._over is not None and not self._over.done():
                self._over.set_result(None)

    def __repr__(self) -> str:
        return f"<HedgedCall of {self._running!r}: {self._n_running} others, {'over' if self._is_over else 'running'}>"
