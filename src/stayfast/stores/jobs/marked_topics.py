"""Notifications within one process, for stores whose look-ups take time.

A notification that arrives between a reader's look-up and its `wait` would be lost, and the reader would sleep until its
next poll. So each look-up marks its topic, and `wait` returns at once if the topic was notified since that mark.
"""

from collections import OrderedDict
from typing import Final

from stayfast.stores.jobs.topics import Topics

MAX_MARKS: Final = 10_000


class MarkedTopics(Topics):
    """Waiters by topic, and marks. Used on one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: OrderedDict[str, bool] = OrderedDict()  # by topic: was it notified since
        self._n_waiting: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        """Whether something waits for it now."""
        return topic in self._n_waiting

    def mark(self, topic: str) -> None:
        """A look-up begins, whose result a `wait` may follow."""
        self._marks[topic] = False
        self._marks.move_to_end(topic)
        if len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)

    def take_mark(self, topic: str) -> bool:
        """Remove the mark of a topic; whether there was one."""
        return self._marks.pop(topic, None) is not None

    def notify(self, topic: str) -> None:
        if topic in self._marks:
            self._marks[topic] = True
        super().notify(topic)

    def notify_all(self) -> None:
        """Notifications may have been lost."""
        for topic in [*self._n_waiting, *self._marks]:
            self.notify(topic)

    async def wait(self, topic: str, timeout_s: float) -> None:
        if self._marks.pop(topic, False):
            return
        self._n_waiting[topic] = self._n_waiting.get(topic, 0) + 1
        try:
            await super().wait(topic, timeout_s)
        finally:
            self._n_waiting[topic] -= 1
            if not self._n_waiting[topic]:
                del self._n_waiting[topic]
