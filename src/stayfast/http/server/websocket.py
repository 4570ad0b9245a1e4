"""WebSocket connections (RFC 6455): whole messages to and from a handler, with limits, pings and closing handshakes.

Frames are parsed by wsproto, which does no I/O and writes control frames. Extensions are declined: permessage-deflate would
need a limit for what a small frame can expand to, and answers of LLMs come in frames too small to gain from it.

Rule for the end: the handler is cancelled when the WebSocket ends by anything but its own return. So a handler needs no code
for a client that closes or disappears, for a shutdown, or for a limit; it uses `try ... finally`.

| cause | close code |
|---|---|
| the handler returns | 1000 |
| the handler raises WebSocketEnded | its own |
| shutdown, `max_lifetime_s`, `idle_timeout_s` | 1001 |
| the client violates the protocol | 1002; 1007 for text that is not UTF-8 |
| the handler raises Rejected, Shed, another error | 1008, 1013, 1011 |
| a message above `max_message_bytes` | 1009 |
| no bytes for `ping_s` after a ping; nothing read for `write_timeout_s` | none: disconnected |

Use: `offer_websocket(request)` in `App.check_head`, `run_websocket(connection, request, handler)` in `App.handle`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wsproto.connection import SERVER, Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.http.server.body_parts import BodyParts
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.parser import HttpRequest, R
from stayfast.http.server.websocket_handshake import switch_head

NORMAL, GOING_AWAY, POLICY, TOO_BIG, INTERNAL, TRY_LATER = 1000, 1001, 1008, 1009, 1011, 1013
MAX_QUEUED_BYTES = 256 * 1024  # of messages that the handler has not received; above it the connection is not read
MAX_QUEUED_MESSAGES = 256
SLICE_BYTES = 64 * 1024  # parsed in one turn of the loop
SLICE_FRAMES = 64  # the same: 64 KiB could be 10,000 frames, which take 100 ms


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Sizes in bytes, durations in seconds."""

    max_message_bytes: int = 16 << 20
    max_lifetime_s: float = 3600.0
    idle_timeout_s: float = 900.0  # without a message from the client, and without work; checked every `ping_s`
    ping_s: float = 20.0
    close_timeout_s: float = 5.0  # for the client's part of the closing handshake
    expiry_message: str | None = None  # sent before the close at the end of `max_lifetime_s`


class WebSocketEnded(Exception):
    """The WebSocket ends. `is_failed`: the client's frames cannot be read any further, so its part is not awaited."""

    def __init__(self, code: int, reason: str, *, is_failed: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_failed = is_failed


def _n_bytes(data: str | bytes | bytearray) -> int:
    return len(data.encode()) if isinstance(data, str) and not data.isascii() else len(data)


class MessageQueue:
    """Complete messages that the handler has not received, and the parts of the next one."""

    __slots__ = ("_arrived", "_has_room", "_max_message_bytes", "_messages", "_n_bytes", "_parts")

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._messages: deque[tuple[str | bytes, int]] = deque()
        self._n_bytes = 0
        self._parts = bytearray()  # text as UTF-8
        self._arrived = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def add(self, event: TextMessage | BytesMessage) -> bool:
        """Add a part of a message. Returns whether the message is complete. Raises WebSocketEnded if it is too large."""
        data = event.data
        n_bytes = len(self._parts) + _n_bytes(data)
        if n_bytes > self._max_message_bytes:
            raise WebSocketEnded(TOO_BIG, f"The message is larger than {self._max_message_bytes} bytes.", is_failed=True)
        if self._parts or not event.message_finished:
            self._parts += data.encode() if isinstance(data, str) else data
        if not event.message_finished:
            return False
        if self._parts:
            data, self._parts = self._parts.decode() if isinstance(data, str) else bytes(self._parts), bytearray()
        self._messages.append((data if isinstance(data, str) else bytes(data), n_bytes))
        self._n_bytes += n_bytes
        self._arrived.set()
        if self._n_bytes > MAX_QUEUED_BYTES or len(self._messages) >= MAX_QUEUED_MESSAGES:
            self._has_room.clear()
        return True

    @property
    def is_full(self) -> bool:
        return not self._has_room.is_set()

    async def wait_for_room(self) -> None:
        await self._has_room.wait()

    async def take(self) -> str | bytes:
        """The next message. Waits for it."""
        while not self._messages:
            self._arrived.clear()
            await self._arrived.wait()
        message, n_bytes = self._messages.popleft()
        self._n_bytes -= n_bytes
        if self._n_bytes <= MAX_QUEUED_BYTES and len(self._messages) < MAX_QUEUED_MESSAGES:
            self._has_room.set()
        return message

    def __repr__(self) -> str:
        return f"<MessageQueue: {len(self._messages)} messages, {self._n_bytes} bytes>"


def encode_message(message: str | bytes) -> bytes:
    """A message as one frame of a server (RFC 6455, 5.2). wsproto takes 11 us for a short one, this 1.5 us."""
    opcode, data = (0x81, message.encode()) if isinstance(message, str) else (0x82, message)
    n = len(data)
    if n < 126:
        return bytes((opcode, n)) + data
    if n < 65_536:
        return bytes((opcode, 126)) + n.to_bytes(2) + data
    return bytes((opcode, 127)) + n.to_bytes(8) + data


class WebSocketConnection:
    """One WebSocket. `accept` first; then one Task may `receive`, and any number may `send`."""

    __slots__ = ("_connection", "_ending", "_frames", "_is_draining", "_message_at", "_messages", "_n_pinged", "_n_working",
                 "_parts", "_reading", "_request", "_sending", "_tasks", "limits", "n_received", "n_sent")

    def __init__(self, connection: ServerConnection[Any], request: HttpRequest, parts: BodyParts, limits: WebSocketLimits,
                 tasks: asyncio.TaskGroup) -> None:
        self.limits = limits
        self.n_received = 0  # messages
        self.n_sent = 0
        self._connection = connection
        self._request = request
        self._parts = parts
        self._tasks = tasks
        self._frames: Connection | None = None  # None: not accepted
        self._messages = MessageQueue(limits.max_message_bytes)
        self._sending = asyncio.Lock()  # held by the Task that waits: the connection allows one
        self._reading: asyncio.Task[None] | None = None
        self._ending: WebSocketEnded | None = None  # why the running handler is cancelled
        self._is_draining = False
        self._n_working = 0
        self._message_at = 0.0
        self._n_pinged = -1  # bytes that had been read at the last ping; -1: none was sent

    async def accept(self, subprotocol: str | None = None, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send the 101 response, once. Raises ValueError for a subprotocol that the client has not offered.

        A handler that raises StayfastError before this rejects the handshake with that error.
        """
        if self._frames is not None:
            raise RuntimeError("the WebSocket is accepted already")
        self._connection.write(switch_head(self._request, subprotocol, headers))
        self._frames = Connection(SERVER)
        self._parts.on_drain = self._drain
        now = self._message_at = asyncio.get_running_loop().time()
        self._reading = self._tasks.create_task(self._read_frames(self._frames, now + self.limits.max_lifetime_s))
        self._connection.start_keepalive(self._tick, now + self.limits.ping_s, self.limits.ping_s)

    async def receive(self) -> str | bytes:
        """The next whole message: str for text, bytes for binary."""
        message = await self._messages.take()
        self.n_received += 1
        return message

    async def send(self, *messages: str | bytes, until: float | None = None) -> None:
        """Send messages in one write, then wait while the client reads too slowly, at most `until` (of the loop's clock)."""
        self.n_sent += len(messages)
        await self._send(b"".join([encode_message(message) for message in messages]), until)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark the WebSocket as working: it is not idle, and a shutdown waits until the end of the block."""
        self._n_working += 1
        try:
            yield
        finally:
            self._n_working -= 1
            self._message_at = asyncio.get_running_loop().time()
            if self._is_draining:
                self._drain()

    def stop_reading(self) -> None:
        """The handler has ended."""
        self._parts.on_drain = None
        self._connection.stop_keepalive()
        if self._reading is not None:
            self._reading.cancel()

    async def close(self, ending: WebSocketEnded) -> None:
        """The closing handshake, after the handler has ended. Waits at most `close_timeout_s` for the client's part."""
        frames = self._frames
        if frames is None or frames.state is not ConnectionState.OPEN:
            return
        self._connection.write(frames.send(CloseConnection(ending.code, ending.reason)))
        if ending.is_failed:
            return
        try:
            async with asyncio.timeout(self.limits.close_timeout_s):
                while not any(isinstance(event, CloseConnection) for event in frames.events()):
                    frames.receive_data(await self._parts.read())
        except TimeoutError:
            self._connection.abort()

    @property
    def is_draining(self) -> bool:
        """Whether the server shuts down: the WebSocket closes once nothing is `working`."""
        return self._is_draining

    @property
    def is_accepted(self) -> bool:
        return self._frames is not None

    @property
    def ending(self) -> WebSocketEnded | None:
        """Why the handler was cancelled; None: the client has disconnected, or the server has cancelled it."""
        return self._ending

    async def _send(self, data: bytes, until: float | None = None) -> None:
        frames = self._frames
        if frames is None:
            raise RuntimeError("the WebSocket is not accepted")
        while self._connection.is_write_buffer_full:
            if not await self._wait_writable(until):
                break  # its message is written all the same: without it, the rest would be of no use
        if frames.state is not ConnectionState.OPEN:
            return  # this Task is about to be cancelled
        self._connection.write(data)
        await self._wait_writable(until)

    async def _wait_writable(self, until: float | None) -> bool:
        """Returns False at `until`."""
        if not self._connection.is_write_buffer_full:
            return True
        try:
            async with asyncio.timeout_at(until), self._sending:
                await self._connection.wait_writable()
        except TimeoutError:
            return False
        return True

    async def _read_frames(self, frames: Connection, expires_at: float) -> None:
        """Read until the WebSocket ends."""
        try:
            async with asyncio.timeout_at(expires_at):
                while True:
                    data = await self._parts.read()
                    for start in range(0, len(data), SLICE_BYTES):
                        frames.receive_data(data[start : start + SLICE_BYTES])
                        await self._take_events(frames)
        except WebSocketEnded as ended:
            self._end(ended)
        except TimeoutError:
            if self.limits.expiry_message is not None:
                self._connection.write(frames.send(TextMessage(self.limits.expiry_message)))
            reason = f"This WebSocket has lived {self.limits.max_lifetime_s:g} s: open another."
            self._end(WebSocketEnded(GOING_AWAY, reason))

    async def _take_events(self, frames: Connection) -> None:
        """Handle the parsed frames. Raises WebSocketEnded."""
        pong: Event | None = None
        for at, event in enumerate(frames.events(), 1):
            if at % SLICE_FRAMES == 0:
                await asyncio.sleep(0)
            if isinstance(event, TextMessage | BytesMessage):
                if self._messages.add(event):
                    self._message_at = asyncio.get_running_loop().time()
                    await self._messages.wait_for_room()
            elif isinstance(event, Ping):
                pong = event.response()  # only the last of a slice is answered (RFC 6455, 5.5.3)
            elif isinstance(event, CloseConnection):
                if frames.state is ConnectionState.REMOTE_CLOSING:
                    self._connection.write(frames.send(event.response()))
                raise WebSocketEnded(event.code, event.reason or "", is_failed=True)
        if pong is not None and frames.state is ConnectionState.OPEN:
            await self._send(frames.send(pong))
        await asyncio.sleep(0)

    def _tick(self) -> None:
        """Ping the client, or disconnect it if it has sent nothing since the last ping. Called every `ping_s`."""
        frames, now = self._frames, asyncio.get_running_loop().time()
        if frames is None or frames.state is not ConnectionState.OPEN:
            return
        if self._messages.is_full or self._connection.is_write_buffer_full:
            self._n_pinged = -1  # its pong could not be read, or our ping not be sent
        elif self._n_pinged == self._parts.n_read:
            self._connection.abort()
        elif not self._n_working and now - self._message_at > self.limits.idle_timeout_s:
            self._end(WebSocketEnded(GOING_AWAY, f"No message for {self.limits.idle_timeout_s:g} s."))
        else:
            self._n_pinged = self._parts.n_read
            self._connection.write(frames.send(Ping()))

    def _drain(self) -> None:
        self._is_draining = True
        if not self._n_working:
            self._end(WebSocketEnded(GOING_AWAY, "The server is shutting down."))

    def _end(self, ending: WebSocketEnded) -> None:
        """Cancel the handler."""
        if self._ending is None:
            self._ending = ending
            self._connection.cancel_with_error(StayfastError(ending.reason))

    def __repr__(self) -> str:
        state = "not accepted" if self._frames is None else self._frames.state.name
        return f"<WebSocketConnection {state}, {self._messages!r}>"


async def run_websocket(connection: ServerConnection[R], request: R,
                        handler: Callable[[WebSocketConnection], Awaitable[None]],
                        limits: WebSocketLimits | None = None) -> None:
    """Run `handler` until it returns or the WebSocket ends, then close the WebSocket and finish the request.

    The head check must have accepted `offer_websocket(request)`. Unexpected exceptions of the handler are reported.
    """
    assert request.body_parts is not None
    error = StayfastError("Internal error.")
    try:
        async with asyncio.TaskGroup() as tasks:
            socket = WebSocketConnection(connection, request, request.body_parts, limits or WebSocketLimits(), tasks)
            try:
                await handler(socket)
            except StayfastError as failed:
                error, ending = failed, WebSocketEnded(_close_code(failed), failed.message)
            except WebSocketEnded as ended:
                ending = ended
            else:
                ending = WebSocketEnded(NORMAL, "")
                if not socket.is_accepted:
                    connection.report_error(RuntimeError("the handler of a WebSocket returned without accepting it"))
            finally:
                socket.stop_reading()
    except asyncio.CancelledError:
        if connection.abort_reason is None:
            connection.abort()  # the client has disconnected
            raise
        error = connection.abort_reason
        ending = socket.ending or WebSocketEnded(GOING_AWAY, error.message)
    except ExceptionGroup as group:
        connection.report_error(group.exceptions[0])
        ending = WebSocketEnded(INTERNAL, error.message)
    if socket.is_accepted:
        await socket.close(ending)
        connection.finish(request)
    else:
        connection.respond_error(request, error)


def _close_code(error: StayfastError) -> int:
    if isinstance(error, Shed):
        return TRY_LATER
    return POLICY if isinstance(error, Rejected) else INTERNAL
