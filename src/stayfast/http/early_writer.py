"""Sends small writes before the rest of the loop's turn runs, while the loop is not busy.

uvloop keeps a write below the transport's high-water mark until all callbacks of the turn have run. With a mark of 0 it
sends at once. A busy loop does not need that: its turns would get shorter, and each would take a system call more. Rule: the
loop is busy if the last write was less than QUIET_S ago.
"""

import asyncio
from typing import Final

from stayfast.core.clock import Clock

QUIET_S: Final = 0.0005  # more than a busy loop takes for a request


class EarlyWriter:
    """The early writes of connections that share one loop and these marks, in bytes."""

    __slots__ = ("_clock", "_high", "_low", "_wrote_at")

    def __init__(self, clock: Clock, high: int, low: int) -> None:
        self._clock = clock
        self._high = high
        self._low = low
        self._wrote_at = 0.0

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        now = self._clock.now()
        is_busy = now < self._wrote_at + QUIET_S
        self._wrote_at = now
        if is_busy or transport.get_write_buffer_size():
            transport.write(data)
            return
        transport.set_write_buffer_limits(0)
        transport.write(data)
        transport.set_write_buffer_limits(self._high, self._low)
