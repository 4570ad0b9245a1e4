"""A turn that runs in another process of the same machine, for a client that comes back to this one.

Whoever has it is asked again and again for what came after the last event that is known; it answers at once where there is
something, else after WAITS_S. While it is asked, somebody reads it.
When wrong: a step that ends after the last question is told of nowhere.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.steps import StepDone, TurnSeen
from stayfast.upstreams.turn import TurnPiece

WAITS_S = 0.4
MOST_PIECES = 200  # at a time


class ResumeRequest(msgspec.Struct, frozen=True):
    """A turn that somebody comes back to, and what it wants of it."""

    upstream: str
    tenant: str | None
    request_id: str
    after: int
    late: bool


class RemoteTurnPart(msgspec.Struct, frozen=True):
    """What has come of it. `failed`: with which status, code and message it ended. `steps`: those that have ended since
    somebody was told of steps; instants are the machine's, and so the same in all its processes.
    """

    pieces: list[TurnPiece]
    is_over: bool = False
    failed: tuple[int, str, str] | None = None
    steps: tuple[StepDone, ...] = ()


ResumeRemotely = Callable[[ResumeRequest], Awaitable[RemoteTurnPart | None]]


class _Reading(Protocol):
    async def next(self) -> TurnPiece | None: ...

    def ready(self) -> bool: ...

    def seen(self) -> TurnSeen: ...


async def read_turn_part(reading: _Reading) -> RemoteTurnPart:
    """What there is to be told, or will be in a moment."""
    pieces = await _read_pieces(reading)
    steps = [msgspec.structs.replace(step, parent=-1) for step in reading.seen().steps if step.how != "running"]
    return msgspec.structs.replace(pieces, steps=tuple(steps))


async def _read_pieces(reading: _Reading) -> RemoteTurnPart:
    pieces: list[TurnPiece] = []
    try:
        async with asyncio.timeout(WAITS_S):
            while len(pieces) < MOST_PIECES and (not pieces or reading.ready()):
                piece = await reading.next()
                if piece is None:
                    return RemoteTurnPart(pieces, is_over=True)
                pieces.append(piece)
    except TimeoutError:
        pass
    except UpstreamFailed as failed:
        return RemoteTurnPart(pieces, True, (failed.status, failed.code, failed.message))
    return RemoteTurnPart(pieces)


class RemoteTurnStream:
    """One client's way through it: a `TurnRun`. One task reads it."""

    def __init__(self, sought: ResumeRequest, first: RemoteTurnPart, ask: ResumeRemotely) -> None:
        self._sought = sought
        self._resume = ask
        self._pieces: deque[TurnPiece] = deque()
        self._steps: list[StepDone] = []
        self._add_part(first)

    async def next(self) -> TurnPiece | None:
        """Also raises UpstreamFailed where whoever ran it is gone."""
        while not self._pieces:
            if self._last.failed is not None:
                status, code, message = self._last.failed
                failed = UpstreamFailed(self._sought.upstream, Fault.RAISED, message, code=code)
                failed.status = status
                raise failed
            if self._last.is_over:
                return None
            event = await self._resume(self._sought)
            if event is None:
                raise UpstreamFailed(self._sought.upstream, Fault.RESET, "the process that ran this turn has ended")
            self._add_part(event)
        return self._pieces.popleft()

    def _add_part(self, event: RemoteTurnPart) -> None:
        self._last = event
        self._pieces.extend(event.pieces)
        self._steps += event.steps
        if event.pieces:
            self._sought = msgspec.structs.replace(self._sought, after=event.pieces[-1].id)

    def seen(self) -> TurnSeen:
        return TurnSeen(tuple(self._steps), sum(step.cost_usd for step in self._steps if step.cost_usd) or None)

    def close(self) -> None:
        """Whoever runs it is asked no more."""
