"""Reads the KV events of one engine over ZMQ, replays what it missed, and keeps the index of its cache.

The monitor of a SUB socket shows when it is connected. While it is not, nothing is known of the cache. At most RECEIVE_LIMIT
messages wait; beyond that the publisher drops, which shows as a gap. One of more than MAX_PAYLOAD_BYTES ends the connection.
A long one is decoded in a thread, and applied in pieces. Each worker of a gateway reads for itself: an engine sends its
events to each (docs/decisions/0035-kv-events.md).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

from stayfast.core.clock import Clock
from stayfast.core.kv_events import KvBatch
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.routing.kv_event_order import KvEventOrder
from stayfast.wire.kv_events import MAX_PAYLOAD_BYTES, ReplayEnd, decode_message, encode_number

RECEIVE_LIMIT: Final = 20_000  # messages that wait in the socket
LONG_BYTES: Final = 32 << 10  # some 300 blocks: half a millisecond
REPLAY_S: Final = 5.0  # between two messages of a replay: vLLM looks for requests every 0.1 s
MAX_REPLAYED: Final = 100_000  # messages; vLLM stores 10,000
RETRY_S: Final = 1.0
HEARTBEAT_MS: Final = 5_000  # a silent engine is not a lost one; a lost one is noticed within two
ADDRESS: Final = r"tcp://[^\s*/:]+:[0-9]{1,5}|tcp://\[[0-9a-fA-F:.]+\]:[0-9]{1,5}|ipc://[^\s]+"
ADDRESS_FORM: Final = "like tcp://host:5557"
INSTALL_HINT: Final = "pip install '.[kv-events]' in Stayfast's checkout"


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Where an engine publishes the events of its prefix cache."""

    endpoint: Annotated[str, SettingDoc(
        "Where it publishes: the host and port of vLLM's and SGLang's --kv-events-config, 5557 by default.",
        pattern=ADDRESS, form=ADDRESS_FORM)]
    replay: Annotated[str, SettingDoc(
        "Its replay_endpoint. Empty: after each gap and restart the cache is unknown, not replayed.",
        pattern=f"|{ADDRESS}", form=ADDRESS_FORM)] = ""
    topic: Annotated[str, SettingDoc(
        "Only events whose topic begins with this. Empty: all.", pattern=r"[!-~]{0,200}", form="visible ASCII characters"
    )] = ""

    def __post_init__(self) -> None:
        check_bounds(self)


class NoZmq(ValueError):
    """The package for ZMQ is missing. The message has what to do."""


def load_zmq(upstream: str) -> Any:
    """The package, with its asyncio sockets. Raises NoZmq."""
    try:
        import_module("zmq.asyncio")
        return import_module("zmq")
    except ImportError as error:
        raise NoZmq(f"upstreams.{upstream}.kv_events needs the package pyzmq, which is not installed ({error}): "
                    f"{INSTALL_HINT}, or remove kv_events") from error


class KvEventReader:
    """Of one upstream. For one event loop; `run` is one task."""

    __slots__ = ("_clock", "_config", "_zmq", "is_connected", "lost_at", "order")

    def __init__(self, config: KvEventsConfig, order: KvEventOrder, clock: Clock, zmq: Any) -> None:
        self._config = config
        self._clock = clock
        self._zmq = zmq
        self.order = order
        self.is_connected = False
        self.lost_at: float | None = clock.now()  # since when there is no connection; None: there is one

    @property
    def has_replay(self) -> bool:
        return bool(self._config.replay)

    async def run(self) -> None:
        """Read until cancelled."""
        context = self._zmq.asyncio.Context()
        try:
            while True:
                with suppress(self._zmq.ZMQError):  # of a socket that could not be made; the next one may
                    await self._read(context)
                await asyncio.sleep(RETRY_S)
        finally:
            self._note_lost()
            context.destroy(linger=0)

    async def _read(self, context: Any) -> None:
        zmq = self._zmq
        with _opened(context, zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            socket.setsockopt(zmq.SUBSCRIBE, self._config.topic.encode())
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            socket.connect(self._config.endpoint)
            poller = self._zmq.asyncio.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            try:
                while True:
                    ready = dict(await poller.poll())
                    if monitor in ready and not await self._read_connection(context, monitor):
                        return  # after a message over the limit, ZMQ does not connect again
                    if socket in ready:
                        await self._take(context, await socket.recv_multipart())
                    await asyncio.sleep(0)  # a burst of messages must not hold up requests
            finally:
                socket.disable_monitor()

    async def _read_connection(self, context: Any, monitor: Any) -> bool:
        """Whether there is a connection."""
        event = int.from_bytes((await monitor.recv_multipart())[0][:2], "little")
        if event == self._zmq.EVENT_DISCONNECTED:
            self._note_lost()
            return False
        self.is_connected, self.lost_at = True, None
        await self._catch_up(context)
        return True

    async def _catch_up(self, context: Any) -> None:
        """After a connection: replay what was published before it."""
        start = self.order.connect(has_replay=bool(self._config.replay))
        if self._config.replay and not await self._replay(context, start, is_new=True):
            await self._replay(context, 0, is_new=True)

    async def _take(self, context: Any, frames: list[bytes]) -> None:
        batch, order = await _decode(frames), self.order
        if not isinstance(batch, KvBatch):
            order.n_malformed += 1
        elif not order.take(batch, self._clock.now()):
            if self._config.replay:
                await self._replay(context, order.next_number or 0)
            order.close_gap(batch, self._clock.now())
        await self._apply_rest()

    async def _apply_rest(self) -> None:
        """All of the newest batch, between requests."""
        for _ in self.order.apply_in_steps():
            await asyncio.sleep(0)

    async def _replay(self, context: Any, start: int, *, is_new: bool = False) -> bool:
        """Apply what is replayed from a number on. is_new: after a connection. False: the engine restarted before it."""
        order, zmq = self.order, self._zmq
        with _opened(context, zmq.DEALER) as socket:
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
            socket.connect(self._config.replay)
            await socket.send_multipart([b"", encode_number(start)])
            for _ in range(MAX_REPLAYED):
                if not await socket.poll(REPLAY_S * 1000):
                    break
                message = await _decode(await socket.recv_multipart())
                if message is None:
                    order.n_malformed += 1
                    continue
                batch = message if isinstance(message, KvBatch) else None
                if is_new and not order.take_first(batch):
                    return False
                is_new = False
                if batch is None:
                    return True
                order.take_replayed(batch, self._clock.now())
                await self._apply_rest()
                await asyncio.sleep(0)
        if is_new:  # no answer: as without a replay
            order.connect(has_replay=False)
        return True

    def _note_lost(self) -> None:
        if self.is_connected:
            self.is_connected, self.lost_at = False, self._clock.now()
        self.order.disconnect()

    def __repr__(self) -> str:
        return f"<KvEventReader {self._config.endpoint}: {self.order!r}>"


async def _decode(frames: list[bytes]) -> KvBatch | ReplayEnd | None:
    if sum(map(len, frames)) > LONG_BYTES:
        return await asyncio.to_thread(decode_message, frames)
    return decode_message(frames)


@contextmanager
def _opened(context: Any, kind: int) -> Iterator[Any]:
    socket = context.socket(kind)
    try:
        yield socket
    finally:
        socket.close(linger=0)
