"""One of those who listen to a call that many share (`pipeline.flight`)."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.types import Chunk, Outcome, Sight
from stayfast.pipeline.cadence import SILENT, Cadence
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Source

if TYPE_CHECKING:
    from stayfast.pipeline.flight import Flight

_, DROPPED, IGNORED = Outcome


class Listener:
    """One request's ear: source and stream to its relay. One task reads it."""

    __slots__ = ("_at", "_flight", "_n_bytes", "cadence", "ex", "is_incremental", "name")

    def __init__(self, flight: "Flight", ex: Exchange) -> None:
        self.ex = ex
        self.name = ""
        self.is_incremental = False  # the call itself looks at the gaps of what comes
        self.cadence: Cadence
        self._flight = flight
        self._at = 0  # chunks read
        self._n_bytes = 0

    def begin(self, source: Source, now: float, *, is_own: bool) -> None:
        """The first of it came. is_own: this request made the call."""
        self.name = source.name
        if is_own:
            self.cadence = source.cadence
            self.is_incremental = source.is_incremental
            return
        first_at = now if self.ex.request.stream else source.cadence.first_at  # of a whole answer it is the upstream's
        self.cadence = Cadence("", "", SILENT)
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
            await flight.wait(self.ex.deadline.at)

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


class Leader(Listener):
    """The one who makes the call, as long as nobody else wants it. One task reads it."""

    __slots__ = ()

    def is_at(self, n_chunks: int, n_bytes: int) -> None:
        """So much it was given as it came; from here on it reads what is written down."""
        self._at = n_chunks
        self._n_bytes = n_bytes
        self._flight.has_read(n_bytes)

    def next(self) -> Coroutine[Any, Any, Chunk | None]:
        """The next part. Raises what the call failed with."""
        return self._flight.read(self) if self._flight.is_led else super().next()

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Read no more: of a call of one's own, it has come to its end."""
        if self._flight.is_led:
            self._flight.end(self, outcome, fault, upstream_status)
        else:
            self._flight.leave(self)

    def abandon(self) -> None:
        """Listen no more."""
        self.end(IGNORED)


def given_up(why: BaseException | None) -> StayfastError:
    """What the others are told where it ended in no error of its own."""
    if isinstance(why, Exception):
        return StayfastError("The gateway failed at this request. Its log says why.")
    return StayfastError("The call was given up.")


def drop(source: Source, failed: StayfastError) -> None:
    """Tell the source what ended its answer."""
    if isinstance(failed, UpstreamFailed):
        source.end(DROPPED, failed.fault.value, upstream_status=failed.upstream_status)
    else:
        source.end(DROPPED, Fault.TIMEOUT.value)


def told_again(error: StayfastError) -> StayfastError:
    """The same error for another request: each writes into its own where its time went."""
    again = type(error).__new__(type(error), *error.args)
    again.__dict__.update(error.__dict__)
    again.server_timing = None
    return again
