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
from stayfast.upstreams.turn import Piece

WAITS_S = 0.4
MOST_PIECES = 200  # at a time


class Sought(msgspec.Struct, frozen=True):
    """A turn that somebody comes back to, and what it wants of it."""

    upstream: str
    tenant: str | None
    request_id: str
    after: int
    late: bool


class Heard(msgspec.Struct, frozen=True):
    """What has come of it. `failed`: with which status, code and message it ended. `steps`: those that have ended since
    somebody was told of steps; instants are the machine's, and so the same in all its processes.
    """

    pieces: list[Piece]
    is_over: bool = False
    failed: tuple[int, str, str] | None = None
    steps: tuple[StepDone, ...] = ()


AskOthers = Callable[[Sought], Awaitable[Heard | None]]


class _Reading(Protocol):
    async def next(self) -> Piece | None: ...

    def ready(self) -> bool: ...

    def seen(self) -> TurnSeen: ...


async def heard(reading: _Reading) -> Heard:
    """What there is to be told, or will be in a moment."""
    told = await _pieces(reading)
    steps = [msgspec.structs.replace(step, parent=-1) for step in reading.seen().steps if step.how != "running"]
    return msgspec.structs.replace(told, steps=tuple(steps))


async def _pieces(reading: _Reading) -> Heard:
    pieces: list[Piece] = []
    try:
        async with asyncio.timeout(WAITS_S):
            while len(pieces) < MOST_PIECES and (not pieces or reading.ready()):
                piece = await reading.next()
                if piece is None:
                    return Heard(pieces, is_over=True)
                pieces.append(piece)
    except TimeoutError:
        pass
    except UpstreamFailed as failed:
        return Heard(pieces, True, (failed.status, failed.code, failed.message))
    return Heard(pieces)


class Elsewhere:
    """One client's way through it: a `Turning`. One task reads it."""

    def __init__(self, sought: Sought, first: Heard, ask: AskOthers) -> None:
        self._sought = sought
        self._ask = ask
        self._pieces: deque[Piece] = deque()
        self._steps: list[StepDone] = []
        self._take(first)

    async def next(self) -> Piece | None:
        """Also raises UpstreamFailed where whoever ran it is gone."""
        while not self._pieces:
            if self._last.failed is not None:
                status, code, message = self._last.failed
                failed = UpstreamFailed(self._sought.upstream, Fault.RAISED, message, code=code)
                failed.status = status
                raise failed
            if self._last.is_over:
                return None
            told = await self._ask(self._sought)
            if told is None:
                raise UpstreamFailed(self._sought.upstream, Fault.RESET, "the process that ran this turn has ended")
            self._take(told)
        return self._pieces.popleft()

    def _take(self, told: Heard) -> None:
        self._last = told
        self._pieces.extend(told.pieces)
        self._steps += told.steps
        if told.pieces:
            self._sought = msgspec.structs.replace(self._sought, after=told.pieces[-1].id)

    def seen(self) -> TurnSeen:
        return TurnSeen(tuple(self._steps), sum(step.cost_usd for step in self._steps if step.cost_usd) or None)

    def close(self) -> None:
        """Whoever runs it is asked no more."""
