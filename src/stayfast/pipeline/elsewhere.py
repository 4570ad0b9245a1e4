"""Who may be asked for the rest of an answer, whether that may be done now, and what comes of asking."""

import asyncio
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Chunk, Outcome, Stage
from stayfast.pipeline.attempt import Attempt
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Target
from stayfast.pipeline.lead import until_content
from stayfast.pipeline.watch import OF_THE_STAGE
from stayfast.policy.extra import weight_of
from stayfast.policy.price import price_of
from stayfast.upstreams.base import Call, Stream
from stayfast.upstreams.state.upstream_state import Member
from stayfast.wire.continuation import Continuation

DROPPED = Outcome.DROPPED
MAX_RESCUES = 2  # of one answer
MAX_TRIES = 2  # upstreams asked for the rest, each time
WHY_NOT = {"tries": "it was rescued before", "busy": "nobody who could go on is well and has room",
           "deadline": "there is no time left for it", "budget": "the budget of extra attempts is spent",
           "tools": "a tool is called", "thinking": "it reasons", "format": "its format is promised",
           "request": "it asks for what cannot be continued", "length": "it is too long, or as long as it may be",
           "blocks": "it is more than running text", "over": "it had said its last words"}


class Elsewhere:
    """The rest of one request's answer. Owned by the request's task."""

    __slots__ = ("_clock", "_ex", "_n_rescues", "_plan", "_rng", "_sink")

    def __init__(self, ex: Exchange, plan: Plan, *, clock: Clock, rng: Random, sink: Sink) -> None:
        self._ex = ex
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._n_rescues = 0

    def targets(self, mine: Member, now: float) -> list[Target]:
        """Who can go on with an answer, is well and has room, best first; `mine`, which stalls, is the last of them."""
        plan = self._plan
        every = [*plan.candidates, *(target for tier in plan.fallback for target in tier)]
        model = self._ex.request.model
        able = [target for target in every if target.continues and target.member.limited(self._ex.lane).has_room
                and target.member.is_well(now, target.model or model)]
        return sorted(able, key=lambda target: target.member is mine)

    def refusal(self, targets: list[Target], n_said: int, now: float) -> str:
        """Why the rest may not be asked for now, in one word; empty where it may. `n_said`: tokens so far."""
        plan = self._plan
        if self._n_rescues >= MAX_RESCUES:
            return "tries"
        if not targets:
            return "busy"
        least_s = max(targets[0].member.usual.all.usual_s, plan.route.retry.min_left_s)
        if self._ex.ledger.ends_at - now < least_s:
            return "deadline"
        return "" if self._has_budget(targets[0], self._weight(n_said), now) else "budget"

    async def first_words(self, rest: Continuation, mine: Member) -> tuple[Attempt, Stream, Chunk] | None:
        """Who gives the rest, and what it begins with; None where nobody does. Each call is an extra attempt.

        Raises DeadlineExceeded of the stage, and CancelledError where the client leaves.
        """
        self._n_rescues += 1
        budget = self._plan.route.hedging.budget
        for target in self.targets(mine, self._clock.now())[:MAX_TRIES]:
            now, weight = self._clock.now(), self._weight(rest.n_said)
            if not self._has_budget(target, weight, now):
                break
            budget.take_retry(weight, now)
            target.member.extra.take(weight, now)
            attempt = self._begin(target, rest)
            lead = await self._read(attempt)
            if lead is not None and attempt.stream is not None:
                return attempt, attempt.stream, lead
        return None

    def _weight(self, n_said: int) -> float:
        return weight_of(len(self._ex.request.body) + n_said * BYTES_A_TOKEN)

    def _has_budget(self, target: Target, weight: float, now: float) -> bool:
        return self._plan.route.hedging.budget.may_retry(weight, now) and target.member.extra.has_room(weight, now)

    def _begin(self, target: Target, rest: Continuation) -> Attempt:
        ex, model = self._ex, target.model or self._ex.request.model
        call = Call(rest.request, model, ex.arrival.request_id, ex.deadline, ex.terms.timeouts.connect_s,
                    ex.arrival.headers, ex.arrival.new_span(self._rng), goes_on=bool(rest.seam.prefix))
        attempt = Attempt(target.member, call, self._plan.route.name, len(ex.attempts) + 1, is_incremental=True,
                          clock=self._clock, sink=self._sink, price=price_of(target.prices, model),
                          lane=ex.lane)
        ex.attempts.append(attempt)
        return attempt

    async def _read(self, attempt: Attempt) -> Chunk | None:
        """What the rest begins with; None where this upstream does not give it."""
        ex = self._ex
        ex.watch.arm("first_token_s", ex.terms.timeouts.first_token_s, attempt.began_at)
        try:
            attempt.stream = stream = await attempt.member.upstream.open(attempt.call)
            return await until_content(attempt, stream)
        except asyncio.CancelledError:
            verdict = ex.watch.verdict(Stage.RELAY)
            if verdict is None:
                attempt.abandon()
                raise
            is_over = verdict.limit in OF_THE_STAGE
            attempt.end(DROPPED, Fault.TIMEOUT.value, is_failure=not is_over or attempt.is_late)
            if is_over:
                raise verdict from None
        except UpstreamFailed as failed:
            attempt.fail(failed)
        except StayfastError:  # its protocol cannot say it, or all its connections are in use
            attempt.abandon()
        except BaseException:
            attempt.abandon()
            raise
        finally:
            ex.watch.disarm()
        return None

    def __repr__(self) -> str:
        return f"<Elsewhere for {self._ex!r}: {self._n_rescues} rescues>"
