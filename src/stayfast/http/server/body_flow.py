"""Back-pressure and time-outs of one streamed body, between the socket and the request's handler."""

import asyncio
import math
from typing import Any

from stayfast.core.clock import Clock
from stayfast.http.event_loop import LazyTimer
from stayfast.http.server.body_parts import BodyParts
from stayfast.http.server.parser import RequestParser
from stayfast.http.server.response import CONTINUE


class BodyFlow:
    """Pauses the transport while the handler has too much of the body unread. Lives while the handler runs.

    The time-outs of the body exclude pauses, and the time in which the client waits for 100 Continue.
    """

    __slots__ = ("_clock", "_parser", "_parts", "_paused_at", "_timer", "_transport", "_was_open")

    def __init__(self, parts: BodyParts, parser: RequestParser[Any], transport: asyncio.Transport, timer: LazyTimer,
                 clock: Clock) -> None:
        """The handler is about to start; a part of the body may have arrived."""
        self._parts = parts
        self._parser = parser
        self._transport = transport
        self._timer = timer
        self._clock = clock
        self._paused_at: float | None = None
        self._was_open = parts.is_open  # after the last read of the socket
        parts.flow = self
        self._pause_if_full()
        timer.set_no_later_than(self.check(clock.now()))

    def takes_read(self) -> bool:
        """Called after each read of the socket: whether it began within the body."""
        was_open, self._was_open = self._was_open, self._parts.is_open
        if was_open:
            self._pause_if_full()
        return was_open

    def invite(self) -> None:
        """The handler starts to read, and has written nothing: send 100 Continue if the client waits for it."""
        parser, now = self._parser, self._clock.now()
        if parser.expects_continue:
            parser.expects_continue = False
            parser.restart_timeout(now)
            self._timer.set_no_later_than(parser.due_at())
            self._transport.write(CONTINUE)

    def resume(self) -> None:
        """The handler has taken all that had arrived."""
        paused_at, self._paused_at = self._paused_at, None
        if paused_at is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._parts.is_open and not self._parts.is_raw:
            self._parser.extend_timeout(self._clock.now() - paused_at)
            self._timer.set_no_later_than(self._parser.due_at())

    def check(self, now: float) -> float:
        """Reject the body if it arrives too slowly. Returns the next instant to check."""
        parser = self._parser
        if not self._parts.is_open or self._parts.is_raw or self._paused_at is not None or parser.expects_continue:
            return math.inf
        if parser.due_at() <= now:
            parser.reject_timed_out()
            return math.inf
        return parser.due_at()

    def drain(self) -> None:
        """The server shuts down: close soon."""
        if self._parts.on_drain is not None:
            self._parts.on_drain()

    def close(self) -> None:
        """The handler has ended, or the connection is lost: drop what is unread, and read on."""
        self._parts.drop()
        self.resume()

    def _pause_if_full(self) -> None:
        if self._parts.is_full and self._paused_at is None and not self._transport.is_closing():
            self._paused_at = self._clock.now()
            self._transport.pause_reading()

    def __repr__(self) -> str:
        return f"<BodyFlow {'paused' if self._paused_at is not None else 'reading'}: {self._parts!r}>"
