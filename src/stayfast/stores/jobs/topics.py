"""Notifications within one process.

A waiter reads the store, finds nothing new, and waits. A notification in between would be lost until the next poll, so one
that came a moment ago still counts.
"""

import asyncio
from collections.abc import Callable
from typing import Final

RECENT_S: Final = 0.01


class Topics:
    """Waiters by topic. Used on one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[Callable[[], None]]] = {}
        self._notified_at: dict[str, float] = {}  # of the last RECENT_S, oldest first

    def notify(self, topic: str) -> None:
        """Wake the waiters of a topic."""
        now = asyncio.get_running_loop().time()
        while self._notified_at and next(iter(self._notified_at.values())) < now - RECENT_S:
            del self._notified_at[next(iter(self._notified_at))]
        self._notified_at.pop(topic, None)
        self._notified_at[topic] = now
        for wake in self._waiters.pop(topic, ()):
            wake()

    def notify_all(self) -> None:
        """Wake all waiters: notifications may have been lost."""
        for topic in list(self._waiters):
            self.notify(topic)

    def was_notified(self, topic: str) -> bool:
        """Whether there was a notification a moment ago."""
        return self._notified_at.get(topic, -1.0) > asyncio.get_running_loop().time() - RECENT_S

    def is_waited_for(self, topic: str) -> bool:
        return topic in self._waiters

    def add(self, topic: str, wake: Callable[[], None]) -> None:
        """Call `wake` at the next notification."""
        self._waiters.setdefault(topic, set()).add(wake)

    def remove(self, topic: str, wake: Callable[[], None]) -> None:
        """Withdraw `add`."""
        waiters = self._waiters.get(topic)
        if waiters is not None:
            waiters.discard(wake)
            if not waiters:
                del self._waiters[topic]

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Return at the next `notify` of a topic, or after `timeout_s`."""
        if self.was_notified(topic):
            return
        notified = asyncio.Event()
        self.add(topic, notified.set)
        try:
            async with asyncio.timeout(timeout_s):
                await notified.wait()
        except TimeoutError:
            return
        finally:
            self.remove(topic, notified.set)
