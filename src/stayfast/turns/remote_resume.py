"""Resuming a turn that runs in another process of the same machine.

The process with the client polls the process with the turn for the events after the last known one. A poll returns at once
if there are events, else after POLL_WAIT_S. While it is polled, the turn has a reader.
When wrong: a step that ends after the last poll is reported nowhere.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.steps import StepDone, TurnSnapshot
from stayfast.upstreams.turn import TurnPiece

POLL_WAIT_S = 0.4
MAX_PIECES = 200  # per poll


class ResumeRequest(msgspec.Struct, frozen=True):
    """The turn to resume, and the last event id of its client. `late`: also the patches after the final event."""

    upstream: str
    tenant: str | None
    request_id: str
    after: int
    late: bool


class RemoteTurnPart(msgspec.Struct, frozen=True):
    """The reply to a poll. `failed`: status, code and message of a failed turn. `steps`: those that ended since they were
    last reported; their instants are of the machine's clock, which all its processes share.
    """

    pieces: list[TurnPiece]
    is_over: bool = False
    failed: tuple[int, str, str] | None = None
    steps: tuple[StepDone, ...] = ()


ResumeRemotely = Callable[[ResumeRequest], Awaitable[RemoteTurnPart | None]]


class _Reading(Protocol):
    async def next(self) -> TurnPiece | None: ...

    def is_ready(self) -> bool: ...

    def steps_so_far(self) -> TurnSnapshot: ...


async def read_turn_part(reading: _Reading) -> RemoteTurnPart:
    """The pieces that are available, or the first one within POLL_WAIT_S."""
    part = await _read_pieces(reading)
    steps = [msgspec.structs.replace(step, parent=-1) for step in reading.steps_so_far().steps if step.outcome != "running"]
    return msgspec.structs.replace(part, steps=tuple(steps))


async def _read_pieces(reading: _Reading) -> RemoteTurnPart:
    pieces: list[TurnPiece] = []
    try:
        async with asyncio.timeout(POLL_WAIT_S):
            while len(pieces) < MAX_PIECES and (not pieces or reading.is_ready()):
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
    """A `TurnRun` of one client over polls. One task reads it."""

    def __init__(self, request: ResumeRequest, first: RemoteTurnPart, resume: ResumeRemotely) -> None:
        self._request = request
        self._resume = resume
        self._pieces: deque[TurnPiece] = deque()
        self._steps: list[StepDone] = []
        self._add_part(first)

    async def next(self) -> TurnPiece | None:
        """Also raises UpstreamFailed if the process with the turn has ended."""
        while not self._pieces:
            if self._last.failed is not None:
                status, code, message = self._last.failed
                failed = UpstreamFailed(self._request.upstream, Fault.RAISED, message, code=code)
                failed.status = status
                raise failed
            if self._last.is_over:
                return None
            part = await self._resume(self._request)
            if part is None:
                raise UpstreamFailed(self._request.upstream, Fault.RESET, "the process that ran this turn has ended")
            self._add_part(part)
        return self._pieces.popleft()

    def _add_part(self, part: RemoteTurnPart) -> None:
        self._last = part
        self._pieces.extend(part.pieces)
        self._steps += part.steps
        if part.pieces:
            self._request = msgspec.structs.replace(self._request, after=part.pieces[-1].id)

    def steps_so_far(self) -> TurnSnapshot:
        return TurnSnapshot(tuple(self._steps), sum(step.cost_usd for step in self._steps if step.cost_usd) or None)

    def close(self) -> None:
        """Nothing to release: polling stops with the reader."""
