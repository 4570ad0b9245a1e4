"""One call to one upstream, from its start to its one end. Whoever ends it first decides what it teaches.

What comes of an attempt before its client has anything: until here it can still be swapped.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import AttemptDone, Sink
from stayfast.core.types import Api, Chunk, Outcome, Usage
from stayfast.pipeline.routing.selector import RoutingFeedback
from stayfast.pipeline.timing.timeouts import RequestTimeouts
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.admission.price import Price
from stayfast.policy.resilience.hedge import FirstTokens
from stayfast.upstreams.base import AnswerStream, Call, PromptMarker
from stayfast.upstreams.state.permit import acquire_permit
from stayfast.upstreams.state.upstream_state import N_REFUSED_ENOUGH, UpstreamState
from stayfast.wire.prompt import read_session

SUCCESS, DROPPED, IGNORED = Outcome
PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, TOO_MANY = 402, 403, 404, 429
OF_THE_REQUEST_TOO = (PAYMENT_REQUIRED, FORBIDDEN)  # more tokens than the credit buys, a prompt that is moderated
REPEATS = "x-stainless-retry-count"
FIRST, HEDGE, RETRY, FALLBACK, RESCUE = "first", "hedge", "retry", "fallback", "rescue"  # why an attempt is made
MAX_NAME, MAX_WORD = 128, 64  # characters of what somebody else chose that facts keep


def is_repeat(headers: Sequence[tuple[str, str]]) -> bool:
    """Whether a client's SDK says that it has sent this request before, and counts."""
    for name, value in headers:
        if name == REPEATS:
            return value.strip("0") != "" and value.isdecimal()
    return False


class Attempt:
    """Owns the stream and the place at the upstream. One task owns it."""

    __slots__ = ("_aim", "_clock", "_first_tokens", "_guess", "_n_attempt", "_news", "_place", "_price", "_route",
                 "_sink", "began_at", "cadence", "call", "done", "is_incremental", "member", "role", "stream")

    def __init__(self, member: UpstreamState, call: Call, route: str, n_attempt: int, *, is_incremental: bool, clock: Clock,
                 sink: Sink, price: Price | None = None, first_tokens: FirstTokens | None = None,
                 role: str = FIRST, aim: RoutingFeedback | None = None, lane: str = "") -> None:
        self.member = member
        self.is_incremental = is_incremental
        self.stream: AnswerStream | None = None
        self.done: AttemptDone | None = None  # None: it runs
        self.cadence = TokenTimings(route, member.upstream.name, sink)
        self.call = call
        self._route = route
        self._n_attempt = n_attempt
        self._clock = clock
        self._sink = sink
        self._price = price
        self._first_tokens = first_tokens  # None: nobody wants to know
        self.role = role
        self._news: tuple[float, Usage | None] | None = None  # when the first content came and what was known of its usage
        self.began_at = clock.now()
        if first_tokens is not None:
            first_tokens.began(self, self.began_at)
        self._aim = aim  # None: nobody chose between upstreams by what became of calls
        n_bytes = len(call.request.body)
        if aim is not None and aim.blocks:
            n_bytes -= aim.sent(member.upstream.name, self.began_at)
        n_tokens = n_bytes // BYTES_A_TOKEN
        norm = member.usual.norm(call.model, n_tokens, not is_incremental)
        predictor = member.predictor
        self._guess = predictor.began(n_tokens) if predictor is not None and is_incremental else None
        self._place = acquire_permit(member, norm, self.began_at, call.model, n_tokens=n_tokens, lane=lane)

    def open(self) -> Coroutine[Any, Any, AnswerStream]:
        """What was added for a provider's prompt cache and is refused by name is left out, once."""
        upstream, call = self.member.upstream, self.call
        return upstream.open(call) if call.marker is None else self._open_marked(call.marker)

    async def _open_marked(self, marker: PromptMarker) -> AnswerStream:
        try:
            return await self.member.upstream.open(self.call)
        except UpstreamFailed as failed:
            if not marker.is_refused(failed):
                raise
        return await self.member.upstream.open(self.call)

    @property
    def name(self) -> str:
        return self.member.upstream.name

    def first_content(self) -> None:
        """A real token came: the upstream works. What a stream's teaches waits until it is on its way to the client."""
        now = self._clock.now()
        self.cadence.begin(now)
        stream, call = self.stream, self.call
        if call.marker is not None:
            call.marker.first_token()
        if self._aim is not None and stream is not None:
            self._aim.answered(self.name, now - self.began_at, stream.sight, is_whole=not self.is_incremental)
        self._news = (now, stream.sight.usage if stream is not None else None)
        if call.request.stream:
            asyncio.get_running_loop().call_soon(self._learn)
        else:
            self._learn()

    def _learn(self) -> None:
        """Tell what the first content taught; the first to come of the loop's next turn and this attempt's end."""
        if self._news is None:
            return
        (at, usage), self._news = self._news, None
        if self._first_tokens is not None:
            self._first_tokens.took(self, at)
        if self._guess is not None:
            self._guess.answered(at - self.began_at, usage.uncached if usage is not None else None)
        if usage is None or not usage.input_total:
            self._place.answered(at)
        else:
            self._place.answered(at, self.member.usual.norm(self.call.model, usage.uncached, not self.is_incremental))

    @property
    def is_late(self) -> bool:
        """Whether it has taken as long as slow ones do, or nobody knows how long that is."""
        return self._place.is_late(self._clock.now())

    def end(self, outcome: Outcome, fault: str | None = None, *, is_failure: bool = True,
            upstream_status: int | None = None, retry_after_s: float | None = None, is_lost: bool = False,
            taken: Usage | None = None, detail: str = "") -> None:
        """Release the stream and the place, and say what came of it. Only the first call counts. A dropped attempt tells
        against the upstream's health, unless `is_failure` is False: a 429 is no sickness, but says that there is no room;
        whatever else is no failure says nothing. A time-out in a queue of our own making is as a 429. `taken`: an estimate
        of what it used.
        """
        if self.done is not None:
            return
        self._learn()
        stream, upstream, call = self.stream, self.member.upstream, self.call
        if stream is not None:
            stream.close()
        now = self._clock.now()
        if is_lost:
            self._place.outlasted(now)
        is_load = outcome is DROPPED and fault == Fault.TIMEOUT and self._place.is_own_load(now)
        teaches = is_failure or is_load or upstream_status == TOO_MANY
        is_failure = is_failure and not is_load
        if self._aim is not None and (is_lost or (outcome is DROPPED and is_failure)):
            self._aim.ended(upstream.name, now - self.began_at, is_lost=is_lost, is_whole=not self.is_incremental)
        self._place.leave(outcome if teaches else IGNORED, now, is_endpoint=is_failure, retry_after_s=retry_after_s)
        cadence = self.cadence
        cadence.end(now, is_whole=outcome is SUCCESS)
        if self._first_tokens is not None and cadence.first_at is None:
            if (outcome is IGNORED and fault is None) or fault == Fault.TIMEOUT:
                self._first_tokens.cut_off(self, now)
            else:
                self._first_tokens.failed(self)
        sight = stream.sight if stream is not None else None
        usage = taken or (sight.usage if sight is not None else None)
        if self._guess is not None:
            self._guess.ended(usage.uncached if usage is not None else None)
        if call.marker is not None:
            call.marker.ended(usage)
        is_estimated = taken is not None or (outcome is not SUCCESS and self._is_billed(fault))
        if taken is None:
            usage = self._usage(usage, outcome, is_estimated=is_estimated)
        turn = sight.turn() if sight is not None and sight.turn is not None else None
        self.done = AttemptDone(
            self._route, upstream.name, self.began_at, now, outcome,
            cadence.first_at - self.began_at if cadence.first_at is not None else None, fault, self._n_attempt,
            call.request_id, call.request.api, upstream.kind, call.model[:MAX_NAME], upstream_status, usage,
            sight.finish_reason[:MAX_WORD] if sight is not None and sight.finish_reason is not None else None,
            turn.cost_usd if turn is not None else
            self._price.cost_usd(usage) if self._price is not None and usage is not None else None,
            tuple(cadence.stalls), call.trace.span_id if call.trace is not None else None,
            self.is_hedge, is_lost, turn.steps if turn is not None else (), detail, self.role,
            call.request.stream,
            sight.response_id[:MAX_NAME] if sight is not None and sight.response_id is not None else None,
            sight.model[:MAX_NAME] if sight is not None and sight.model is not None else None,
            is_estimated and turn is None)
        self._sink.emit(self.done)

    def _is_billed(self, fault: str | None) -> bool:
        """Whether an attempt that did not end well was heard: sent, and given up by us or broken off in the middle."""
        sending = self.call.sending
        if sending is None or not sending.has_started:
            return False
        return fault is None or fault == Fault.TIMEOUT or self.n_content > 0

    def _usage(self, reported: Usage | None, outcome: Outcome, *, is_estimated: bool) -> Usage | None:
        """What it has used, as far as is known; what was counted of a prompt teaches how others are estimated."""
        if is_estimated:
            return self.usage_so_far(reported)
        if reported is not None and reported.input_total and outcome is SUCCESS:
            call = self.call
            self.member.usual.prompt_tokens.learn(call.model, len(call.request.body), reported.input_total)
        return reported

    def usage_so_far(self, reported: Usage | None) -> Usage:
        """What an attempt has used that was not read to its end: as far as reported, else estimated."""
        call = self.call
        known = reported or Usage(input_total=self.member.usual.prompt_tokens.estimate(call.model, len(call.request.body)))
        return replace(known, output=max(known.output, self.n_content))

    @property
    def is_hedge(self) -> bool:
        return self.role == HEDGE

    @property
    def n_content(self) -> int:
        """Content-bearing events that have come, also of a whole answer that is put together."""
        return self.stream.sight.n_content if self.stream is not None else 0

    def cut(self) -> Chunk | None:
        """End it by our time-out, with what has come as the answer; None where nothing of it can be given."""
        if self.stream is None or not self.n_content:
            return None
        lead = self.stream.cut()
        if lead is not None:
            self.end(DROPPED, Fault.TIMEOUT.value, is_failure=self.is_late)
        return lead

    def fail(self, failed: UpstreamFailed) -> None:
        """Its upstream failed before the client had anything of it."""
        if failed.upstream_status == NOT_FOUND and not failed.is_model_missing:
            request = self.call.request  # to go on from an earlier response, where that is not
            failed.is_model_missing = request.api is Api.RESPONSES and read_session(request.body).previous != ""
        self.end(IGNORED if failed.is_final else DROPPED, failed.fault.value,
                 is_failure=failed.upstream_status != TOO_MANY and not failed.is_refused,
                 upstream_status=failed.upstream_status, retry_after_s=failed.retry_after_s, detail=failed.detail)
        if failed.is_refused:
            self._refused(failed)

    def _refused(self, failed: UpstreamFailed) -> None:
        status, now = failed.upstream_status, self._clock.now()
        if failed.is_model_missing:
            if not self.call.request.is_stateful:  # else it may be an earlier answer that is not there
                self._place.refused(now, f"it does not know the model ({status})", is_key=False)
        elif status in OF_THE_REQUEST_TOO:  # what an SDK sends again is the same request, and no second witness
            if not is_repeat(self.call.headers):
                self._place.refused(now, f"its key was refused ({status})", is_key=status != FORBIDDEN,
                                    n_enough=N_REFUSED_ENOUGH)
        else:
            self._place.refused(now, f"its key was refused ({status})", is_key=True)

    def lose(self) -> None:
        """Another attempt was quicker; teaches nothing but that it took at least so long."""
        self.end(IGNORED, is_lost=True)

    def abandon(self) -> None:
        """Nobody wants the answer any more; teaches nothing."""
        self.end(IGNORED)

    def __repr__(self) -> str:
        return f"<Attempt {self._n_attempt} at {self.member.upstream.name}{' over' if self.done is not None else ''}>"


MAX_HELD_BACK_BYTES = 8 * 1024 * 1024  # responses repeats the instructions twice before any content; nobody says more


async def read_to_first_token(attempt: Attempt, stream: AnswerStream) -> Chunk:
    """Hold back what comes before the first content (a role, a ping), so that the attempt can still be swapped."""
    held_back: list[bytes] = []
    n_bytes = 0
    while (chunk := await stream.next()) is not None:
        if chunk.n_content:
            attempt.first_content()
            return Chunk(b"".join((*held_back, chunk.data)), chunk.n_content) if held_back else chunk
        if chunk.data:
            held_back.append(chunk.data)
            n_bytes += len(chunk.data)
            if n_bytes > MAX_HELD_BACK_BYTES:
                raise UpstreamFailed(attempt.name, Fault.MALFORMED, f"upstream {attempt.name} sent no content in the "
                                     f"first {n_bytes} bytes of its answer")
    attempt.first_content()  # a whole answer without content (a stop at once) is an answer
    return Chunk(b"".join(held_back), 0)


async def read_whole(attempt: Attempt, stream: AnswerStream, watch: RequestTimeouts, idle_s: float, clock: Clock) -> Chunk:
    """The whole answer: as long as the client has nothing of it, the attempt can still be swapped."""
    has_started = False
    while (chunk := await stream.next()) is not None and not chunk.data:
        if attempt.is_incremental and (chunk.n_content or has_started):  # else one that is put together: timed as a whole
            now = clock.now()
            watch.arm("idle_s", idle_s, now)
            if not has_started:
                has_started = True
                attempt.first_content()
            elif chunk.n_content:
                attempt.cadence.content(now)
    if not has_started:
        attempt.first_content()
    return chunk if chunk is not None else Chunk(b"")
