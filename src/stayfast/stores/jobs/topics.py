"""Notifications within one process."""

import asyncio
from contextlib import suppress


class Topics:
    """Waiters by topic. Used on one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}

    def notify(self, topic: str) -> None:
        """Wake the waiters of a topic."""
        for waiter in self._waiters.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Return at the next `notify` of a topic, or after `timeout_s`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(topic, set()).add(waiter)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiter
        finally:
            waiters = self._waiters.get(topic)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[topic]
