"""The end of a request, whatever it was: one fact for logs and metrics. It never fails and never awaits."""

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import RequestDone, Sink
from stayfast.core.types import Sight, Stage
from stayfast.pipeline.exchange import Exchange

CLIENT_LEFT = 499  # nginx's number for it; logged only


class Settle:
    """Emits one RequestDone a request. Task-safe."""

    __slots__ = ("_clock", "_sink")

    def __init__(self, clock: Clock, sink: Sink) -> None:
        self._clock = clock
        self._sink = sink

    def done(self, ex: Exchange, why: BaseException | None, sight: Sight | None = None, first_at: float | None = None,
             n_chunks: int = 0) -> None:
        """`why` is None for a whole answer; anything that is not a StayfastError means that the client left."""
        ex.ledger.enter(Stage.SETTLE)
        ex.watch.stop()
        status, error = 200, None
        if isinstance(why, StayfastError):
            status, error = why.status, why.code
        elif isinstance(why, Exception):
            status, error = 500, type(why).__name__
        elif why is not None:
            status, error = CLIENT_LEFT, "client_left"
        arrival, request = ex.arrival, ex.request
        stages = ex.ledger.finish()
        self._sink.emit(RequestDone(
            request_id=arrival.request_id, api=request.api, route=ex.route, model=request.model, stream=request.stream,
            status=status, accepted_at=arrival.accepted_at, ended_at=stages[-1].ended_at, wall_at=self._clock.wall(),
            stages=stages, upstream=ex.upstream, n_attempts=ex.n_attempts,
            ttft_s=first_at - arrival.accepted_at if first_at is not None else None, n_chunks=n_chunks,
            usage=sight.usage if sight is not None else None,
            finish_reason=sight.finish_reason if sight is not None else None, error=error, tenant=arrival.tenant))
