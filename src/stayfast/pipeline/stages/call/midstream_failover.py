"""Answers that stall or break off after the client has started to read: ended at once, or continued by another upstream.

Only on routes with `on_stall`. A guard stands between the relay and the attempt, as source and stream. It costs nothing per
token: a check at the request's timeouts runs about once a second, and interrupts the wait if `policy.resilience.stall` calls
it a stall and something can be done about it.

The stalled attempt stays open until the first token of the rest. Each continuation is an extra attempt. Without budget, time
or a healthy upstream, or if the answer cannot be continued, the guard goes on waiting. If a continuation fails, the answer
ends as at a length limit.

The gaps of all answers also show which upstream has become slower (`ThroughputMonitor`); such an upstream gets fewer of the
next requests.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Fanout, Rescued, Sink, TokenGaps
from stayfast.core.types import AnswerSummary, Chunk, Outcome, Stage, Usage
from stayfast.pipeline.attempts.attempt import RESCUE, Attempt, AttemptTerms, read_to_first_token
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan, Route, StartedAnswer
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.call.caller import Caller
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.admission.price import price_of
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.policy.resilience.stall import StallDetector, TokenFlow
from stayfast.upstreams.base import AnswerStream, Call, Sending
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.wire.continuation import MAX_REPLAY_BYTES, Continuation, NotContinuable, add_usage, encode_client_events
from stayfast.wire.dialect import Json
from stayfast.wire.errors import malformed_answer
from stayfast.wire.output_limit import set_output_limit

SUCCESS, DROPPED, IGNORED = Outcome
MAX_RESCUES = 2  # of one answer
MAX_TRIES = 2  # upstreams tried for each rescue
WHY_NOT = {"tries": "it was rescued before", "busy": "no upstream that can continue it is healthy and has room",
           "deadline": "there is no time left for it", "budget": "the budget of extra attempts is spent",
           "tools": "it calls a tool", "thinking": "it is in its reasoning", "format": "its format is constrained",
           "request": "the request asks for something that cannot be continued", "length": "it is at a length limit",
           "blocks": "it is more than plain text", "over": "its text is complete"}


class FailoverStream:
    """Finds an upstream for the rest of one answer. Owned by the request's task."""

    __slots__ = ("_clock", "_ex", "_n_rescues", "_plan", "_rng", "_sink")

    def __init__(self, ex: Exchange, plan: Plan, *, clock: Clock, rng: Random, sink: Sink) -> None:
        self._ex = ex
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._n_rescues = 0

    def targets(self, mine: UpstreamState, now: float) -> list[Target]:
        """Targets that can continue an answer, are healthy and have room, best first. mine: the stalled one, comes last."""
        plan = self._plan
        every = [*plan.candidates, *(target for tier in plan.fallback for target in tier)]
        model = self._ex.request.model
        able = [target for target in every if target.continues and target.member.limiter_of(plan.lane).has_room
                and target.member.is_healthy(now, target.model or model)]
        return sorted(able, key=lambda target: target.member is mine)

    def usual_ttft_s(self, targets: Sequence[Target]) -> float:
        """The usual time to a first token of this model at the best of the targets; 0: unknown."""
        if not targets:
            return 0.0
        request, baselines = self._ex.request, targets[0].member.baselines
        model, n_tokens = targets[0].model or request.model, len(request.body) // BYTES_A_TOKEN
        return baselines.baseline_for(model, n_tokens, is_whole=False).baseline_s or baselines.all.baseline_s

    def refusal(self, targets: list[Target], n_sent: int, now: float) -> str:
        """Why no continuation may be started now, in one word; empty: it may. n_sent: tokens so far."""
        plan = self._plan
        if self._n_rescues >= MAX_RESCUES:
            return "tries"
        if not targets:
            return "busy"
        least_s = max(self.usual_ttft_s(targets), plan.route.retry.min_remaining_s)
        if self._ex.ledger.ends_at - now < least_s:
            return "deadline"
        return "" if self._has_budget(targets[0], self._weight(n_sent), now) else "budget"

    async def first_words(self, rest: Continuation, mine: UpstreamState) -> tuple[Attempt, AnswerStream, Chunk] | None:
        """An attempt that continues the answer, with its first chunk; None: all failed. Each is an extra attempt. Raises
        DeadlineExceeded of the stage, and CancelledError if the client leaves.
        """
        self._n_rescues += 1
        budget = self._plan.route.hedging.budget
        for target in self.targets(mine, self._clock.now())[:MAX_TRIES]:
            now, weight = self._clock.now(), self._weight(rest.n_sent_tokens)
            if not self._has_budget(target, weight, now):
                break
            budget.withdraw_retry(weight, now)
            target.member.retry_budget.withdraw(weight, now)
            attempt = self._begin(target, rest)
            lead = await self._read(attempt)
            if lead is not None and attempt.stream is not None:
                return attempt, attempt.stream, lead
        return None

    def _weight(self, n_sent: int) -> float:
        return weight_of(len(self._ex.request.body) + n_sent * BYTES_A_TOKEN)

    def _has_budget(self, target: Target, weight: float, now: float) -> bool:
        return self._plan.route.hedging.budget.may_retry(weight, now) and target.member.retry_budget.has_room(weight, now)

    def _begin(self, target: Target, rest: Continuation) -> Attempt:
        ex, model = self._ex, target.model or self._ex.request.model
        call = Call(rest.request, model, ex.arrival.request_id, ex.deadline, ex.policy.timeouts.connect_s,
                    ex.arrival.headers, ex.arrival.new_span(self._rng), is_continuation=bool(rest.seam.prefix),
                    sending=Sending(), route=self._plan.route.name, note=ex.record.notes.append)
        terms = AttemptTerms(self._plan.route.name, True, len(ex.record.attempts) + 1, ex.arrival.role or RESCUE,
                             price_of(target.prices, model), lane=self._plan.lane)
        attempt = Attempt(target.member, call, terms, self._clock, self._sink)
        ex.record.add_attempt(attempt)
        return attempt

    async def _read(self, attempt: Attempt) -> Chunk | None:
        """The first chunk of the rest; None: this upstream failed."""
        ex = self._ex
        ex.timeouts.arm("first_token_s", ex.policy.timeouts.first_token_s, attempt.began_at)
        try:
            attempt.stream = stream = await attempt.member.upstream.open(attempt.call)
            return await read_to_first_token(attempt, stream)
        except asyncio.CancelledError:
            verdict = ex.timeouts.take_timeout_error(Stage.RELAY)
            if verdict is None:
                attempt.abandon()
                raise
            is_over = verdict.limit in OF_THE_STAGE
            attempt.end(DROPPED, Fault.TIMEOUT.value, is_failure=not is_over or attempt.is_late)
            if is_over:
                raise verdict from None
        except UpstreamFailed as failed:
            attempt.fail(failed)
        except StayfastError:  # its protocol cannot express it, or all its connections are in use
            attempt.abandon()
        except BaseException:
            attempt.abandon()
            raise
        finally:
            ex.timeouts.disarm()
        return None

    def __repr__(self) -> str:
        return f"<FailoverStream for {self._ex!r}: {self._n_rescues} rescues>"


CHECK_EVERY_S = 1.0
LEAST_S = 0.01  # between two checks
RECHECK_S = 0.5  # after a stall about which nothing could be done
NOTHING = Chunk(b"")


class Guarded(Caller):
    """A caller that guards running streams, on routes with `on_stall`. Holds no state of a request."""

    __slots__ = ()

    def start(self, ex: Exchange, plan: Plan) -> Coroutine[Any, Any, StartedAnswer]:
        if plan.route.on_stall == "wait" or not ex.request.stream:
            return super().start(ex, plan)
        return self._guarded(ex, plan)

    async def _guarded(self, ex: Exchange, plan: Plan) -> StartedAnswer:
        started = await super().start(ex, plan)
        attempt, summary = started.source, started.stream.summary
        if not isinstance(attempt, Attempt) or summary.is_complete or summary.is_cut:
            return started
        guard = StreamGuard(ex, plan, attempt, started, clock=self.clock, sink=self.sink,
                      failover=FailoverStream(ex, plan, clock=self.clock, rng=self._rng, sink=self.sink))
        return StartedAnswer(guard, guard, started.first_chunk)


class StreamGuard:
    """One running answer, across the upstreams that continue it. Source and stream of the relay; one task reads it."""

    __slots__ = ("_api", "_attempt", "_clock", "_ex", "_failover", "_flow", "_given", "_half", "_has_ended", "_is_hopeless",
                 "_is_over", "_limit_s", "_n_content", "_n_given", "_on_stall", "_pulse", "_refused", "_rest", "_route",
                 "_silent_s", "_sink", "_stream", "_taken", "_waits_since", "summary", "timings")

    is_incremental = True

    def __init__(self, ex: Exchange, plan: Plan, attempt: Attempt, started: StartedAnswer, *, failover: FailoverStream,
                 clock: Clock,
                 sink: Sink) -> None:
        self._ex = ex
        self._api = ex.request.api
        self._route = plan.route.name
        self._on_stall = plan.route.on_stall
        self._failover = failover
        self._clock = clock
        self._sink = sink
        self.summary: AnswerSummary = started.stream.summary  # of the first attempt, continued here
        self.timings = TokenTimings(self._route, attempt.name, Fanout())  # as the client sees it; attempts emit their own
        self.timings.start(attempt.timings.first_at or clock.now())
        self._given = [started.first_chunk.data]  # everything sent to the client
        self._n_given = len(started.first_chunk.data)  # bytes
        self._is_hopeless = self._on_stall != "rescue"  # this answer cannot be continued
        self._half: Continuation | None = None  # what could be continued, as of the last check
        self._rest: Continuation | None = None  # translates the chunks of the attempt that took over
        self._taken = Usage()  # usage of the attempts before
        self._refused = ""
        self._limit_s = 0.0
        self._is_over = False
        self._has_ended = False
        self._attach(attempt, started.stream, started.first_chunk)

    def _attach(self, attempt: Attempt, stream: AnswerStream, lead: Chunk) -> None:
        self._attempt = attempt
        self._stream = stream
        self._flow = attempt.member.track_flow()
        self._pulse = StallDetector()
        self._silent_s = 0.0  # time without content, except for the current wait
        self._waits_since: float | None = None
        self._n_content = max(1, lead.n_content)
        self._check_in(CHECK_EVERY_S)

    @property
    def name(self) -> str:
        return self._attempt.name

    async def next(self) -> Chunk | None:
        """Raises DeadlineExceeded if the time is over before the rest arrives."""
        if self._is_over:
            return None
        began_at = self._waits_since = self._clock.now()
        try:
            chunk = await self._stream.next()
        except asyncio.CancelledError:
            if not self._ex.timeouts.was_interrupted():
                raise
            return await self._stalled(self._silent_s + self._clock.now() - began_at)
        except UpstreamFailed as failed:
            return await self._broken_off(failed)
        finally:
            self._waits_since = None
        if chunk is None:
            return self._ended()
        now = self._clock.now()
        silent_s = self._silent_s + now - began_at
        if chunk.n_content:
            self._silent_s = 0.0
            self._n_content += chunk.n_content
            self._pulse.add_gap(silent_s)
            self._attempt.timings.note_content(now)
        else:
            self._silent_s = silent_s  # a ping says nothing about the model
        return self._translate(chunk)

    def _translate(self, chunk: Chunk) -> Chunk:
        if self._rest is not None:
            try:
                events = self._rest.feed(chunk.data)
            except NotContinuable:
                raise malformed_answer(self.name, "a continuation that does not follow its protocol") from None
            self.summary.n_events += len(events)
            chunk = Chunk(encode_client_events(self._api, events), chunk.n_content)
        if not self._is_hopeless:
            self._given.append(chunk.data)
            self._n_given += len(chunk.data)
            if self._n_given > MAX_REPLAY_BYTES:
                self._give_up("length")
        return chunk

    def _give_up(self, why: str) -> None:
        """The answer cannot be continued: free its text."""
        self._is_hopeless = True
        self._given.clear()
        self._refuse(why)

    def _refuse(self, why: str) -> None:
        if why != self._refused:
            self._refused = why
            self._report(f"refused_{why}")
            self._ex.record.note(f"not rescued from {self.name}: {WHY_NOT[why]}")

    def _ended(self) -> Chunk | None:
        """The upstream's stream ended. A continued answer needs an end of its own."""
        self._is_over = True
        rest, summary = self._rest, self.summary
        if rest is None:
            return None
        summary.usage = add_usage(self._taken, self._stream.summary.usage or self._used())
        summary.finish_reason = self._stream.summary.finish_reason
        summary.is_complete = True
        return self._last(rest.encode_end(summary.usage))

    def _last(self, events: list[Json]) -> Chunk:
        self.summary.n_events += len(events)
        return Chunk(encode_client_events(self._api, events, is_end=True))

    def cut(self) -> Chunk | None:
        rest, summary = self._rest, self.summary
        if rest is None:
            return self._stream.cut()
        if summary.is_complete or summary.is_cut:
            return None
        summary.usage = add_usage(self._taken, self._used())
        summary.finish_reason = "length"
        summary.is_cut = True
        return self._last(rest.encode_early_end(summary.usage))

    def close(self) -> None:
        self._stream.close()

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        if not self._has_ended:
            self._has_ended = self._is_over = True
            now = self._clock.now()
            self._pulse.check(self._flow, now)
            self.timings.end(now, is_whole=outcome is SUCCESS and not self.summary.is_cut)
        taken = self._used() if self._rest is not None and self._stream.summary.usage is None else None
        self._attempt.end(outcome, fault, upstream_status=upstream_status, taken=taken)

    def abandon(self) -> None:
        self.end(IGNORED)

    def _check_in(self, seconds: float) -> None:
        self._ex.timeouts.schedule_hedge_check(self._clock.now() + seconds, self._check)

    def _check(self) -> None:
        """The timer: judge the current wait, if there is one."""
        now, flow = self._clock.now(), self._flow
        if self._is_over:
            return
        self._pulse.check(flow, now)
        if self._waits_since is None:  # the client reads slower than the upstream writes
            self._check_in(CHECK_EVERY_S)
            return
        silent_s = self._silent_s + now - self._waits_since
        targets = self._failover.targets(self._attempt.member, now)
        self._limit_s = self._pulse.limit_s(flow, self._failover.usual_ttft_s(targets), now)
        if silent_s < self._limit_s:
            self._check_in(min(CHECK_EVERY_S, max(LEAST_S, self._limit_s - silent_s)))
            return
        if flow.usual_s:
            flow.record_sag(silent_s / flow.usual_s, now)
        why = "" if self._on_stall == "end" else self._refusal(now)
        if why or not self._ex.timeouts.interrupt():
            self._check_in(RECHECK_S)

    def _refusal(self, now: float) -> str:
        """Why no continuation may be started; empty: it may, and `_half` is what to continue. A new reason is noted."""
        if self._is_hopeless:
            return self._refused or "over"
        failover = self._failover
        why = failover.refusal(failover.targets(self._attempt.member, now), self._n_content, now)
        if why:
            self._refuse(why)
            return why
        try:
            request, cap = self._ex.request, self.summary.cap
            request = request if cap is None else set_output_limit(request, cap)
            self._half = Continuation(request, b"".join(self._given), int(self._clock.wall()))
        except NotContinuable as error:
            self._give_up(str(error))
            return self._refused
        return ""

    def _report(self, result: str) -> None:
        self._sink.emit(Rescued(self._route, self.name, self._clock.now(), result))

    async def _stalled(self, silent_s: float) -> Chunk | None:
        """The check interrupted a stall: continue the answer, or end it."""
        self._ex.timeouts.disarm()
        why = f"no token for {silent_s:.3g} s, a stall from {self._limit_s:.3g} s on"
        if self._half is not None:
            chunk = await self._continue(self._half, why, Fault.TIMEOUT, None)
            if chunk is not None:
                return chunk
        else:
            self._report("ended")
        ending = self.cut()
        if ending is None:  # it cannot be ended here: wait as before
            self._silent_s, self._is_hopeless = silent_s, True
            return NOTHING
        self._is_over = True
        self._ex.record.note(f"ended at {self.name}: {why}")
        self._attempt.end(DROPPED, Fault.TIMEOUT.value, taken=self._used())
        return ending

    async def _broken_off(self, failed: UpstreamFailed) -> Chunk:
        self._ex.timeouts.disarm()
        if self._on_stall != "rescue" or not failed.can_retry or self._refusal(self._clock.now()) or self._half is None:
            raise failed
        why = f"it broke off ({failed.fault.value})"
        chunk = await self._continue(self._half, why, failed.fault, failed.upstream_status)
        if chunk is None:
            raise failed
        return chunk

    async def _continue(self, half: Continuation, why: str, fault: Fault, upstream_status: int | None) -> Chunk | None:
        """The first chunk of the rest, from another upstream; None: all failed."""
        ex, stalled = self._ex, self._attempt
        self._half = None
        found = await self._failover.first_words(half, stalled.member)
        if found is None:
            self._report("failed")
            ex.record.note(f"not rescued from {self.name}: {why}, and no upstream could continue it")
            return None
        attempt, stream, lead = found
        self._report("rescued")
        ex.record.note(f"rescued from {self.name} to {attempt.name} after {self._n_content} tokens: {why}")
        used = self._used()
        stalled.end(DROPPED, fault.value, upstream_status=upstream_status, taken=used)
        self._taken = add_usage(self._taken, used)
        self._rest, self._refused = half, ""
        ex.record.use_upstream(attempt.name)
        self.summary.failure = None
        self._attach(attempt, stream, lead)
        return self._translate(lead)

    def _used(self) -> Usage:
        """The usage of an attempt that was not read to its end: as reported, else estimated."""
        known = self._attempt.usage_so_far(self._stream.summary.usage)
        return msgspec.structs.replace(known, output=max(known.output, self._n_content))

    def __repr__(self) -> str:
        return f"<StreamGuard of {self._attempt!r}: {self._pulse!r}, {self._failover!r}>"


class ThroughputMonitor:
    """Learns the gaps of all answers. A `FactConsumer` of `observe.fact_batch`."""

    __slots__ = ("_clock", "_flows")

    def __init__(self, clock: Clock, flows: Callable[[], Mapping[str, TokenFlow]]) -> None:
        """flows: of the upstreams that have an alternative, by name; a reload may bring others."""
        self._clock = clock
        self._flows = flows

    @property
    def handlers(self) -> Mapping[type[TokenGaps], Callable[[list[TokenGaps]], None]]:
        return {TokenGaps: self._learn}

    def _learn(self, facts: Sequence[TokenGaps]) -> None:
        flows = self._flows()
        for fact in facts:
            if (flow := flows.get(fact.upstream)) is not None:
                flow.check_unwatched(fact.gaps_s, self._clock.now())

    def __repr__(self) -> str:
        return f"<ThroughputMonitor of {', '.join(self._flows()) or 'no upstream'}>"


def flows_of(routes: Iterable[Route]) -> dict[str, TokenFlow]:
    """The flows of all upstreams that share a route with another one; they are tracked from now on."""
    flows: dict[str, TokenFlow] = {}
    for route in routes:
        if len(route.targets) > 1:
            for target in route.targets:
                flows[target.member.upstream.name] = target.member.track_flow()
    return flows
