"""Notifications and live events between gateways by Redis, before any store of jobs.

    notify          PUBLISH to the channel of the topic
    append_events   stores the events first, then publishes them with their contents, so that a reader in another gateway
                    gets them without a look-up in the store
    read_events     from the published events where they continue what the reader has, else from the store

A gateway subscribes only to the topics that it waits for. Redis stores nothing, and no caller waits for it but a reader for
its first subscription. Without Redis notifications go through the store itself, and readers poll: its loss costs latency,
never an event, because an event is published after it is stored, and a reader that has a gap reads the store.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from stayfast.core.clock import Clock
from stayfast.core.jobs import Job, JobEvent, JobResult
from stayfast.stores.jobs.base import EventsPage, JobStore
from stayfast.stores.jobs.marked_topics import MarkedTopics

CHECK_S: Final = 0.5  # without messages
IO_S: Final = 0.5  # for one round trip
BACKOFF_S, BACKOFF_MAX_S = 0.05, 1.0
IDLE_S: Final = 30.0  # a topic that was not waited for is given up
SUBSCRIBE_S: Final = 0.25  # longest wait for a subscription
TRUST_S: Final = 0.9  # a stream whose events were published so recently is not looked up in the store
MAX_PUBLISHED_BYTES: Final = 64 * 1024
MAX_LIVE: Final = 512  # events of one stream
MAX_QUEUED: Final = 10_000  # messages to be published; further ones are lost
MAX_BATCH: Final = 256
WORK: Final = "work"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[JobEvent, ...]).decode


class _LiveStream:
    """The latest published events of a job, without gaps."""

    __slots__ = ("at", "events")

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.at = 0.0  # of the latest message

    def add(self, events: Sequence[JobEvent], now: float) -> None:
        """Events that do not follow the earlier ones replace them."""
        self.at = now
        for event in events:
            if self.events and event.n <= self.events[-1].n:
                continue
            if self.events and event.n > self.events[-1].n + 1:
                self.events.clear()
            self.events.append(event)
        del self.events[:-MAX_LIVE]

    def after(self, n: int, limit: int, now: float) -> tuple[JobEvent, ...] | None:
        """The events after number `n`; None if the store must be read."""
        if not self.events or not self.events[0].n - 1 <= n <= self.events[-1].n:
            return None
        found = self.events[n + 1 - self.events[0].n:][:limit]
        return tuple(found) if found or now - self.at < TRUST_S else None


class RedisWakeups:
    """A store of jobs, with notifications and live events by Redis; everything else is the store's. One event loop's."""

    def __init__(self, store: JobStore, url: str, prefix: str, clock: Clock) -> None:
        """url: may contain a password, and is never shown."""
        self._store = store
        self._prefix = f"{prefix}:w:"
        self._clock = clock
        self._server: Any = Redis.from_url(url, socket_timeout=IO_S, socket_connect_timeout=IO_S, protocol=2,
                                           retry=Retry(NoBackoff(), 0))
        self._pubsub: Any = None  # None: not connected
        self._topics = MarkedTopics()
        self._subscribed: dict[str, float] = {WORK: 0.0}  # by topic: the instant of its latest use
        self._confirmed: dict[str, asyncio.Event] = {}
        self._live: dict[str, _LiveStream] = {}
        self._announced: set[str] = set()  # topics whose next notification would repeat the publication of events
        self._outbox: deque[tuple[str, bytes]] = deque(maxlen=MAX_QUEUED)
        self._reader: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def notify(self, topic: str) -> None:
        if topic in self._announced:
            self._announced.discard(topic)
            return
        self._publish(topic, b"")

    async def wait(self, topic: str, timeout_s: float) -> None:
        self._start()
        if self._pubsub is None:
            await self._wait_without_redis(topic, timeout_s)
        elif not await self._subscribe(topic) or not self._topics.take_mark(topic):
            await self._topics.wait(topic, timeout_s)

    async def _wait_without_redis(self, topic: str, timeout_s: float) -> None:
        """Until the store or, once it is connected, Redis wakes the topic."""
        self._subscribed.setdefault(topic, self._clock.now())  # when it is connected
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(wait(topic, timeout_s)) for wait in (self._store.wait, self._topics.wait)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def find(self, job_id: str) -> Job | None:
        self._topics.mark(_topic_of(job_id))
        return await self._store.find(job_id)

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        for result in results:  # their notification is another one
            self._announced.discard(_topic_of(result.job_id))
        return await self._store.finish(results)

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        is_held = await self._store.append_events(job_id, token, events)
        if is_held and sum(len(event.data) for event in events) <= MAX_PUBLISHED_BYTES:
            topic = _topic_of(job_id)
            self._publish(topic, _encode(tuple(events)))
            self._announced.add(topic)
        return is_held

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        topic = _topic_of(job_id)
        self._start()
        await self._subscribe(topic)  # before the store is read: what is published from now on is not lost
        self._topics.mark(topic)
        stream = self._live.get(topic)
        if stream is not None and (events := stream.after(after_n, limit, self._clock.now())) is not None:
            return EventsPage(events)
        return await self._store.read_events(job_id, after_n, limit)

    async def close(self) -> None:
        for task in (self._reader, self._sender):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        try:
            await self._server.aclose()
        except (RedisError, OSError):
            self._pubsub = None
        self._topics.notify_all()
        await self._store.close()

    def _start(self) -> None:
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read())

    def _publish(self, topic: str, data: bytes) -> None:
        """Also to this process's own waiters."""
        self._start()
        self._receive(topic, data)
        self._outbox.append((topic, data))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Through the store if Redis is not connected."""
        try:
            while self._outbox:
                batch = [self._outbox.popleft() for _ in range(min(MAX_BATCH, len(self._outbox)))]
                if not await self._send_batch(batch):
                    for topic in dict.fromkeys(topic for topic, _ in batch):
                        await self._store.notify(topic)
        finally:
            self._sender = None

    async def _send_batch(self, batch: Sequence[tuple[str, bytes]]) -> bool:
        if self._pubsub is None:
            return False
        pipeline = self._server.pipeline(transaction=False)
        for topic, data in batch:
            pipeline.execute_command("PUBLISH", self._prefix + topic, data)
        try:
            await pipeline.execute()
        except (RedisError, OSError):
            self._pubsub = None  # the reader connects again
            return False
        return True

    async def _subscribe(self, topic: str) -> bool:
        """Whether the topic was not subscribed before. Returns after SUBSCRIBE_S at most."""
        is_new = topic not in self._subscribed
        self._subscribed[topic] = self._clock.now()
        if not is_new or self._pubsub is None:
            return False
        confirmed = self._confirmed[topic] = asyncio.Event()
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                await self._pubsub.subscribe(self._prefix + topic)
                await confirmed.wait()
        except (TimeoutError, RedisError, OSError):
            return False
        finally:
            self._confirmed.pop(topic, None)
        return True

    async def _read(self) -> None:
        """Receive messages; connect again when the connection breaks."""
        pause_s, was_connected = BACKOFF_S, False
        while True:
            try:
                async with self._connected() as pubsub:
                    if was_connected:
                        self._topics.notify_all()  # what was notified meanwhile
                    pause_s, was_connected = BACKOFF_S, True
                    while self._pubsub is pubsub:
                        await self._receive_next(pubsub)
            except (RedisError, OSError):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        await self._server.ping()
        pubsub = self._server.pubsub()
        try:
            await pubsub.subscribe(*(self._prefix + topic for topic in self._subscribed))
            self._pubsub = pubsub
            yield pubsub
        finally:
            self._pubsub = None
            self._live.clear()  # messages may be lost
            await pubsub.aclose()

    async def _receive_next(self, pubsub: Any) -> None:
        message = await pubsub.get_message(timeout=CHECK_S)
        if message is None:
            await self._drop_idle(pubsub)
            return
        topic = message["channel"].decode().removeprefix(self._prefix)
        if message["type"] == "subscribe" and topic in self._confirmed:
            self._confirmed[topic].set()
        elif message["type"] == "message":
            self._receive(topic, message["data"])

    def _receive(self, topic: str, data: bytes) -> None:
        if data and topic in self._subscribed:
            try:
                self._live.setdefault(topic, _LiveStream()).add(_decode(data), self._clock.now())
            except msgspec.DecodeError:  # of another version: the store has the events
                self._live.pop(topic, None)
        elif topic in self._live:
            self._live[topic].at = 0.0  # something else has happened
        self._topics.notify(topic)

    async def _drop_idle(self, pubsub: Any) -> None:
        before = self._clock.now() - IDLE_S
        idle = [topic for topic, used_at in self._subscribed.items() if used_at < before and topic != WORK
                and topic not in self._topics]
        for topic in idle:
            del self._subscribed[topic]
            self._live.pop(topic, None)
        if idle:
            await pubsub.unsubscribe(*(self._prefix + topic for topic in idle))

    def __repr__(self) -> str:
        return f"<RedisWakeups {self._store!r}>"


def wake_by_redis(store: JobStore, url: str, clock: Clock, prefix: str = "stayfast") -> JobStore:
    """The store with notifications and live events by Redis. Needs the extra `redis`; connects at its first use."""
    return cast("JobStore", RedisWakeups(store, url, prefix, clock))


def _topic_of(job_id: str) -> str:
    return f"job:{job_id}"
