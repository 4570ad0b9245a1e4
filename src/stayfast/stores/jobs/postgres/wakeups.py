"""Notifications between gateways by LISTEN and NOTIFY, with the topic as payload.

One connection listens; it is opened anew when it breaks, with growing pauses, and all waiters are then woken, because their
notifications may be lost. Topics that are to be notified at the same time share a transaction, because the server lets only
one transaction with notifications commit at a time. Behind a pooler nothing is sent: waiters poll, or Redis wakes them.
"""

import asyncio
from typing import Any, Final

import asyncpg

from stayfast.core.clock import Clock
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.marked_topics import MarkedTopics
from stayfast.stores.jobs.postgres.connections import BACKOFF_MAX_S, BROKEN, PostgresPool, to_text

CHANNEL: Final = "stayfast"
MAX_TOPIC_CHARACTERS: Final = 1900  # the server's limit is 8000 bytes
CHECK_S: Final = 5.0
_NOTIFY: Final = "SELECT pg_notify('stayfast', topic) FROM unnest($1::text[]) AS g(topic)"


class PostgresWakeups:
    """The part of the store that wakes waiters."""

    def __init__(self, pool: PostgresPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._topics = MarkedTopics()
        self._queued: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    async def notify(self, topic: str) -> None:
        self._topics.notify(topic)
        if self._pool.address.is_pooled or len(topic) > MAX_TOPIC_CHARACTERS:
            return
        self._queued.add(to_text(topic))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def wait(self, topic: str, timeout_s: float) -> None:
        if self._listener is None and not self._pool.address.is_pooled:
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        await self._topics.wait(topic, timeout_s)

    async def stop_wakeups(self) -> None:
        """End its tasks."""
        for task in (self._sender, self._listener):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._topics.notify_all()

    async def _send(self) -> None:
        try:
            while self._queued:
                topics, self._queued = sorted(self._queued), set()
                try:
                    await self._pool.fetch(_NOTIFY, topics)
                except StoreUnavailable:
                    continue  # waiters poll
        finally:
            self._sender = None

    async def _listen(self) -> None:
        was_broken = False
        while True:
            try:
                connection = await self._pool.connect()
            except StoreUnavailable:
                await asyncio.sleep(BACKOFF_MAX_S)
                continue
            try:
                await connection.add_listener(CHANNEL, self._on_notification)
                if was_broken:
                    self._topics.notify_all()
                was_broken = True
                await _wait_for_end(connection)
            except (*BROKEN, asyncpg.PostgresError):
                await asyncio.sleep(0)
            finally:
                connection.terminate()

    def _on_notification(self, _connection: object, _pid: int, _channel: str, topic: str) -> None:
        self._topics.notify(topic)


async def _wait_for_end(connection: Any) -> None:
    """Until the connection breaks."""
    ended = asyncio.Event()
    connection.add_termination_listener(lambda _connection: ended.set())
    while not ended.is_set() and not connection.is_closed():
        try:
            async with asyncio.timeout(CHECK_S):
                await ended.wait()
        except TimeoutError:
            async with asyncio.timeout(CHECK_S):
                await connection.fetchval("SELECT 1")  # a connection that was cut silently has no end
