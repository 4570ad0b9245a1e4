"""One call to one upstream, from its start to its one end. Whoever ends it first decides what it teaches."""

from stayfast.core.clock import Clock
from stayfast.core.events import AttemptDone, Sink
from stayfast.core.types import Outcome
from stayfast.pipeline.cadence import Cadence
from stayfast.policy.price import Price
from stayfast.upstreams.base import Call, Stream
from stayfast.upstreams.registry import Member


class Attempt:
    """Owns the stream and the upstream's in-flight count. One task owns it."""

    __slots__ = ("_call", "_clock", "_n_attempt", "_price", "_route", "_sink", "began_at", "cadence", "done",
                 "is_incremental", "member", "stream")

    def __init__(self, member: Member, call: Call, route: str, n_attempt: int, *, is_incremental: bool, clock: Clock,
                 sink: Sink, price: Price | None = None) -> None:
        self.member = member
        self.is_incremental = is_incremental
        self.stream: Stream | None = None
        self.done: AttemptDone | None = None  # None: it runs
        self.cadence = Cadence(route, member.upstream.name, sink)
        self._call = call
        self._route = route
        self._n_attempt = n_attempt
        self._clock = clock
        self._sink = sink
        self._price = price
        self.began_at = clock.now()
        member.enter()

    @property
    def name(self) -> str:
        """The upstream's name."""
        return self.member.upstream.name

    def first_content(self) -> None:
        """A real token came: the upstream works."""
        now = self._clock.now()
        self.cadence.begin(now)
        self.member.succeeded(now - self.began_at)

    def end(self, outcome: Outcome, fault: str | None = None, *, is_failure: bool = True,
            upstream_status: int | None = None) -> None:
        """Release the stream and the place, and say what came of it. Only the first call counts.

        A dropped attempt tells against the upstream's health, unless `is_failure` is False: a 429 is no sickness.
        """
        if self.done is not None:
            return
        stream, upstream, call = self.stream, self.member.upstream, self._call
        if stream is not None:
            stream.close()
        self.member.leave()
        now = self._clock.now()
        if outcome is Outcome.DROPPED and is_failure:
            self.member.failed(now)
        cadence = self.cadence
        cadence.end(now, is_whole=outcome is Outcome.SUCCESS)
        sight = stream.sight if stream is not None else None
        usage = sight.usage if sight is not None else None
        self.done = AttemptDone(
            self._route, upstream.name, self.began_at, now, outcome,
            cadence.first_at - self.began_at if cadence.first_at is not None else None, fault, self._n_attempt,
            call.request_id, call.request.api, upstream.kind, call.model, upstream_status, usage,
            sight.finish_reason if sight is not None else None,
            self._price.cost_usd(usage) if self._price is not None and usage is not None else None,
            tuple(cadence.stalls), call.trace.span_id if call.trace is not None else None)
        self._sink.emit(self.done)

    def abandon(self) -> None:
        """Nobody wants the answer any more; teaches nothing."""
        self.end(Outcome.IGNORED)

    def __repr__(self) -> str:
        return f"<Attempt {self._n_attempt} at {self.member.upstream.name}{' over' if self.done is not None else ''}>"
