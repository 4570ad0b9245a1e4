"""A process's connection to the one that commits.

Problem: a committer that is stopped, or whose event loop hangs, holds its connections and its lock, so its callers would
wait as long as for a slow call. Rule: while calls are in flight, a probe is sent every PROBE_S, which the event loop of the
committer replies to whatever its store does. After MAX_SILENT probes in a row without any message the calls in flight fail,
and new ones fail at once until a message arrives.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.calls import (
    ERRORS,
    NOTIFIED,
    CallMessage,
    FrameConnection,
    decode_reply,
    decode_text,
    describe_method,
    encode,
)
from stayfast.stores.jobs.committer import SocketPath
from stayfast.stores.jobs.topics import Topics

CALL_S: Final = 30.0  # longest call
PROBE_S: Final = 1.0
MAX_SILENT: Final = 4
_PROBE: Final = "?"
_SILENT: Final = "the process that commits does not reply"


class LinkLost(Exception):
    """The committer ended during a call."""


class CommitterLink:
    """A connection to the committer of another process, and the calls in flight."""

    def __init__(self, topics: Topics, on_lost: Callable[[], None]) -> None:
        self._topics = topics
        self._on_lost = on_lost
        self._connection: FrameConnection | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._methods: dict[int, str] = {}
        self._waits: set[str] = set()
        self._number = 0
        self._n_silent = 0  # probes since the last message
        self._probing: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        return self._connection is None or self._connection.is_lost

    async def connect(self, folder: Path) -> None:
        """Raises OSError."""
        address = SocketPath(folder)
        try:
            _, self._connection = await asyncio.get_running_loop().create_unix_connection(
                lambda: FrameConnection(self._receive, self._lose), address.short)
        finally:
            address.close()

    async def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Raises LinkLost, StoreUnavailable, ValueError."""
        if self.is_lost:
            raise LinkLost
        if self._n_silent >= MAX_SILENT:
            raise StoreUnavailable(_SILENT)
        assert self._connection is not None
        if self._probing is None:
            self._probing = asyncio.get_running_loop().call_later(PROBE_S, self._probe)
        self._number += 1
        number, reply = self._number, asyncio.get_running_loop().create_future()
        self._calls[number] = reply
        self._methods[number] = method
        try:
            self._connection.send(encode(CallMessage(number, method, msgspec.Raw(encode(arguments)))))
            async with asyncio.timeout(CALL_S):
                return await reply
        except TimeoutError:
            raise StoreUnavailable(_SILENT) from None
        finally:
            del self._calls[number], self._methods[number]

    def _probe(self) -> None:
        self._probing = None
        if self.is_lost or not (self._calls or self._n_silent):
            return
        if self._n_silent >= MAX_SILENT:
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(StoreUnavailable(_SILENT))
        self._n_silent = min(MAX_SILENT, self._n_silent + 1)
        self._send(_PROBE, _PROBE)
        self._probing = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def wait_for(self, topic: str) -> None:
        """Have the next notification of a topic sent."""
        if topic not in self._waits and not self.is_lost:
            self._waits.add(topic)
            self._send("+", topic)

    def stop_waiting(self, topic: str) -> None:
        """No process waits for it any more."""
        if topic in self._waits:
            self._waits.discard(topic)
            self._send("-", topic)

    def notify(self, topic: str) -> None:
        """Wake the waiters of a topic in all processes. Lost if the committer ends."""
        self._send("!", topic)

    def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
        if self._connection is not None:
            self._connection.close()

    def _send(self, method: str, topic: str) -> None:
        if self._connection is not None:
            self._connection.send(encode(CallMessage(0, method, msgspec.Raw(encode(topic)))))

    def _receive(self, connection: FrameConnection, message: bytes) -> None:
        self._n_silent = 0
        try:
            reply = decode_reply(message)
            if reply.number == NOTIFIED:
                topic = decode_text(reply.value)
                self._waits.discard(topic)
                self._topics.notify(topic)
                return
            call = self._calls.get(reply.number)
            if call is None or call.done():
                return
            if reply.error:
                call.set_exception(ERRORS.get(reply.error, StoreUnavailable)(decode_text(reply.value)))
            else:
                call.set_result(describe_method(self._methods[reply.number]).decode_reply(reply.value))
        except msgspec.MsgspecError:
            connection.close()

    def _lose(self, connection: FrameConnection) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(LinkLost())
        self._on_lost()
