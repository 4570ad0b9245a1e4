"""The call of a route with tiers: one tier after the other, each until the instant at which the next one must begin.

An attempt is left before the deadline, in time for the predicted answer of the next tier. The answer of a tier below the
largest may be verified before the client has any of it. If it is not enough, a larger tier is called; if that fails, or does
not answer in time, the answer at hand is returned.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from math import inf
from typing import Final, Protocol

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import Rejected, StayfastError, UpstreamFailed
from stayfast.core.types import Chunk, Outcome, Stage
from stayfast.pipeline.attempts.attempt import ESCALATION, Attempt
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, StartedAnswer, StoredStream
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.call.retry import RetryPolicy, allows_fallback, is_once
from stayfast.pipeline.tiers.ladder import LadderPlan, LadderStep, RouteTier, TierLearner
from stayfast.pipeline.tiers.observed_stream import ObservedStream
from stayfast.pipeline.tiers.tiered_attempt import TieredAttempt
from stayfast.pipeline.tiers.verification import TierVerdict
from stayfast.policy.tiers.choice import TimeLeft

SUCCESS = Outcome.SUCCESS
IN_HAND_S: Final = 0.05  # before the deadline, an answer at hand is returned instead of waiting for a better one
TIER = "tier"  # the mark of an answer by a smaller model than the one that is enough
MakeCall = Callable[..., Awaitable[StartedAnswer]]


class CallFallbacks(Protocol):
    """The fallbacks of a route, in their order."""

    def __call__(self, ex: Exchange, plan: Plan, ends_at: float, weight: float, failed: StayfastError
                 ) -> Awaitable[StartedAnswer]:
        """The first fallback that answers; else raises."""


class LadderCall:
    """The tiers of one request. Owned by the request's task."""

    __slots__ = ("_call_targets", "_clock", "_end_at", "_ends_at", "_ex", "_fall_back", "_ladder", "_plan", "_retrying",
                 "_spare", "_weight")

    def __init__(self, ex: Exchange, plan: Plan, ladder: LadderPlan, ends_at: float, weight: float, *,
                 call_targets: MakeCall, fall_back: CallFallbacks, retrying: RetryPolicy, clock: Clock) -> None:
        """ends_at: of the stage. call_targets, fall_back: of `Caller`."""
        self._ex = ex
        self._plan = plan
        self._ladder = ladder
        self._ends_at = ends_at
        self._weight = weight
        self._call_targets = call_targets
        self._fall_back = fall_back
        self._retrying = retrying
        self._clock = clock
        self._spare = plan.fallback[len(ladder.steps) - 1:]  # the route's own fallbacks
        reserve_s = ex.reserve_s if self._spare and not is_once(ex, plan) else 0.0
        self._end_at = ends_at - reserve_s  # of all tiers; streams must have started by then

    async def run(self) -> StartedAnswer:
        """The first tier that answers; then the route's fallbacks. Raises as `Caller.start` does."""
        ex, steps = self._ex, self._ladder.steps
        failed: StayfastError | None = None
        try:
            for number, step in enumerate(steps):
                if failed is not None:
                    if _is_invalid(failed) and not self._is_larger(step, steps[:number]):
                        continue
                    if not self._may_go_on(step, failed, is_second=number == 1):
                        break
                try:
                    return await self._call_step(step, steps[number + 1] if number + 1 < len(steps) else None)
                except Rejected as rejected:  # the tier's protocol cannot express the request
                    failed = failed or rejected
                except StayfastError as error:
                    failed = error
            assert failed is not None
            if not self._spare:
                raise failed
            plan = replace(self._plan, fallback=self._spare, ladder=None)
            return await self._fall_back(ex, plan, self._ends_at, self._weight, failed)
        finally:
            failed = None  # it refers to this frame, which refers to it
            ex.timeouts.set_bound(self._ends_at, self._clock.now())

    def _may_go_on(self, step: LadderStep, failed: StayfastError, *, is_second: bool) -> bool:
        """Whether the next tier is called after a failure; draws it from the budget. The first one is never refused."""
        ex, plan, now = self._ex, self._plan, self._clock.now()
        if isinstance(failed, Rejected):
            return True
        is_stateful = is_once(ex, plan)
        if not allows_fallback(failed, is_once=is_stateful) and (is_stateful or not _is_invalid(failed)):
            return False
        if self._end_of(step, None) - now < plan.route.retry.min_remaining_s:
            return False
        budget, pool = plan.route.hedging.budget, step.targets[0].member.retry_budget
        if not is_second and not (budget.may_retry(self._weight, now) and pool.has_room(self._weight, now)):
            ex.record.note("the next tier was not tried: the budget of extra attempts is spent")
            return False
        self._retrying.report_retry(ex, plan, failed, step.targets[0], f"went on to tier {step.tier.name}:")
        self._ladder.ladder.count_attempt(step.tier, "failed")
        pool.withdraw(self._weight, now)
        budget.withdraw_retry(self._weight, now)
        return True

    def _is_larger(self, step: LadderStep, tried: Sequence[LadderStep]) -> bool:
        """Whether a tier has a larger model than all that were tried: it may take a longer prompt, an image or a tool."""
        return all(self._ladder.ladder.is_below(other.tier, step.tier) for other in tried)

    async def _call_step(self, step: LadderStep, following: LadderStep | None) -> StartedAnswer:
        started = await self._begin(step, self._end_of(step, following), role=self._plan.role,
                                    is_last=following is None and not self._spare)
        source = started.source
        try:
            started = await self._check(started, _tier_of(started, step))
        except BaseException:  # the client left, or a check failed: nobody else ends this attempt
            source.abandon()
            raise
        if self._ladder.ladder.is_below(_tier_of(started, step), self._ladder.enough):
            self._ex.record.degrade(TIER)
        return self._observe(started, _tier_of(started, step))

    def _observe(self, started: StartedAnswer, served: RouteTier) -> StartedAnswer:
        """The same answer; if the route compares it with another tier's, its content is collected on the way."""
        ladder = self._ladder
        if ladder.ladder.observer is None or not isinstance(started.source, Attempt):
            return started
        on_answer = ladder.ladder.observer.observe(self._ex.request, ladder.facts, served.name, ladder.enough.name)
        if on_answer is None:
            return started
        stream = ObservedStream(started.stream, started.first_chunk, on_answer)
        return StartedAnswer(started.source, stream, started.first_chunk)

    async def _begin(self, step: LadderStep, until: float, *, role: str, is_last: bool) -> StartedAnswer:
        ex, plan = self._ex, self._plan
        hedge_to = tuple(self._hedge_targets(step)) if self._ladder.ladder.declared.config.hedge_up else ()
        ex.timeouts.set_bound(until, self._clock.now())
        started: StartedAnswer = await self._call_targets(
            ex, replace(plan, hedge_to=hedge_to, role=role), step.targets, until, is_last=is_last,
            n_before=len(ex.record.attempts))
        return started

    def _hedge_targets(self, step: LadderStep) -> Iterator[Target]:
        """Faster service tiers of the same skill and larger models, in the order of the ladder; then its own others."""
        ladder = self._ladder.ladder
        for other in self._ladder.steps:
            if ladder.is_above(other.tier, step.tier):
                yield from other.targets
        yield from step.targets

    def _end_of(self, step: LadderStep, following: LadderStep | None) -> float:
        """When this tier is left: for the first token of a stream, or for a whole answer."""
        ex, start_by, end_at = self._ex, self._ladder.start_by, self._end_at - self._ex.grace_s
        if not ex.request.stream:
            end_at = min(end_at, start_by)
        now = self._clock.now()
        if following is None or is_once(ex, self._plan):
            return min(end_at, start_by)
        left = TimeLeft(end_at - now, start_by - now)
        reserve = self._ladder.ladder.reserve(step.tier, following.tier, ex.request, left, now)
        return min(end_at - reserve.end_s, start_by - reserve.first_s if start_by < inf else inf)

    async def _check(self, started: StartedAnswer, tier: RouteTier) -> StartedAnswer:
        """The answer itself where it is enough, else one of a larger tier that is called now, if there is time for it."""
        ladder, ex = self._ladder.ladder, self._ex
        verifier, attempt = ladder.verifier, started.source
        if verifier is None or not isinstance(attempt, Attempt) or started.stream.summary.is_cut:
            return started
        larger = self._larger(tier)
        if not larger or (ex.request.stream and not ladder.declared.config.hold_streams):
            return started
        if not verifier.applies_to(ex.request, tier.name, self._ladder.facts):
            return started
        if ex.request.stream:
            started = await self._hold(started, attempt)
        now = self._clock.now()
        reserve = ladder.reserve(tier, larger[0].tier, ex.request, TimeLeft(self._end_at - now), now)
        verdict = await verifier.verify(ex.request, started.first_chunk, started.stream.summary, tier.name,
                                        Deadline(max(now, self._end_at - reserve.end_s)))
        if verdict.is_enough:
            ex.record.note(f"tier {tier.name}: its answer is enough{_because(verdict)}")
            return started
        return await self._escalate(started, attempt, tier, larger, verdict)

    def _larger(self, tier: RouteTier) -> list[LadderStep]:
        """The tiers with a larger model than this one, the next first."""
        found = [step for step in self._ladder.steps if self._ladder.ladder.is_below(tier, step.tier)]
        return sorted(found, key=lambda step: step.tier.skill)

    async def _escalate(self, small: StartedAnswer, attempt: Attempt, tier: RouteTier, above: list[LadderStep],
                        verdict: TierVerdict) -> StartedAnswer:
        ex, ladder, now = self._ex, self._ladder.ladder, self._clock.now()
        end_at = self._end_at - ex.grace_s - IN_HAND_S
        refusals = [self._find_refusal(step, end_at - now, now) for step in above]
        larger = next((step for step, refused in zip(above, refusals, strict=True) if not refused), None)
        if larger is None:
            ex.record.note(f"tier {tier.name}: its answer is not enough{_because(verdict)}; {above[0].tier.name} was not "
                           f"called: {refusals[0]}")
            ex.record.degrade(TIER)
            return small
        summary, lead = small.stream.summary, small.first_chunk
        attempt.end(SUCCESS)
        at_hand = StoredStream(attempt.name, attempt.timings, summary.usage, summary.finish_reason)
        ex.record.note(f"escalated from tier {tier.name} to {larger.tier.name}{_because(verdict)}")
        ladder.count_attempt(larger.tier, "escalated")
        if ladder.observer is not None:
            ladder.observer.note_failed(ex.request, self._ladder.facts, tier.name)
        try:
            return await self._begin(larger, end_at, role=ESCALATION, is_last=False)
        except StayfastError as failed:
            ex.record.note(f"tier {larger.tier.name} did not answer ({failed.code}): the answer of {tier.name} is returned")
            ex.record.degrade(TIER)
            ex.record.use_upstream(attempt.name)
            return StartedAnswer(at_hand, at_hand, lead)

    def _find_refusal(self, larger: LadderStep, left_s: float, now: float) -> str:
        """Why the larger tier is not called; empty: it is. With an answer at hand, a tier of unknown speed may be tried."""
        ex, plan = self._ex, self._plan
        if is_once(ex, plan):
            return "the request changes state"
        if self._ladder.ladder.pressure_of(larger.tier, ex.request, now, plan.lane):
            return "it cannot be called now"
        found = self._ladder.ladder.predict(larger.tier, ex.request, now)
        if left_s <= 0 or (found is not None and found.end_s > left_s):
            return f"it is predicted to take {found.end_s:.2g} s of {left_s:.2g} s left" if found is not None else "no time"
        return ""  # no budget of extra attempts: without its small tier the route would send each request there

    async def _hold(self, started: StartedAnswer, attempt: Attempt) -> StartedAnswer:
        """The whole stream in one chunk. Raises UpstreamFailed, DeadlineExceeded."""
        ex, stream, parts, n_content = self._ex, started.stream, [started.first_chunk.data], started.first_chunk.n_content
        ex.timeouts.set_bound(self._end_at, self._clock.now())
        try:
            while True:
                ex.timeouts.arm("idle_s", ex.policy.timeouts.idle_s, self._clock.now())
                chunk = await stream.next()
                if chunk is None:
                    return StartedAnswer(attempt, stream, Chunk(b"".join(parts), n_content))
                parts.append(chunk.data)
                n_content += chunk.n_content
                if chunk.n_content:
                    attempt.timings.note_content(self._clock.now())
        except UpstreamFailed as failed:
            attempt.fail(failed)
            raise
        except asyncio.CancelledError:
            late = ex.timeouts.take_timeout_error(Stage.CALL)
            attempt.abandon()
            if late is None:
                raise
            raise late from None
        finally:
            ex.timeouts.disarm()


def _is_invalid(failed: StayfastError) -> bool:
    """Whether a tier refused the request as invalid, which may be a limit of its model only."""
    return isinstance(failed, UpstreamFailed) and failed.is_clients_fault and not failed.is_model_missing


def _tier_of(started: StartedAnswer, step: LadderStep) -> RouteTier:
    """The tier that answers: that of a hedge, if the hedge was quicker."""
    source = started.source
    learner = source.learner if isinstance(source, TieredAttempt) else None
    return learner.tier if isinstance(learner, TierLearner) else step.tier


def _because(verdict: TierVerdict) -> str:
    return f" ({verdict.why})" if verdict.why else ""
