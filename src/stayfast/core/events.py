"""Facts: what happened, as frozen records. Whoever makes one neither knows nor cares who listens (logs, metrics, tests)."""

from typing import Protocol

import msgspec

from stayfast.core.types import Api, Outcome, Stage, Usage


class StageDone(msgspec.Struct, frozen=True, gc=False):
    """A stage ended. Instants are monotonic seconds; `allowance_s` is what it might have used."""

    stage: Stage
    began_at: float
    ended_at: float
    allowance_s: float

    @property
    def spent_s(self) -> float:
        """Seconds used."""
        return self.ended_at - self.began_at


class AttemptDone(msgspec.Struct, frozen=True, gc=False):
    """One call to one upstream ended. `ttft_s` is from the attempt's start to its first content (None: none came)."""

    route: str
    upstream: str
    began_at: float
    ended_at: float
    outcome: Outcome
    ttft_s: float | None = None
    fault: str | None = None
    n_attempt: int = 1


class RequestDone(msgspec.Struct, frozen=True, gc=False):
    """A request's life is over; one a request, whatever its end."""

    request_id: str
    api: Api
    route: str | None  # the route's name in the settings (bounded); None: no route matched
    model: str  # what the client asked for (anything)
    stream: bool
    status: int  # 499: the client left first
    accepted_at: float
    ended_at: float
    wall_at: float
    stages: tuple[StageDone, ...]
    upstream: str | None = None
    n_attempts: int = 0
    ttft_s: float | None = None  # from accept
    n_chunks: int = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None  # a code, never a message that could quote a prompt
    tenant: str | None = None


class RequestRefused(msgspec.Struct, frozen=True, gc=False):
    """The edge answered by itself: not HTTP, not authorised, not decodable, draining. One a request, like RequestDone."""

    request_id: str
    path: str  # a known path, or "other"
    status: int
    code: str
    wall_at: float
    seconds: float
    tenant: str | None = None


class ConnectionOpened(msgspec.Struct, frozen=True, gc=False):
    """A new connection to an upstream: the cost that keep-alive saves. `handshake_s` spans TCP and TLS."""

    upstream: str
    handshake_s: float
    http_version: str
    tls: bool = False
    tls_resumed: bool = False


class ConnectionReused(msgspec.Struct, frozen=True, gc=False):
    """A request went out on a pooled connection."""

    upstream: str


class ProbeFailed(msgspec.Struct, frozen=True, gc=False):
    """An upstream that must prove itself did not answer with a token; told when the reason changes, not each time."""

    upstream: str
    code: str
    message: str  # ours: names the upstream, never a key, a prompt or an upstream's own text


class EngineState(msgspec.Struct, frozen=True, gc=False):
    """The embedded engine changed state: starting, ready, crashed, stopped."""

    state: str
    pid: int | None = None
    detail: str | None = None


Fact = (StageDone | AttemptDone | RequestDone | RequestRefused | ConnectionOpened | ConnectionReused | ProbeFailed
        | EngineState)


class Sink(Protocol):
    """Where facts go. `emit` must be cheap, must not raise and must not await."""

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
        ...


class Fanout:
    """Hands each fact to several sinks, in order."""

    __slots__ = ("_sinks",)

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
        for sink in self._sinks:
            sink.emit(fact)
