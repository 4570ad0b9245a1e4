"""Attempts of one request in parallel: the first one in the request's own task, each further one in a Task of its own.

The first attempt with a content token wins; for a whole (not streamed) answer, the first with the complete answer. A hedge
that wins interrupts the request's task as a timeout does. The losers are closed at once, in the same iteration of the event
loop. If an attempt fails while another one runs, a retry at an untried target replaces it, because the running one may hang.
For a request that is answered in time, all this costs one timer.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

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
from stayfast.policy.resilience.hedge import LEAST_AFTER_S, HedgePlan
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


class HedgedCall:
    """The first attempt of a request, with its hedges and retries. Owned by the request's task, which must call `end`."""

    __slots__ = ("_begin", "_begin_retry", "_clock", "_concurrent", "_ex", "_hedging", "_is_over", "_is_shedding",
                 "_is_whole", "_lane", "_late", "_n_bytes", "_n_hedges", "_n_made", "_n_running", "_others", "_over",
                 "_refused", "_running", "_sink", "_tasks", "_winner")

    def __init__(self, ex: Exchange, plan: Plan, first: Attempt, others: Sequence[Target], *, n_made: int,
                 begin: Callable[..., Attempt], begin_retry: Callable[..., Attempt | None], tasks: BackgroundTasks,
                 clock: Clock, sink: Sink, is_shedding: IsShedding | None = None) -> None:
        """begin, begin_retry: the methods of `Caller`, bound to this request and plan."""
        self._ex = ex
        self._n_made = n_made + 1  # attempts without the hedges
        self._begin = begin
        self._begin_retry = begin_retry
        self._running = first  # the newest attempt
        self._others = plan.hedge_to or others  # targets, best first, including that of the first attempt
        self._hedging = plan.route.hedging
        self._lane = plan.lane
        self._tasks = tasks
        self._clock = clock
        self._sink = sink
        self._is_shedding = is_shedding
        self._concurrent: list[tuple[Attempt, asyncio.Task[None]]] = []  # hedges and retries
        self._n_hedges = self._n_running = 0
        self._refused = ""
        self._winner: StartedAnswer | None = None
        self._over: asyncio.Future[None] | None = None  # resolved when all hedges and retries have failed
        self._is_over = False
        self._late: Attempt | None = None  # the last attempt reported as late
        self._n_bytes = len(ex.request.body)
        self._is_whole = not ex.request.stream
        if self._hedging.config.mode == "race":
            self._schedule(first.began_at)
        else:  # no hedge is due earlier, and most fast requests have ended by then
            ex.timeouts.schedule_hedge_check(first.began_at + LEAST_AFTER_S, lambda: self._schedule(self._running.began_at))

    @property
    def has_hedges(self) -> bool:
        """Whether a hedge runs, or has won."""
        return self._n_running > 0 or self._winner is not None

    def replace(self, attempt: Attempt, failed: UpstreamFailed) -> None:
        """An attempt failed while another one runs: begin a retry in its place, if an untried target is left."""
        if self._is_over or self._winner is not None or self._ex.timeouts.has_cancelled:
            return
        another = self._begin_retry(failed, self._others, of=attempt, n_made=self._n_made)
        if another is not None:
            self._n_made += 1
            self._send(another)

    def take_winner(self) -> StartedAnswer | None:
        """The answer of the hedge that interrupted the task; None: something else did. Call it on CancelledError."""
        return self._winner if self._ex.timeouts.was_interrupted() else None

    def running(self) -> list[Attempt]:
        """The hedges and retries that are running."""
        return [attempt for attempt, _ in self._concurrent if attempt.done is None]

    async def wait_for_others(self, first_token_s: float, *, ends_partial: bool = False) -> StartedAnswer | None:
        """Wait for the hedges and retries after the first attempt has failed; None if all fail. ends_partial: at the
        deadline, return the longest part of an answer. Raises DeadlineExceeded, CancelledError.
        """
        if self._winner is not None:
            return self.take_winner()
        timeouts = self._ex.timeouts
        self._over = asyncio.get_running_loop().create_future()
        timeouts.arm("first_token_s", first_token_s, self._clock.now())
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
                part = longest_part(self.running()) if ends_partial and self._is_whole else None
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

    def _schedule(self, since: float) -> None:
        running, others = self._running, self._others
        for second in others:
            if second.member is not running.member:
                break
        else:
            second = others[0]
        plan = self._hedging.plan_hedge(running.upstream_model, self._upstream_model(second), self._n_bytes, since,
                                        is_whole=self._is_whole)
        self._ex.timeouts.schedule_hedge_check(since + (plan.after_s if plan.after_s < inf else REPLAN_S), self._check)

    def _check(self) -> None:
        """Send a hedge, or check again later. Called by the timer."""
        ex, hedging, now = self._ex, self._hedging, self._clock.now()
        target = self._choose_target()
        running, name = self._running, target.member.upstream.name
        plan = hedging.plan_hedge(running.upstream_model, self._upstream_model(target), self._n_bytes, now,
                                  is_whole=self._is_whole)
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
            hedging.note_late(running.upstream_model, now, is_whole=self._is_whole)
        refused = self._find_refusal(target, plan.usual_s, now)
        if refused:
            if self._refused in ("", NO_HELP):
                self._refused = refused
                if refused == "budget":
                    hedging.budget.record_blocked_hedge(weight_of(self._n_bytes), now)
                hedge_event = self._emit_event(plan, name, now, refused)
                at = f" ({describe_budget(hedge_event.spent, hedge_event.budget)})" if refused == "budget" else ""
                ex.record.note(f"not hedged to {name} at once: {WHY_NOT[refused]}{at}")
            self._ex.timeouts.schedule_hedge_check(now + RECHECK_S, self._check)
            return
        budget, weight = hedging.budget, weight_of(self._n_bytes)
        ex.record.note(f"hedged to {name}: {self._emit_event(plan, name, now, '').why}")
        if hedging.config.mode != "race":  # the hedges of a race are configured, so they are not charged to the budget
            budget.withdraw_hedge(weight, now)
            target.member.retry_budget.withdraw(weight, now)
        self._n_hedges += 1
        self._send(self._begin(target, is_hedge=True))
        if self._n_hedges < hedging.max_extra:
            self._schedule(now)

    def _emit_event(self, plan: HedgePlan, to: str, now: float, refused: str) -> Hedged:
        hedging = self._hedging
        fact = Hedged(self._ex.route or "", self._running.name, now, refused, to, plan.after_s, plan.quantile, plan.n,
                      hedging.budget.hedged_share(now), hedging.config.max_share)
        self._sink.emit(fact)
        return fact

    def _find_refusal(self, target: Target, usual_s: float, now: float) -> str:
        """The reason (a key of WHY_NOT) why no hedge may be sent now; empty: one may."""
        member, hedging = target.member, self._hedging
        if not member.limiter_of(self._lane).has_room or member.is_failing(now, target.model or self._ex.request.model):
            return "busy"
        if self._ex.deadline.at - self._ex.grace_s - now < usual_s:
            return "deadline"
        if self._is_shedding is not None and self._is_shedding(now):
            return "shedding"
        if hedging.config.mode == "race":
            return ""
        if hedging.is_slow(self._upstream_model(target), now, is_whole=self._is_whole):
            return "slow"
        n_more, weight = hedging.max_extra - self._n_hedges - 1, weight_of(self._n_bytes)
        has_budget = hedging.budget.may_hedge(weight, now, n_more) and member.retry_budget.has_room(weight, now)
        return "" if has_budget else "budget"

    def _choose_target(self) -> Target:
        """The target of the next hedge. Targets with room that do not fail come first, then those that are not slow now,
        then untried ones. A breaker that is open for slowness counts least: its samples may be a minute old.
        """
        if len(self._others) == 1:
            return self._others[0]
        now, hedging = self._clock.now(), self._hedging
        already_called = {self._running.member, *(attempt.member for attempt, _ in self._concurrent)}

        def rank(target: Target) -> tuple[bool, bool, bool, bool]:
            member, model = target.member, target.model or self._ex.request.model
            is_slow = hedging.is_slow(self._upstream_model(target), now, is_whole=self._is_whole)
            return (not member.limiter_of(self._lane).has_room or member.is_failing(now, model), is_slow,
                    member in already_called,
                    not member.is_healthy(now, model))

        return min(self._others, key=rank)

    def _upstream_model(self, target: Target) -> UpstreamModel:
        return target.upstream_model(self._ex.request.model)

    def _send(self, attempt: Attempt) -> None:
        self._running = attempt
        self._n_running += 1
        self._concurrent.append((attempt, self._tasks.spawn(self._run(attempt))))

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
                lead = await read_whole(attempt, stream, self._ex.timeouts, ex.policy.timeouts.idle_s, self._clock)
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
