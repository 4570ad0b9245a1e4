"""Notifications within one process.

A waiter reads the store, finds nothing new, and waits. A notification in between would be lost until the next poll, so one
that came a moment ago still counts: once for each waiter, because a loop that waits again at once would else not end before
the moment is over.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

RECENT_S: Final = 0.01


class Topics:
    """Waiters by topic. Used on one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[Callable[[], None]]] = {}
        self._notified_at: dict[str, float] = {}  # of the last RECENT_S, oldest first
        self._seen_by: dict[str, WeakSet[object]] = {}  # tasks and connections that have had the last notification

    def notify(self, topic: str) -> None:
        """Wake the waiters of a topic."""
        now = asyncio.get_running_loop().time()
        while self._notified_at and next(iter(self._notified_at.values())) < now - RECENT_S:
            self._forget(next(iter(self._notified_at)))
        self._forget(topic)
        self._notified_at[topic] = now
        for wake in self._waiters.pop(topic, ()):
            wake()

    def notify_all(self) -> None:
        """Wake all waiters: notifications may have been lost."""
        for topic in list(self._waiters):
            self.notify(topic)

    def was_notified(self, topic: str, waiter: object) -> bool:
        """Whether there was a notification a moment ago that this waiter has not had."""
        if self._notified_at.get(topic, -1.0) <= asyncio.get_running_loop().time() - RECENT_S:
            return False
        return waiter not in self._seen_by.get(topic, ())

    def mark_seen(self, topic: str, waiter: object) -> None:
        """The waiter has had the last notification."""
        if topic in self._notified_at:
            self._seen_by.setdefault(topic, WeakSet()).add(waiter)

    def _forget(self, topic: str) -> None:
        self._notified_at.pop(topic, None)
        self._seen_by.pop(topic, None)

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
        waiter = asyncio.current_task()
        if self.was_notified(topic, waiter):
            self.mark_seen(topic, waiter)
            return
        notified = asyncio.Event()
        self.add(topic, notified.set)
        try:
            async with asyncio.timeout(timeout_s):
                await notified.wait()
            self.mark_seen(topic, waiter)
        except TimeoutError:
            return
        finally:
            self.remove(topic, notified.set)
