"""One of those who listen to a call that many share (`pipeline.flight`)."""

from typing import TYPE_CHECKING

from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Fact
from stayfast.core.types import Chunk, Outcome, Sight
from stayfast.pipeline.cadence import Cadence
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Source

if TYPE_CHECKING:
    from stayfast.pipeline.flight import Flight


class _Silent:
    """Nobody hears of the gaps that listeners see: the call itself tells of them, once."""

    __slots__ = ()

    def emit(self, fact: Fact) -> None:
        """Not told."""


_SILENT = _Silent()


class Listener:
    """One request's ear: source and stream to its relay. One task reads it."""

    __slots__ = ("_at", "_flight", "_n_bytes", "cadence", "ex", "name")

    is_incremental = False  # the call itself looks at the gaps of what comes

    def __init__(self, flight: "Flight", ex: Exchange) -> None:
        self.ex = ex
        self.name = ""
        self.cadence: Cadence
        self._flight = flight
        self._at = 0  # chunks read
        self._n_bytes = 0

    def begin(self, source: Source, now: float, *, is_own: bool) -> None:
        """The first of it came. is_own: this request made the call."""
        self.name = source.name
        if self.ex.request.stream:
            first_at: float | None = now
        elif is_own:
            self.cadence = source.cadence
            return
        else:  # of a whole answer the first token is the upstream's
            first_at = source.cadence.first_at
        self.cadence = Cadence("", "", _SILENT)
        self.cadence.begin(now if first_at is None else max(first_at, self.ex.arrival.accepted_at))

    @property
    def sight(self) -> Sight:
        """What has been seen of the answer; by the time that all is read, all of it."""
        return self._flight.sight

    async def next(self) -> Chunk | None:
        """All that came since the last one; None after the end. Raises what the call failed with."""
        flight = self._flight
        while True:
            chunks = flight.read_from(self._at)
            if chunks is None:
                raise UpstreamFailed(self.name, Fault.TIMEOUT, "the answer was read too slowly to be kept for this reader",
                                     code="read_too_slowly")
            if chunks:
                self._at += len(chunks)
                chunk = chunks[0] if len(chunks) == 1 else Chunk(
                    b"".join([chunk.data for chunk in chunks]), sum([chunk.n_content for chunk in chunks]))
                self._n_bytes += len(chunk.data)
                flight.has_read(self._n_bytes)
                return chunk
            if flight.is_over:
                if flight.failure is not None:
                    raise told_again(flight.failure)
                return None
            await flight.wait()

    def cut(self) -> Chunk | None:
        """End it here, where nobody else listens."""
        return self._flight.cut()

    def close(self) -> None:
        """Listen no more."""
        self._flight.leave(self)

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Listen no more; the call tells by itself what came of it."""
        self._flight.leave(self)

    def abandon(self) -> None:
        """Listen no more."""
        self._flight.leave(self)


def told_again(error: StayfastError) -> StayfastError:
    """The same error for another request: each writes into its own where its time went."""
    again = type(error).__new__(type(error), *error.args)
    again.__dict__.update(error.__dict__)
    again.server_timing = None
    return again
