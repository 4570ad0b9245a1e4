"""WebSockets to an upstream (RFC 6455): the opening handshake, whole messages in both directions, the closing handshake.

Frames are parsed by wsproto, as in `http.server.websocket`; data frames are written here, because wsproto masks in a
loop over bytes (100 ms for 1 MB). Extensions are not offered.

Reading is the caller's: `receive` parses until a message is whole, and answers pings on the way. A caller that does not
receive stops the upstream by TCP, so at most one message and the read buffer are held.
"""

import asyncio
import os
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha1

import httptools
from wsproto.connection import CLIENT, Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.client import HttpConfig, split_base_url
from stayfast.http.client.dialer import Dialer, Origin, Resolver
from stayfast.http.client.response import EncodedRequest, RequestTemplate

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_SWITCHING = 101
_READ_BYTES = 65_536
_MAX_REFUSAL_BYTES = 65_536
ABNORMAL, TOO_BIG, BAD_GATEWAY = 1006, 1009, 1014


@dataclass(frozen=True, slots=True)
class SocketHead:
    """The response to a handshake. `body`: of a refusal, up to 64 KiB."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


class SocketClosed(Exception):
    """The upstream has closed the WebSocket; `code` 1006: without a closing handshake."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def encode_masked(message: str | bytes, entropy: Callable[[int], bytes] = os.urandom) -> bytes:
    """A message as one frame of a client (RFC 6455, 5.2 and 5.3)."""
    opcode, data = (0x81, message.encode()) if isinstance(message, str) else (0x82, message)
    n, mask = len(data), entropy(4)
    if n < 126:
        head = bytes((opcode, 0x80 | n))
    elif n < 65_536:
        head = bytes((opcode, 0x80 | 126)) + n.to_bytes(2)
    else:
        head = bytes((opcode, 0x80 | 127)) + n.to_bytes(8)
    pad = (mask * (n // 4 + 1))[:n]
    return head + mask + (int.from_bytes(data) ^ int.from_bytes(pad)).to_bytes(n)


class UpstreamSocket:
    """One open WebSocket to an upstream. One task receives, one sends."""

    __slots__ = ("_closed", "_frames", "_max_message_bytes", "_parts", "_reader", "_ready", "_writer", "head", "subprotocol")

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: SocketHead,
                 max_message_bytes: int) -> None:
        self.head = head
        self.subprotocol = head.headers.get("sec-websocket-protocol") or None
        self._reader = reader
        self._writer = writer
        self._max_message_bytes = max_message_bytes
        self._frames = Connection(CLIENT)
        self._parts = bytearray()  # of the message that arrives; text as UTF-8
        self._ready: deque[str | bytes] = deque()
        self._closed: SocketClosed | None = None

    async def receive(self) -> str | bytes:
        """The next message. Raises SocketClosed."""
        while not self._ready:
            if self._closed is not None:
                raise self._closed
            try:
                data = await self._reader.read(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                self._closed = SocketClosed(ABNORMAL, "")
                continue
            self._frames.receive_data(data)
            self._take_events()
        return self._ready.popleft()

    async def send(self, message: str | bytes) -> None:
        """Send a message, then wait while the upstream reads too slowly. Without effect once it is closed."""
        if self._frames.state is ConnectionState.OPEN:
            self._writer.write(encode_masked(message))
            await self._drain()

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, and close after all written data. Does not wait; may be called again."""
        if self._frames.state is ConnectionState.OPEN:
            self._writer.write(self._frames.send(CloseConnection(code, reason or None)))
        self._writer.close()

    def abort(self) -> None:
        """Close at once, without a close frame."""
        self._writer.transport.abort()

    def _take_events(self) -> None:
        for event in self._frames.events():
            if isinstance(event, TextMessage | BytesMessage):
                self._add_part(event)
            elif isinstance(event, Ping):
                self._writer.write(self._frames.send(event.response()))
            elif isinstance(event, CloseConnection):
                if self._frames.state is ConnectionState.REMOTE_CLOSING:
                    self._writer.write(self._frames.send(event.response()))
                    self._closed = SocketClosed(event.code, event.reason or "")
                else:
                    self._closed = SocketClosed(BAD_GATEWAY, "The upstream violated the WebSocket protocol.")
            if self._closed is not None:
                return

    def _add_part(self, event: TextMessage | BytesMessage) -> None:
        data = event.data
        if event.message_finished and not self._parts:
            whole = data if isinstance(data, str) else bytes(data)
            n_bytes = len(data)
        else:
            self._parts += data.encode() if isinstance(data, str) else data
            n_bytes = len(self._parts)
            if event.message_finished:
                whole, self._parts = self._parts.decode() if isinstance(data, str) else bytes(self._parts), bytearray()
        if n_bytes > self._max_message_bytes:
            most = self._max_message_bytes
            self._closed = SocketClosed(TOO_BIG, f"A message of the upstream is larger than {most} bytes.")
        elif event.message_finished:
            self._ready.append(whole)

    async def _drain(self) -> None:
        with suppress(OSError):  # `receive` reports the end
            await self._writer.drain()

    def __repr__(self) -> str:
        return f"<UpstreamSocket {self._frames.state.name}, {len(self._ready)} messages>"


class _HeadParser:
    """Callbacks of httptools for one response."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A repeated field is joined (RFC 9110, 5.3)."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = text if key not in self.headers else f"{self.headers[key]}, {text}"

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True


class SocketDialer:
    """Opens WebSockets to one origin. Used on one event loop."""

    __slots__ = ("_authority", "_dialer", "_name", "base_path")

    def __init__(self, name: str, config: HttpConfig, clock: Clock) -> None:
        base = split_base_url(config.base_url)
        self.base_path = base.path
        self._name = name
        self._authority = base.authority
        origin = Origin(name, base.host, base.port, ("http/1.1",) if base.is_tls else (), config.ca_file, config.verify,
                        config.tcp_keepalive_s)
        self._dialer = Dialer(origin, Resolver(base.host, config.dns_ttl_s, clock), clock)

    async def open(self, path: str, headers: Sequence[tuple[str, str]], subprotocols: Sequence[str], *, connect_by: float,
                   max_message_bytes: int) -> UpstreamSocket | SocketHead:
        """The open WebSocket, or the response that refuses it. path: the request target, with `base_path`.

        connect_by: deadline for the connection; the caller limits the wait for the response. Raises UpstreamFailed. When
        cancelled, the connection is closed first.
        """
        try:
            async with asyncio.timeout_at(connect_by):
                dialed = await self._dialer.open()
        except TimeoutError:
            raise UpstreamFailed(self._name, Fault.TIMEOUT, "timed out waiting for a new connection") from None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_READ_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        dialed.transport.set_protocol(protocol)
        protocol.connection_made(dialed.transport)
        writer = asyncio.StreamWriter(dialed.transport, protocol, reader, loop)
        try:
            head = await self._shake_hands(reader, writer, path, headers, subprotocols)
        except BaseException:
            dialed.transport.abort()
            raise
        if head.status == _SWITCHING:
            return UpstreamSocket(reader, writer, head, max_message_bytes)
        dialed.transport.abort()
        return head

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str,
                           headers: Sequence[tuple[str, str]], subprotocols: Sequence[str]) -> SocketHead:
        key = b64encode(os.urandom(16)).decode()
        fields = [*headers, ("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"),
                  ("sec-websocket-key", key)]
        if subprotocols:
            fields.append(("sec-websocket-protocol", ", ".join(subprotocols)))
        template = RequestTemplate("GET", path, fields, upstream=self._name, authority=self._authority)
        writer.write(EncodedRequest(template, (), b"").head)
        head = await self._read_head(reader)
        if head.status != _SWITCHING:
            return head
        accept = b64encode(sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
        given = head.headers
        if (given.get("sec-websocket-accept") != accept or given.get("upgrade", "").lower() != "websocket"
                or given.get("sec-websocket-protocol", next(iter(subprotocols), "")) not in (*subprotocols, "")
                or "sec-websocket-extensions" in given):
            raise self._malformed("is not one to this WebSocket handshake")
        return head

    async def _read_head(self, reader: asyncio.StreamReader) -> SocketHead:
        """The final response; of a refusal, also its body."""
        status = 0
        try:
            while status < _SWITCHING or _SWITCHING < status < 200:  # interim responses
                found = _HeadParser()
                parser = httptools.HttpResponseParser(found)
                with suppress(httptools.HttpParserUpgrade):
                    parser.feed_data(await reader.readuntil(b"\r\n\r\n"))
                status = parser.get_status_code()
            while status != _SWITCHING and not found.is_whole and len(found.body) < _MAX_REFUSAL_BYTES:
                data = await reader.read(_READ_BYTES)
                if not data:
                    break
                parser.feed_data(data)
        except (asyncio.IncompleteReadError, OSError):
            raise UpstreamFailed(self._name, Fault.RESET, "the connection closed before the answer was complete") from None
        except (asyncio.LimitOverrunError, httptools.HttpParserError):
            raise self._malformed("is not HTTP/1.1") from None
        return SocketHead(status, found.headers, bytes(found.body))

    def _malformed(self, what: str) -> UpstreamFailed:
        return UpstreamFailed(self._name, Fault.MALFORMED, f"the answer {what}")

    def __repr__(self) -> str:
        return f"<SocketDialer {self._name}>"
