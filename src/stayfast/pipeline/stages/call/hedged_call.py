"""Attempts of one request side by side: the first one in the request's own task, each further one in a Task of its own.

The first valid content token wins, or of a whole answer the first whole one. A second attempt that wins interrupts the
request's task, as a time-out does; whoever loses is closed at once, in the same turn of the loop. One that fails while
another runs is replaced by a retry with somebody who was not asked: who still runs may hang. Nothing of this costs a request
that is answered in time more than an alarm at its timer.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError, UpstreamFailed
from stayfast.core.events import Hedged, Sink, stands
from stayfast.core.types import Stage
from stayfast.pipeline.attempts.attempt import Attempt, read_to_first_token, read_whole
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, StartedAnswer
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.tasks import TaskGroupRegistry
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.policy.resilience.hedge import LEAST_AFTER_S, HedgePlan
from stayfast.policy.resilience.retry_budget import weight_of

LOOK_AGAIN_S = 1.0  # where no second attempt helps as far as is known: it may be known by then
ASK_AGAIN_S = 0.1  # where it helps and may not be sent: there may be room by then
LONG = 3.0  # times what is usual: an answer that takes longer has a note of why it was not hedged
NO_HELP = "no help"
IsShedding = Callable[[float], bool]  # whether the gateway has more requests than places at an instant
WHY_NOT: Mapping[str, str] = {"busy": "it is failing, or full", "deadline": "there is no time left for it",
                              "slow": "it is slow as a whole", "budget": "the budget of hedges is spent",
                              "shedding": "requests are queued or rejected"}


def longest_part(attempts: Iterable[Attempt]) -> StartedAnswer | None:
    """What has come of the whole answer of which most has come, as the answer: when time is up. None: nothing can be given.
    That attempt is ended.
    """
    for attempt in sorted(attempts, key=lambda attempt: attempt.n_content, reverse=True):
        lead = attempt.cut()
        if lead is not None and attempt.stream is not None:
            return StartedAnswer(attempt, attempt.stream, lead)
    return None


class HedgedCall:
    """One first attempt and what runs beside it. Owned by the request's task; `end` must be called, and awaits nothing."""

    __slots__ = ("_begin", "_clock", "_concurrent", "_ex", "_hedging", "_instead", "_is_over", "_is_shedding",
                 "_is_whole", "_lane", "_late", "_n_bytes", "_n_hedges", "_n_made", "_n_running", "_others",
                 "_over", "_refused", "_running", "_sink", "_tasks", "_winner")

    def __init__(self, ex: Exchange, plan: Plan, first: Attempt, others: Sequence[Target], *, n_made: int,
                 begin: Callable[..., Attempt], instead: Callable[..., Attempt | None], tasks: TaskGroupRegistry,
                 clock: Clock,
                 sink: Sink, is_shedding: IsShedding | None = None) -> None:
        """begin, instead: `Caller`'s, of this request and this plan."""
        self._ex = ex
        self._n_made = n_made + 1  # attempts that are no hedges, the first one of this race included
        self._begin = begin
        self._instead = instead
        self._running = first  # the one that is waited for the least time
        self._others = others  # best first; the one of the first attempt among them
        self._hedging = plan.route.hedging
        self._lane = plan.lane
        self._tasks = tasks
        self._clock = clock
        self._sink = sink
        self._is_shedding = is_shedding
        self._concurrent: list[tuple[Attempt, asyncio.Task[None]]] = []  # hedges, and retries in place of who failed
        self._n_hedges = self._n_running = 0
        self._refused = ""
        self._winner: StartedAnswer | None = None
        self._over: asyncio.Future[None] | None = None  # what the request waits for when only second attempts run
        self._is_over = False
        self._late: Attempt | None = None  # the last one that was found to be late
        self._n_bytes = len(ex.request.body)
        self._is_whole = not ex.request.stream
        if self._hedging.config.mode == "race":
            self._ring(first.began_at)
        else:  # none is due before that, and most that are quick are over by then
            ex.timeouts.schedule_hedge_check(first.began_at + LEAST_AFTER_S, lambda: self._ring(self._running.began_at))

    @property
    def has_hedges(self) -> bool:
        """Whether a second attempt runs, or has won."""
        return self._n_running > 0 or self._winner is not None

    def replace(self, attempt: Attempt, failed: UpstreamFailed) -> None:
        """One that ran has failed, another still runs: begin a retry in its place, if somebody is left to be asked."""
        if self._is_over or self._winner is not None or self._ex.timeouts.has_cancelled:
            return
        another = self._instead(failed, self._others, of=attempt, n_made=self._n_made)
        if another is not None:
            self._n_made += 1
            self._send(another)

    def won(self) -> StartedAnswer | None:
        """Called on CancelledError: the second attempt's answer, where that is what the cancellation stands for."""
        return self._winner if self._ex.timeouts.was_interrupted() else None

    def running(self) -> list[Attempt]:
        """Those beside the first one that are not over."""
        return [attempt for attempt, _ in self._concurrent if attempt.done is None]

    async def others(self, first_token_s: float, *, ends_partial: bool = False) -> StartedAnswer | None:
        """Wait for the attempts beside a failed first one; None when all fail. `ends_partial`: where their time is up, what
        has come of one is the answer. Raises DeadlineExceeded, CancelledError.
        """
        if self._winner is not None:
            return self.won()
        watch = self._ex.timeouts
        self._over = asyncio.get_running_loop().create_future()
        watch.arm("first_token_s", first_token_s, self._clock.now())
        try:
            await self._over
        except asyncio.CancelledError:
            started = self.won()
            if started is not None:
                return started
            verdict = watch.take_timeout_error(Stage.CALL)
            if verdict is None:
                raise
            if verdict.limit in OF_THE_STAGE:
                part = longest_part(self.running()) if ends_partial and self._is_whole else None
                if part is None:
                    raise verdict from None
                return part
        finally:
            watch.disarm()
        return None

    def end(self, answer: StartedAnswer | None) -> None:
        """The race is over: close whatever runs and is not the answer."""
        self._is_over = True
        self._ex.timeouts.ring_no_more()
        if not self._concurrent:
            return
        for attempt, task in self._concurrent:
            if answer is None or answer.source is not attempt:
                attempt.lose() if answer is not None else attempt.abandon()
            elif not answer.stream.sight.is_cut:
                continue  # its task is over
            task.cancel()

    def _ring(self, since: float) -> None:
        running, others = self._running, self._others
        for second in others:
            if second.member is not running.member:
                break
        else:
            second = others[0]
        plan = self._hedging.plan(running.name, second.member.upstream.name, self._n_bytes, since, is_whole=self._is_whole)
        self._ex.timeouts.schedule_hedge_check(since + (plan.after_s if plan.after_s < inf else LOOK_AGAIN_S), self._alarm)

    def _alarm(self) -> None:
        """It is time to look: send a second attempt, or ask again later."""
        ex, hedging, now = self._ex, self._hedging, self._clock.now()
        target = self._target()
        running, name = self._running, target.member.upstream.name
        plan = hedging.plan(running.name, name, self._n_bytes, now, is_whole=self._is_whole)
        if plan.after_s == inf:
            if not self._refused and not now - running.began_at < LONG * plan.usual_s < inf:
                self._refused = NO_HELP
                ex.record.note(f"not hedged to {name}: no help is expected, as {plan.why_never}")
            self._ex.timeouts.schedule_hedge_check(now + LOOK_AGAIN_S, self._alarm)
            return
        due_at = running.began_at + plan.after_s
        if now < due_at:
            self._ex.timeouts.schedule_hedge_check(due_at, self._alarm)
            return
        if self._late is not running:
            self._late = running
            hedging.late(running.name, now, is_whole=self._is_whole)
        refused = self._refusal(target, plan.usual_s, now)
        if refused:
            if self._refused in ("", NO_HELP):
                self._refused = refused
                if refused == "budget":
                    hedging.budget.miss_hedge(weight_of(self._n_bytes), now)
                hedge_event = self._hedge_event(plan, name, now, refused)
                at = f" ({stands(hedge_event.spent, hedge_event.budget)})" if refused == "budget" else ""
                ex.record.note(f"not hedged to {name} at once: {WHY_NOT[refused]}{at}")
            self._ex.timeouts.schedule_hedge_check(now + ASK_AGAIN_S, self._alarm)
            return
        budget, weight = hedging.budget, weight_of(self._n_bytes)
        ex.record.note(f"hedged to {name}: {self._hedge_event(plan, name, now, '').why}")
        if hedging.config.mode != "race":  # which is what the route is set to: nothing beyond it
            budget.take_hedge(weight, now)
            target.member.retry_budget.take(weight, now)
        self._n_hedges += 1
        self._send(self._begin(target, is_hedge=True))
        if self._n_hedges < hedging.max_extra:
            self._ring(now)

    def _hedge_event(self, plan: HedgePlan, to: str, now: float, refused: str) -> Hedged:
        hedging = self._hedging
        fact = Hedged(self._ex.route or "", self._running.name, now, refused, to, plan.after_s, plan.quantile, plan.n,
                      hedging.budget.hedged_share(now), hedging.config.most)
        self._sink.emit(fact)
        return fact

    def _refusal(self, target: Target, usual_s: float, now: float) -> str:
        """Why no second attempt may be sent now; empty where it may."""
        member, hedging = target.member, self._hedging
        if not member.limited(self._lane).has_room or member.is_failing(now, target.model or self._ex.request.model):
            return "busy"
        if self._ex.deadline.at - self._ex.grace_s - now < usual_s:
            return "deadline"
        if self._is_shedding is not None and self._is_shedding(now):
            return "shedding"
        if hedging.config.mode == "race":
            return ""
        if hedging.lately(member.upstream.name, is_whole=self._is_whole).is_slow(now):
            return "slow"
        n_more, weight = hedging.max_extra - self._n_hedges - 1, weight_of(self._n_bytes)
        has_budget = hedging.budget.may_hedge(weight, now, n_more) and member.retry_budget.has_room(weight, now)
        return "" if has_budget else "budget"

    def _target(self) -> Target:
        """Whom to ask next: of those who are not slow just now, somebody who has not been asked before one who has. A
        breaker that is open for slowness counts for less: what it goes by may be a minute old.
        """
        if len(self._others) == 1:
            return self._others[0]
        now, hedging = self._clock.now(), self._hedging
        already_called = {self._running.member, *(attempt.member for attempt, _ in self._concurrent)}

        def rank(target: Target) -> tuple[bool, bool, bool, bool]:
            member, model = target.member, target.model or self._ex.request.model
            is_slow = hedging.lately(member.upstream.name, is_whole=self._is_whole).is_slow(now)
            return (not member.limited(self._lane).has_room or member.is_failing(now, model), is_slow,
                    member in already_called,
                    not member.is_well(now, model))

        return min(self._others, key=rank)

    def _send(self, attempt: Attempt) -> None:
        self._running = attempt
        self._n_running += 1
        self._concurrent.append((attempt, self._tasks.spawn(self._run(attempt))))

    async def _run(self, attempt: Attempt) -> None:
        """The Task of an attempt beside the first one."""
        ex = self._ex
        try:
            attempt.stream = stream = await attempt.open()
            if attempt.done is not None:  # whoever listened left in this very turn of the loop
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
                attempt.lose()
        finally:
            self._n_running -= 1
            if not self._n_running and self._over is not None and not self._over.done():
                self._over.set_result(None)

    def __repr__(self) -> str:
        return f"<HedgedCall of {self._running!r}: {self._n_running} beside it, {'over' if self._is_over else 'running'}>"
