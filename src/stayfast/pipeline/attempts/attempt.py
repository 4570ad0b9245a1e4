"""One call to one upstream, from its start to its end. Only the first call of `end` counts; it decides what is learned.

Until the client has a part of the answer, an attempt can be exchanged for another.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN, MAX_NAME
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import UNPRICED, AttemptDone, Sink
from stayfast.core.steps import TurnSnapshot
from stayfast.core.types import JOB, AnswerSummary, Api, Chunk, Outcome, Usage
from stayfast.pipeline.routing.selector import RoutingFeedback
from stayfast.pipeline.timing.timeouts import RequestTimeouts
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.admission.price import REPORTED_PRICE, Price
from stayfast.policy.resilience.hedge import FirstTokens
from stayfast.upstreams.base import AnswerStream, Call, PromptMarker
from stayfast.upstreams.state.permit import acquire_permit
from stayfast.upstreams.state.upstream_state import N_REFUSALS_TO_SUSPEND, UpstreamState
from stayfast.wire.prompt import read_session

SUCCESS, DROPPED, IGNORED = Outcome
PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, TOO_MANY = 402, 403, 404, 429
OF_THE_REQUEST_TOO = (PAYMENT_REQUIRED, FORBIDDEN)  # or the request's fault: too many tokens, a moderated prompt
REPEATS = "x-stainless-retry-count"
FIRST, HEDGE, RETRY, FALLBACK, RESCUE = "first", "hedge", "retry", "fallback", "rescue"  # why an attempt is made
COUNTS = "(counts)"  # the model of requests for token counts in baselines: they take no time of the model
ESCALATION = "escalation"  # the answer of a smaller tier was not enough
MAX_WORD = 64  # characters of an upstream's word in events
_NO_ANSWER: Final = AnswerSummary()  # of an attempt whose stream was never opened; nothing changes it


def is_sdk_retry(headers: Sequence[tuple[str, str]]) -> bool:
    """Whether a client's SDK marks this request as a retry, by its counter."""
    for name, value in headers:
        if name == REPEATS:
            return value.strip("0") != "" and value.isdecimal()
    return False


class AttemptTerms(Struct, frozen=True):
    """For what, and why, an attempt is made."""

    route: str
    is_incremental: bool  # its answer arrives in parts
    n_attempt: int = 1
    role: str = FIRST
    price: Price | None = None  # of its upstream's model; None: unknown
    first_tokens: FirstTokens | None = None  # None: the route does not hedge
    aim: RoutingFeedback | None = None  # None: upstreams are not chosen by outcomes
    lane: str = ""


class Attempt:
    """Owns the stream and the place at the upstream; owned by one task."""

    __slots__ = ("_clock", "_guess", "_news", "_place", "_sink", "began_at", "call", "done", "is_incremental", "member",
                 "name", "stream", "terms", "timings")

    def __init__(self, member: UpstreamState, call: Call, terms: AttemptTerms, clock: Clock, sink: Sink) -> None:
        self.member = member
        self.name = member.upstream.name
        self.call = call
        self.terms = terms
        self._clock = clock
        self._sink = sink
        self.is_incremental = is_incremental = terms.is_incremental
        self.stream: AnswerStream | None = None
        self.done: AttemptDone | None = None  # None: it runs
        self.timings = TokenTimings(terms.route, self.name, sink)
        self._news: tuple[float, Usage | None] | None = None  # time of the first content, and usage by then
        self.began_at = now = clock.now()
        if terms.first_tokens is not None:
            terms.first_tokens.start_attempt(self, now)
        n_tokens, n_known, aim = len(call.request.body) // BYTES_A_TOKEN, 0, terms.aim
        if aim is not None and aim.n_prompt:
            n_known = aim.note_sent(member, now)
            n_tokens = max(0, n_tokens - n_known)
        norm = member.baselines.baseline_for(call.model if call.counting is None else COUNTS, n_tokens, not is_incremental)
        predictors = member.predictors
        self._guess = None
        if predictors is not None and is_incremental:
            self._guess = predictors.of(call.model[:MAX_NAME]).start_call(n_tokens, n_known)
        self._place = acquire_permit(member, norm, now, call.model, n_tokens=n_tokens, lane=terms.lane,
                                     is_job=terms.role == JOB, is_streamed=is_incremental)

    def open(self) -> Coroutine[Any, Any, AnswerStream]:
        """Open the stream. Cache markers that the upstream refuses by name are left out, once."""
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
    def price(self) -> Price | None:
        """Of its upstream's model; None: unknown."""
        return self.terms.price

    @property
    def upstream_model(self) -> tuple[str, str]:
        """The upstream's name, and the start of the model's name there."""
        return self.name, self.call.model[:MAX_NAME]

    def note_first_content(self) -> None:
        """The first token arrived: the upstream works. In a stream, learning waits until the token is sent."""
        now = self._clock.now()
        self.timings.start(now)
        stream, call = self.stream, self.call
        if call.marker is not None:
            call.marker.on_first_token()
        if self.terms.aim is not None and stream is not None:
            self.terms.aim.note_first_token(self.name, now - self.began_at, stream.summary, is_whole=not self.is_incremental)
        if call.request.cap is not None and stream is not None:
            stream.summary.cap = call.request.cap
        usage = stream.summary.usage if stream is not None else None
        if call.request.stream:
            self._news = (now, usage)
            asyncio.get_running_loop().call_soon(self._learn_news)
        else:
            self._learn(now, usage)

    def _learn_news(self) -> None:
        """Learn from a stream's first content: in the loop's next turn or at this attempt's end, whichever is first."""
        news, self._news = self._news, None
        if news is not None:
            self._learn(*news)

    def _learn(self, at: float, usage: Usage | None) -> None:
        if self.terms.first_tokens is not None:
            self.terms.first_tokens.record_first_token(self, at)
        if self._guess is not None:
            self._guess.record_first_token(at - self.began_at, self._guess.count_uncached(usage))
        if usage is None or not usage.input_total:
            self._place.record_first_token(at)
        else:
            self._place.record_first_token(at, self.member.baselines.baseline_for(self.call.model, usage.uncached,
                                                                                  not self.is_incremental))

    @property
    def is_late(self) -> bool:
        """Whether it has taken as long as slow attempts do, or that is not known."""
        return self._place.is_late(self._clock.now())

    def end(self, outcome: Outcome, fault: str | None = None, *, is_failure: bool = True,
            upstream_status: int | None = None, retry_after_s: float | None = None, is_lost: bool = False,
            taken: Usage | None = None, detail: str = "") -> None:
        """Release the stream and the place, and emit the outcome. Only the first call counts. A dropped attempt counts
        against the upstream's health, unless `is_failure` is False. A 429 only lowers its limit, and so does a timeout
        caused by our own load. taken: an estimate of its usage.
        """
        if self.done is not None:
            return
        if self._news is not None:
            self._learn_news()
        stream, upstream, call, cadence, terms = self.stream, self.member.upstream, self.call, self.timings, self.terms
        if stream is not None:
            stream.close()
        now, is_success = self._clock.now(), outcome is SUCCESS
        if is_success:
            if self.is_incremental:
                self._record_gap(now)
            self._place.release(outcome, now)
        else:
            self._release_unfinished(outcome, fault, now, is_failure=is_failure, is_lost=is_lost,
                                     is_quota=upstream_status == TOO_MANY, retry_after_s=retry_after_s)
        if self.is_incremental or not is_success:
            cadence.end(now, is_whole=is_success)
        summary = stream.summary if stream is not None else _NO_ANSWER
        usage = taken or summary.usage
        if self._guess is not None or terms.aim is not None:
            self._learn_prefill(usage, is_success=is_success and taken is None)
        if call.marker is not None:
            call.marker.on_end(usage)
        is_estimated = taken is not None or (not is_success and self._is_billed(fault))
        if taken is None:
            usage = self._usage(usage, outcome, is_estimated=is_estimated)
        turn, began_at, first_at = summary.turn() if summary.turn is not None else None, self.began_at, cadence.first_at
        cost_usd, price = self._charge(usage, turn)
        self.done = done = AttemptDone(
            terms.route, upstream.name, began_at, now, outcome, None if first_at is None else first_at - began_at, fault,
            terms.n_attempt, call.request_id, call.request.api, upstream.kind, call.model[:MAX_NAME], upstream_status, usage,
            summary.finish_reason and summary.finish_reason[:MAX_WORD], cost_usd, tuple(cadence.stalls),
            None if call.trace is None else call.trace.span_id, terms.role == HEDGE, is_lost,
            () if turn is None else turn.steps, detail, terms.role, call.request.stream,
            summary.response_id and summary.response_id[:MAX_NAME], summary.model and summary.model[:MAX_NAME],
            is_estimated and turn is None, self._place.n_running, summary.n_content,
            None if first_at is None else cadence.last_at - began_at, price)
        self._sink.emit(done)

    def _release_unfinished(self, outcome: Outcome, fault: str | None, now: float, *, is_failure: bool, is_lost: bool,
                            is_quota: bool, retry_after_s: float | None) -> None:
        """Release the place of an attempt without a whole answer, and record what that means for its upstream."""
        if is_lost:
            self._place.record_slower_than_hedge(now)
        is_load = outcome is DROPPED and fault == Fault.TIMEOUT and self._place.is_own_load(now)
        teaches = is_failure or is_load or is_quota
        is_failure = is_failure and not is_load
        if self.terms.aim is not None and (is_lost or (outcome is DROPPED and is_failure)):
            self.terms.aim.note_end(self.name, now - self.began_at, now, is_lost=is_lost, is_whole=not self.is_incremental)
        self._place.release(outcome if teaches else IGNORED, now, is_endpoint=is_failure, retry_after_s=retry_after_s)
        if self.terms.first_tokens is not None and self.timings.first_at is None:
            if (outcome is IGNORED and fault is None) or fault == Fault.TIMEOUT:
                self.terms.first_tokens.record_cancelled(self, now)
            else:
                self.terms.first_tokens.drop_attempt(self)

    def _learn_prefill(self, usage: Usage | None, *, is_success: bool) -> None:
        """It ended: release its prompt tokens, and learn from what its upstream had to compute."""
        guess, aim = self._guess, self.terms.aim
        if guess is not None:
            n_uncached = guess.count_uncached(usage)
            guess.end_wait(n_uncached)
            if is_success:
                guess.learn_rate(n_uncached)
        if aim is None:
            return
        if is_success:
            aim.note_usage(self.name, usage)
        elif self.timings.first_at is None:
            aim.note_unanswered(self.name)

    def _charge(self, usage: Usage | None, turn: TurnSnapshot | None) -> tuple[float | None, str]:
        """The cost in USD and where it comes from. A turn reports its own."""
        if turn is not None:
            return turn.cost_usd, "" if turn.cost_usd is None else REPORTED_PRICE
        if usage is None:
            return None, ""
        if self.terms.price is not None and self.terms.price.has_tier(usage.tier):
            return self.terms.price.cost_usd(usage), self.terms.price.source
        return None, UNPRICED if usage.input_total or usage.output else ""

    def _record_gap(self, now: float) -> None:
        """The mean time between two tokens of a whole stream."""
        first_at, last_at = self.timings.first_at, self.timings.last_at
        if first_at is not None and last_at > first_at:
            self._place.record_gap((last_at - first_at) / max(1, self.n_content - 1), now)

    def _is_billed(self, fault: str | None) -> bool:
        """Whether an unfinished attempt is probably billed: sent, and abandoned by us or broken off in the middle."""
        sending = self.call.sending
        if sending is None or not sending.has_started:
            return False
        return fault is None or fault == Fault.TIMEOUT or self.n_content > 0

    def _usage(self, reported: Usage | None, outcome: Outcome, *, is_estimated: bool) -> Usage | None:
        """Its usage as reported, else estimated. A reported prompt size improves the estimates of others."""
        if is_estimated:
            return self.usage_so_far(reported)
        if reported is not None and reported.input_total and outcome is SUCCESS:
            call = self.call
            if not call.request.is_stateful:  # else it may continue a conversation that only the provider has
                self.member.baselines.prompt_tokens.learn(self.terms.route, call.model[:MAX_NAME], call.request.body,
                                                          reported.input_total)
        return reported

    def usage_so_far(self, reported: Usage | None) -> Usage:
        """The usage of an attempt that was not read to its end: as far as reported, else estimated."""
        known = reported or Usage(input_total=self.estimate_input())
        return replace(known, output=max(known.output, self.n_content))

    def estimate_input(self) -> int:
        """Its input tokens, by what the upstream's usage has shown."""
        call = self.call
        return self.member.baselines.prompt_tokens.estimate(self.terms.route, call.model[:MAX_NAME], call.request.body)

    @property
    def is_hedge(self) -> bool:
        return self.terms.role == HEDGE

    @property
    def n_content(self) -> int:
        """Events with content so far, also of a whole answer that is assembled from a stream."""
        return self.stream.summary.n_content if self.stream is not None else 0

    def end_partial(self) -> Chunk | None:
        """End it at our timeout, with the part so far as the answer; None if there is no usable part."""
        if self.stream is None or not self.n_content:
            return None
        lead = self.stream.cut()
        if lead is not None:
            self.end(DROPPED, Fault.TIMEOUT.value, is_failure=self.is_late)
        return lead

    def fail(self, failed: UpstreamFailed) -> None:
        """Its upstream failed before the client had any of it."""
        if failed.upstream_status == NOT_FOUND and not failed.is_model_missing:
            request = self.call.request  # it continues a response that another upstream has
            failed.is_model_missing = request.api is Api.RESPONSES and read_session(request.body).previous_response_id != ""
        self.end(IGNORED if failed.is_final else DROPPED, failed.fault.value,
                 is_failure=failed.upstream_status != TOO_MANY and not failed.is_refused,
                 upstream_status=failed.upstream_status, retry_after_s=failed.retry_after_s, detail=failed.detail)
        if failed.is_refused:
            self._refused(failed)
        if failed.fault is Fault.CONNECT and self.member.replica is not None:
            self.member.replica.note_refused(self._clock.now(), "it refuses connections")

    def _refused(self, failed: UpstreamFailed) -> None:
        status, now = failed.upstream_status, self._clock.now()
        if failed.is_model_missing:
            if not self.call.request.is_stateful:  # else the missing thing may be an earlier answer
                self._place.record_refusal(now, f"it does not know the model ({status})", is_key=False)
        elif status in OF_THE_REQUEST_TOO:  # an SDK's retry is the same request, not further evidence
            if not is_sdk_retry(self.call.headers):
                self._place.record_refusal(now, f"its key was refused ({status})", is_key=status != FORBIDDEN,
                                    n_enough=N_REFUSALS_TO_SUSPEND)
        else:
            self._place.record_refusal(now, f"its key was refused ({status})", is_key=True)

    def mark_lost(self) -> None:
        """Another attempt was quicker; only its minimum duration is learned."""
        self.end(IGNORED, is_lost=True)

    def abandon(self) -> None:
        """The answer is not needed any more; nothing is learned."""
        self.end(IGNORED)

    def __repr__(self) -> str:
        return f"<Attempt {self.terms.n_attempt} at {self.name}{' over' if self.done is not None else ''}>"


MAX_HELD_BACK_BYTES = 8 * 1024 * 1024  # the Responses API repeats the instructions twice before any content


async def read_to_first_token(attempt: Attempt, stream: AnswerStream) -> Chunk:
    """Hold back everything before the first content (a role, a ping), so that the attempt can still be exchanged."""
    held_back: list[bytes] = []
    n_bytes = 0
    while (chunk := await stream.next()) is not None:
        if chunk.n_content:
            attempt.note_first_content()
            return Chunk(b"".join((*held_back, chunk.data)), chunk.n_content) if held_back else chunk
        if chunk.data:
            held_back.append(chunk.data)
            n_bytes += len(chunk.data)
            if n_bytes > MAX_HELD_BACK_BYTES:
                raise UpstreamFailed(attempt.name, Fault.MALFORMED, f"upstream {attempt.name} sent no content in the "
                                     f"first {n_bytes} bytes of its answer")
    attempt.note_first_content()  # a whole answer without content (a stop at once) is an answer
    return Chunk(b"".join(held_back), 0)


async def read_whole(attempt: Attempt, stream: AnswerStream, watch: RequestTimeouts, idle_s: float, clock: Clock) -> Chunk:
    """Read the whole answer."""
    has_started, n_progress = False, 0
    while (chunk := await stream.next()) is not None and not chunk.data:
        if not attempt.is_incremental:  # it is timed as a whole
            continue
        has_moved, n_progress = stream.summary.n_progress != n_progress, stream.summary.n_progress
        if chunk.n_content or (has_started and has_moved):
            now = clock.now()
            watch.arm("idle_s", idle_s, now)
            if not has_started:
                has_started = True
                attempt.note_first_content()
            elif chunk.n_content:
                attempt.timings.note_content(now)
    if not has_started:
        attempt.note_first_content()
    return chunk if chunk is not None else Chunk(b"")
