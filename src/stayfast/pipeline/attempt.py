"""One call to one upstream, from its start to its one end. Whoever ends it first decides what it teaches."""

from stayfast.core.clock import Clock
from stayfast.core.events import AttemptDone, Sink
from stayfast.core.types import Outcome
from stayfast.upstreams.base import Stream
from stayfast.upstreams.registry import Member


class Attempt:
    """Owns the stream and the upstream's in-flight count. One task owns it."""

    __slots__ = ("_clock", "_is_over", "_n_attempt", "_route", "_sink", "began_at",
                 "first_at", "is_incremental", "member", "stream")

    def __init__(self, member: Member, route: str, n_attempt: int, *, is_incremental: bool, clock: Clock,
                 sink: Sink) -> None:
        self.member = member
        self.is_incremental = is_incremental
        self.stream: Stream | None = None
        self._route = route
        self._n_attempt = n_attempt
        self._clock = clock
        self._sink = sink
        self._is_over = False
        self.began_at = clock.now()
        self.first_at: float | None = None
        member.enter()

    @property
    def name(self) -> str:
        """The upstream's name."""
        return self.member.upstream.name

    def first_content(self) -> None:
        """A real token came: the upstream works."""
        self.first_at = self._clock.now()
        self.member.succeeded()

    def end(self, outcome: Outcome, fault: str | None = None, *, is_failure: bool = True) -> None:
        """Release the stream and the place, and say what came of it. Only the first call counts.

        A dropped attempt tells against the upstream's health, unless `is_failure` is False: a 429 is no sickness.
        """
        if self._is_over:
            return
        self._is_over = True
        if self.stream is not None:
            self.stream.close()
        self.member.leave()
        now = self._clock.now()
        if outcome is Outcome.DROPPED and is_failure:
            self.member.failed(now)
        ttft_s = self.first_at - self.began_at if self.first_at is not None else None
        self._sink.emit(AttemptDone(self._route, self.member.upstream.name, self.began_at, now, outcome,
                                    ttft_s, fault, self._n_attempt))

    def abandon(self) -> None:
        """Nobody wants the answer any more; teaches nothing."""
        self.end(Outcome.IGNORED)

    def __repr__(self) -> str:
        return f"<Attempt {self._n_attempt} at {self.member.upstream.name}{' over' if self._is_over else ''}>"
