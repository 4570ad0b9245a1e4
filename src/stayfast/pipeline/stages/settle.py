"""The end of a request, however it ended: one event for logs and metrics. It never fails and never awaits."""

import asyncio
from collections.abc import Mapping

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_NAME
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import Renewed, RequestDone, Sink
from stayfast.core.types import LENGTH_REASONS, SETTLE, AnswerSummary, Api, Request
from stayfast.pipeline.attempts.attempt import MAX_WORD
from stayfast.pipeline.exchange import Exchange, steps_timing
from stayfast.pipeline.prompt_versions import PromptVersions, RouteVersions
from stayfast.pipeline.request_sampler import RequestSampler
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.wire.request_body import read_sampling_params

RESPONSES_API = Api.RESPONSES
CLIENT_LEFT = 499  # as nginx logs it
MARKED_BYTES = 256
_ODD = 0x9E3779B1


class Settle:
    """Emits one RequestDone a request, one Renewed a background refresh, and nothing for a judgement."""

    __slots__ = ("_clock", "_owners", "_sampler", "_sink", "_versions")

    def __init__(self, clock: Clock, sink: Sink, owners: ResponseOwners | None = None,
                 versions: PromptVersions | None = None) -> None:
        """versions: None: those of system prompts are not counted."""
        self._clock = clock
        self._owners = owners
        self._sink = sink
        self._sampler = RequestSampler(sink, versions)
        self._versions: Mapping[str | None, RouteVersions] = versions.by_route if versions is not None else {}

    def finish(self, ex: Exchange, why: BaseException | None, summary: AnswerSummary | None = None,
             cadence: TokenTimings | None = None, n_chunks: int = 0) -> None:
        """why: None for a whole answer. A BaseException that is no Exception means that the client left; a CancelledError
        with a StayfastError as its argument, that the gateway ended the request for that.
        """
        if isinstance(why, asyncio.CancelledError) and why.args and isinstance(why.args[0], StayfastError):
            why = why.args[0]
        arrival, request, record, ledger = ex.arrival, ex.request, ex.record, ex.ledger
        ledger.enter(SETTLE)
        ex.timeouts.stop()
        if arrival.role and self._is_background(ex, why):
            return
        status, error = _status_and_error(why) if why is not None else (200, None)
        cached = record.cache
        trace = arrival.trace
        times = ledger.finish()
        if isinstance(why, StayfastError):
            last = record.attempts[-1].done if record.attempts else None
            why.server_timing = ledger.server_timing() + (steps_timing(last.steps) if last is not None else "")
        ttft_s = tpot_s = gap_max_s = usage = finish = None
        if summary is not None and cadence is not None:
            usage, first_at, gap_max_s = summary.usage, cadence.first_at, cadence.gap_max_s
            finish = summary.finish_reason[:MAX_WORD] if summary.finish_reason is not None else None
            ttft_s = first_at - arrival.accepted_at if first_at is not None else None
            tpot_s = cadence.tpot_s(usage.output) if usage is not None else None
            if (self._owners is not None and request.api is RESPONSES_API and arrival.tenant is not None
                    and summary.response_id is not None):
                self._owners.record(summary.response_id, arrival.tenant)
        done = RequestDone(  # by position: names would cost more than all else here
            arrival.request_id, request.api, ex.route, request.model[:MAX_NAME], request.stream, status, arrival.accepted_at,
            times.ended[-1][1], self._clock.wall(), times, record.upstream, len(record.attempts), ttft_s, n_chunks, usage,
            finish, error, arrival.tenant, ex.total_s, ledger.over_stage, record.degraded, tpot_s, gap_max_s, trace,
            ledger.queued_s, tuple([attempt.done for attempt in record.attempts if attempt.done is not None]),
            tuple(record.notes), why.reason if isinstance(why, Shed) else None,
            cached.result if cached is not None else None, cached.saved_usd if cached is not None else None,
            record.cache_key,
            read_sampling_params(request) if trace is not None and trace.is_sampled and trace.span_id else None,
            arrival.role, bool(arrival.headers) and arrival.is_sdk_retry, mark_body(request.body), arrival.key_id,
            name_cut(request, summary) if finish in LENGTH_REASONS else None)
        self._sink.emit(done)
        if done.ended_at >= self._sampler.due_at:
            self._sampler.note_end(ex, done)
        elif why is None and not arrival.role and (versions := self._versions.get(ex.route)) is not None:
            versions.count(request.body, done)

    def _is_background(self, ex: Exchange, why: BaseException | None) -> bool:
        """Whether it is no request of a client: a judgement, whose attempts were reported with their cost, or a refresh,
        which is reported here.
        """
        arrival = ex.arrival
        if arrival.is_refresh:
            result = "refreshed" if why is None else "shed" if isinstance(why, Shed) else "failed"
            self._sink.emit(Renewed(ex.route or "", result, self._clock.now() - arrival.accepted_at))
        return arrival.is_refresh or arrival.is_judgement


def name_cut(request: Request, summary: AnswerSummary | None) -> str | None:
    """Whose output limit ended the answer; upstream: nobody's, as of the model's context. None: the time ended it."""
    if summary is None or summary.is_cut:
        return None
    if summary.cap is not None:
        return summary.cap.by if summary.is_capped else "upstream"
    own = request.max_output_tokens
    return "client" if own is not None and summary.has_reached(own) else "upstream"


def mark_body(body: bytes) -> int:
    """32 bits that are equal for equal bodies and reveal nothing: Python keys the hash of bytes anew in each process. Hashed
    are the length, about MARKED_BYTES bytes spread over the body, and its end: all of a long prompt would take microseconds.
    """
    n = len(body)
    return (hash(body[:: n // MARKED_BYTES + 1]) ^ hash(body[-MARKED_BYTES:]) ^ n * _ODD) & 0xFFFFFFFF


def _status_and_error(why: BaseException) -> tuple[int, str | None]:
    if isinstance(why, StayfastError):
        return why.status, why.code
    if isinstance(why, Exception):
        return 500, type(why).__name__
    return CLIENT_LEFT, "client_left"
