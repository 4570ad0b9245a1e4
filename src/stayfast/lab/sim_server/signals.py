"""SIGTERM and SIGINT as an event."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signalled() -> Iterator[asyncio.Event]:
    """An event for SIGTERM and SIGINT, which end nothing by themselves inside of this."""
    loop = asyncio.get_running_loop()
    has_come = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, has_come.set)
    try:
        yield has_come
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
