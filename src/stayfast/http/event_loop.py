"""What connections use of the event loop: a timer that is rarely set, and writes that do not wait for the turn's end."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from stayfast.core.clock import Clock

QUIET_S: Final = 0.0005  # more than a busy loop takes for a request


class LazyTimer:
    """Calls `check` at the earliest instant that was set; `check` returns the next instant, or `math.inf` for never.

    A timer is never moved to a later instant. It fires early instead, and `check` finds nothing due: a request on a warm
    connection sets no timer.
    """

    __slots__ = ("_at", "_check", "_handle")

    def __init__(self, check: Callable[[], float]) -> None:
        self._check = check
        self._at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set_no_later_than(self, at: float) -> None:
        """Fire no later than `at`, on the loop's clock."""
        if at < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = at
            self._handle = asyncio.get_running_loop().call_at(at, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at = -math.inf
        self._check = lambda: math.inf  # breaks the reference cycle with the connection

    def _fire(self) -> None:
        self._handle = None
        self._at = math.inf
        self.set_no_later_than(self._check())


class EarlyWriter:
    """Sends small writes before the rest of the loop's turn runs, while the loop is not busy: of the connections that share
    these marks, in bytes.

    uvloop keeps a write below the high-water mark until all callbacks of the turn have run. With a mark just below its size
    it is sent at once, and a part that is left does not pause the protocol. A busy loop does not need that: its turns would
    get shorter, and each takes a system call more. Rule: the loop is busy if the last write was less than QUIET_S ago. TLS
    has buffers of its own, with other marks: its writes are not early.
    """

    __slots__ = ("_busy_until", "_high", "_low", "_now")

    def __init__(self, clock: Clock, high: int, low: int) -> None:
        self._now = clock.now
        self._high = high
        self._low = low
        self._busy_until = 0.0

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        now = self._now()
        is_busy = now < self._busy_until
        self._busy_until = now + QUIET_S
        if is_busy or transport.get_write_buffer_size() or transport.get_extra_info("sslcontext") is not None:
            transport.write(data)
            return
        transport.set_write_buffer_limits(max(0, len(data) - 1))
        transport.write(data)
        transport.set_write_buffer_limits(self._high, self._low)
