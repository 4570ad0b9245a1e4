"""An old answer or the route's own words in place of an error, when time ran out or everybody failed before the client had
anything.
"""

import asyncio
from http import HTTPStatus

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Chunk, Usage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import StartedAnswer, StoredStream
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.wire.local_answers import render_text_answer

ENDINGS = (StayfastError, asyncio.CancelledError)  # how a request can end before there is an answer
NAME = "(template)"  # no upstream's: names in settings may not be confused with it


class Template:
    """Answers where a route has a template, and says what happened where it has none. Task-safe."""

    __slots__ = ("_clock", "_sink")

    def __init__(self, clock: Clock, sink: Sink) -> None:
        self._clock = clock
        self._sink = sink

    def answer(self, ex: Exchange, why: BaseException) -> StartedAnswer:
        """An old answer, or else the template as one, after a failure that is not the client's own. Raises what `why` stands
        for otherwise: of a cancellation, our own time-out or the client's leaving.
        """
        if isinstance(why, asyncio.CancelledError) and ex.ledger.stage is not None:
            why = ex.watch.take_timeout_error(ex.ledger.stage) or why
        if ex.stale is not None and _is_ours(why) and (started := ex.stale()) is not None:
            ex.watch.disarm()
            return started
        text = ex.terms.template
        if not text or not ex.request.api.can_stream or not _is_ours(why):
            raise why
        ex.degraded = "template"
        ex.watch.disarm()
        body = render_text_answer(ex.request, text, answer_id=ex.arrival.request_id, created_at=int(self._clock.wall()))
        stored = StoredStream(NAME, TokenTimings(ex.route or "", NAME, self._sink), Usage(), "stop")
        return StartedAnswer(stored, stored, Chunk(body, 1))


def _is_ours(why: BaseException) -> bool:
    """Whether it is our side that failed the client."""
    if isinstance(why, UpstreamFailed):
        return not why.is_clients_fault
    if isinstance(why, Shed):
        return why.status == HTTPStatus.SERVICE_UNAVAILABLE  # else the client's own quota, or what it asked for
    return isinstance(why, DeadlineExceeded)
