"""The simulated Gemini API on a socket: HTTP/1.1, for tests."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from stayfast.lab.simulated.vendors.gemini import GeminiReply, GeminiVendor
from stayfast.lab.simulated.vendors.raw_request import read_raw_request


@dataclass(slots=True)
class GeminiRecord:
    """One request that was received. `has_left`: the client closed the connection before the answer's end."""

    target: str
    headers: dict[str, str]
    body: bytes
    has_left: bool = False


@dataclass(slots=True)
class GeminiServer:
    """Listens on loopback. `records`: the requests so far."""

    vendor: GeminiVendor = field(default_factory=GeminiVendor)
    records: list[GeminiRecord] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def listen(self) -> int:
        """Start; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                _, target, headers, body = await read_raw_request(reader)
                record = GeminiRecord(target, headers, body)
                self.records.append(record)
                reply = self.vendor.answer_request(target, headers, body)
                if not await _send(reply, record, reader, writer):
                    break
        writer.close()


async def _send(reply: GeminiReply, record: GeminiRecord, reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter) -> bool:
    """Send an answer. Returns whether the connection can take another request."""
    kind = "text/event-stream" if reply.is_stream else "application/json; charset=UTF-8"
    head = f"HTTP/1.1 {reply.status} Reason\r\ncontent-type: {kind}\r\n"
    if not reply.is_stream:
        body = b"".join(reply.pieces)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return True
    writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
    for piece in reply.pieces:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    if reply.ending == "hang":
        record.has_left = not await reader.read(1)  # until the client closes the connection
    if reply.ending != "clean":
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True
