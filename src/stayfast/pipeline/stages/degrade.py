"""A stale answer or the route's template in place of an error, if the gateway or all upstreams failed before the client had
anything.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Chunk, Usage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Miss, StartedAnswer, StoredStream
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.wire.local_answers import render_text_answer

ENDINGS = (StayfastError, asyncio.CancelledError)  # how a request can end before there is an answer
NAME = "(template)"  # settings cannot name an upstream like this


class Degrade:
    """Substitute answers. Holds no state of a request."""

    __slots__ = ("_clock", "_open_stale", "_sink")

    def __init__(self, open_stale: Callable[[Exchange, Miss], StartedAnswer | None], clock: Clock, sink: Sink) -> None:
        self._open_stale = open_stale
        self._clock = clock
        self._sink = sink

    def answer(self, ex: Exchange, failure: BaseException, miss: Miss | None) -> StartedAnswer:
        """The stale answer, else the template. Raises the failure if there is neither, or the failure is the client's own; a
        cancellation by one of the gateway's timeouts as DeadlineExceeded.
        """
        if isinstance(failure, asyncio.CancelledError) and ex.ledger.stage is not None:
            failure = ex.timeouts.take_timeout_error(ex.ledger.stage) or failure
        if not _is_ours(failure) or ex.arrival.is_refresh or ex.arrival.is_job:
            raise failure
        started = self._open_stale(ex, miss) if miss is not None else None
        text = ex.policy.template
        if started is None:
            if not text or not ex.request.api.can_stream:
                raise failure
            ex.record.degrade("template")
            body = render_text_answer(ex.request, text, answer_id=ex.arrival.request_id, created_at=int(self._clock.wall()))
            stored = StoredStream(NAME, TokenTimings(ex.route or "", NAME, self._sink), Usage(), "stop")
            started = StartedAnswer(stored, stored, Chunk(body, 1))
        ex.timeouts.disarm()
        return started


def _is_ours(failure: BaseException) -> bool:
    """Whether the gateway or its upstreams failed the client."""
    if isinstance(failure, UpstreamFailed):
        return not failure.is_clients_fault
    if isinstance(failure, Shed):
        return failure.status == HTTPStatus.SERVICE_UNAVAILABLE  # other statuses: the client's quota, or only-if-cached
    return isinstance(failure, DeadlineExceeded)
