"""Waiters of topics in one process.

A notification that arrives between a reader's look-up and its `wait` would be lost, and the reader would sleep until its
next poll. So each look-up marks its topic, and `wait` returns at once if the topic was notified since that mark.
"""

import asyncio
from collections import OrderedDict
from typing import Final

MAX_MARKS: Final = 10_000


class TopicWaiters:
    """Futures by topic. One event loop's."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._marks: OrderedDict[str, bool] = OrderedDict()  # by topic: was it notified since

    def __contains__(self, topic: str) -> bool:
        """Whether something waits for it now."""
        return topic in self._waiting

    def mark(self, topic: str) -> None:
        """A look-up begins, whose result a `wait` may follow."""
        self._marks[topic] = False
        self._marks.move_to_end(topic)
        if len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)

    def take_mark(self, topic: str) -> bool:
        """Remove the mark of a topic; whether there was one."""
        return self._marks.pop(topic, None) is not None

    def wake(self, topic: str) -> None:
        """Wake the waiters of a topic."""
        if topic in self._marks:
            self._marks[topic] = True
        for future in self._waiting.pop(topic, ()):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Notifications may have been lost."""
        for topic in [*self._waiting, *self._marks]:
            self.wake(topic)

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Return at the next `wake` of a topic, or after `timeout_s`."""
        if self._marks.pop(topic, False):
            return
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(topic, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(topic) is waiting:
                del self._waiting[topic]
