"""The route's own words in place of an error, when time ran out or everybody failed before the client had anything."""

import asyncio
from http import HTTPStatus

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Chunk, Outcome, Sight, Usage
from stayfast.pipeline.cadence import Cadence
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Started
from stayfast.wire.transcode import recite

ENDINGS = (StayfastError, asyncio.CancelledError)  # how a request can end before there is an answer
NAME = "(template)"  # no upstream's: names in settings may not be confused with it


class Template:
    """Answers where a route has a template, and says what happened where it has none. Task-safe."""

    __slots__ = ("_clock", "_sink")

    def __init__(self, clock: Clock, sink: Sink) -> None:
        self._clock = clock
        self._sink = sink

    def answer(self, ex: Exchange, why: BaseException) -> Started:
        """The template as an answer, after a failure that is not the client's own.

        Raises what `why` stands for otherwise: of a cancellation, our own time-out or the client's leaving.
        """
        if isinstance(why, asyncio.CancelledError) and ex.ledger.stage is not None:
            why = ex.watch.verdict(ex.ledger.stage) or why
        text = ex.terms.template
        if not text or not ex.request.api.can_stream or not _is_ours(why):
            raise why
        ex.degraded = "template"
        ex.watch.disarm()
        body = recite(ex.request, text, answer_id=ex.arrival.request_id, created_at=int(self._clock.wall()))
        return Started(_Nobody(Cadence(ex.route or "", NAME, self._sink)), _Recited(), Chunk(body, 1))


def _is_ours(why: BaseException) -> bool:
    """Whether it is our side that failed the client."""
    if isinstance(why, UpstreamFailed):
        return not why.is_clients_fault
    if isinstance(why, Shed):
        return why.status != HTTPStatus.TOO_MANY_REQUESTS  # the client's own quota
    return isinstance(why, DeadlineExceeded)


class _Nobody:
    """No upstream answers. No token came, so its cadence has no first one."""

    __slots__ = ("cadence",)

    name = NAME
    is_incremental = False

    def __init__(self, cadence: Cadence) -> None:
        self.cadence = cadence

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Holds nothing."""

    def abandon(self) -> None:
        """Holds nothing."""


class _Recited:
    """Nothing comes after the lead."""

    __slots__ = ("sight",)

    def __init__(self) -> None:
        self.sight = Sight()
        self.sight.is_complete = True
        self.sight.n_content = 1
        self.sight.finish_reason = "stop"
        self.sight.usage = Usage()

    async def next(self) -> Chunk | None:
        """The lead was all."""
        return None

    def cut(self) -> Chunk | None:
        """It is whole."""
        return None

    def close(self) -> None:
        """Holds nothing."""
