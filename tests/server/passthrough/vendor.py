"""A scripted vendor on loopback, in a thread of the tests' process: HTTP endpoints by path, and a WebSocket."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

AUDIO = [b"RIFF", b"a" * 5000, b"end"]


@dataclass
class VendorRequest:
    """A request whose head has arrived."""

    method: str
    target: str
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    n_read: int = 0
    has_left: threading.Event = field(default_factory=threading.Event)

    async def read(self, most: int = 65_536) -> bytes:
        """A part of the body; b"" at its end."""
        if self.headers.get("transfer-encoding") == "chunked":
            size = int(await self.reader.readline(), 16)
            part = await self.reader.readexactly(size)
            await self.reader.readline()
        else:
            left = int(self.headers.get("content-length", "0")) - self.n_read
            part = await self.reader.read(min(most, left)) if left else b""
        self.n_read += len(part)
        return part

    async def whole(self) -> bytes:
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def reply(self, body: bytes, status: str = "200 OK", *lines: str, media: str = "application/json") -> None:
        head = [f"HTTP/1.1 {status}", f"content-type: {media}", f"content-length: {len(body)}", *lines, "", ""]
        self.writer.write("\r\n".join(head).encode() + (b"" if self.method == "HEAD" else body))

    def reply_json(self, value: object, status: str = "200 OK", *lines: str) -> None:
        self.reply(json.dumps(value).encode(), status, *lines)

    async def wait_left(self) -> None:
        """Until the gateway has closed the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass
        self.has_left.set()


class Vendor:
    """What has arrived, newest last."""

    def __init__(self) -> None:
        self.port = self.socket_port = 0
        self.requests: list[VendorRequest] = []
        self.sockets: list[ServerConnection] = []
        self.gate = threading.Event()  # /v1/uploads/gate reads its body after it
        self.n_sent = 0  # bytes of /v1/endless

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def last(self, target: str) -> VendorRequest:
        """The newest request for a target."""
        return next(one for one in reversed(self.requests) if one.target.partition("?")[0] == target)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
                request = VendorRequest(method, target, headers, reader, writer)
                self.requests.append(request)
                await self.answer(request)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, request: VendorRequest) -> None:
        path = request.target.partition("?")[0]
        known: dict[str, Callable[[VendorRequest], Awaitable[None]]] = {
            "/v1/audio/speech": self.speak, "/v1/endless": self.pour, "/v1/hang": self.hang, "/v1/cut": self.cut,
            "/v1/cut/chunked": self.cut_chunked, "/v1/uploads/gate": self.take_late, "/v1/uploads/refused": self.refuse,
            "/v1/stall": self.stall, "/v1/redirect": self.redirect, "/v1/score": self.hold}
        if path in known:
            await known[path](request)
        elif path.startswith("/v1/status/"):
            await request.whole()
            status = path.rpartition("/")[2]
            request.reply_json({"error": {"message": f"bad key {request.headers.get('authorization')}", "code": "c"}},
                               f"{status} Status", "retry-after: 7", "x-request-id: req_vendor", "set-cookie: a=b")
        else:
            await self.answer_api(request, path)

    async def answer_api(self, request: VendorRequest, path: str) -> None:
        digest, n_bytes = sha256(), 0
        while part := await request.read():
            digest.update(part)
            n_bytes += len(part)
        if path == "/v1/images/generations":
            request.reply_json({"created": 1, "data": [{"b64_json": "aW1n"}]})
        elif path == "/v1/audio/transcriptions":
            request.reply_json({"text": f"{n_bytes} bytes"})
        elif path == "/v1/moderations":
            request.reply_json({"id": "modr", "model": "omni", "results": []})
        elif path == "/v1/files" and request.method == "POST":
            request.reply_json({"id": "file-vendor", "object": "file", "bytes": n_bytes, "created_at": 1, "filename": "f",
                                "purpose": "batch", "status": "processed"})
        elif path == "/v1/files/file-vendor/content":
            request.reply(b"line\n" * 100, media="application/octet-stream")
        elif request.method == "DELETE":
            request.reply_json({"id": "x", "object": "vector_store.deleted", "deleted": True})
        else:
            request.reply_json({"target": request.target, "headers": request.headers, "n_bytes": n_bytes,
                                "digest": digest.hexdigest()}, "200 OK", "x-request-id: req_vendor", "set-cookie: a=b")

    async def speak(self, request: VendorRequest) -> None:
        await request.whole()
        request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in AUDIO:
            request.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await asyncio.sleep(0.02)
        request.writer.write(b"0\r\n\r\n")

    async def pour(self, request: VendorRequest) -> None:
        """Bytes without end; stops with the connection."""
        request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 1000000000\r\n\r\n")
        self.n_sent = 0
        leaving = asyncio.get_running_loop().create_task(request.wait_left())
        while not leaving.done():
            request.writer.write(b"x" * 65_536)
            self.n_sent += 65_536
            await asyncio.wait([leaving, asyncio.ensure_future(request.writer.drain())], return_when=asyncio.FIRST_COMPLETED)

    async def hang(self, request: VendorRequest) -> None:
        await request.wait_left()

    async def hold(self, request: VendorRequest) -> None:
        await request.whole()
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        request.reply_json({})

    async def cut(self, request: VendorRequest) -> None:
        request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789")
        request.writer.close()

    async def cut_chunked(self, request: VendorRequest) -> None:
        request.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n")
        request.writer.close()

    async def stall(self, request: VendorRequest) -> None:
        request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789")
        await request.wait_left()

    async def take_late(self, request: VendorRequest) -> None:
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        request.reply_json({"n_bytes": len(await request.whole())})

    async def refuse(self, request: VendorRequest) -> None:
        """Before the body."""
        await request.read()
        request.reply_json({"error": {"message": "too large"}}, "413 Too Large", "connection: close")
        await request.wait_left()

    async def redirect(self, request: VendorRequest) -> None:
        to = {"own": f"{self.origin}/v1/files/f/content", "blob": "https://blob.example/x?sig=1"}
        request.reply(b"", "302 Found", f"location: {to[request.target.partition('?')[2]]}")

    async def answer_socket(self, socket: ServerConnection) -> None:
        """Echoes; a message `close CODE REASON` closes, `flood` sends without end, `vanish` breaks off."""
        self.sockets.append(socket)
        async for message in socket:
            if isinstance(message, str) and message.startswith("close "):
                _, code, reason = message.split(" ", 2)
                await socket.close(int(code), reason)
            elif message == "vanish":
                socket.transport.abort()
            elif message == "flood":
                while True:
                    await socket.send(b"x" * 65_536)
                    self.n_sent += 65_536
            else:
                await socket.send(message)


def choose(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol("realtime") if "realtime" in offered else None


@contextmanager
def running_vendor() -> Iterator[Vendor]:
    """A vendor until the block ends."""
    vendor, loop, is_up = Vendor(), asyncio.new_event_loop(), threading.Event()
    stopping = asyncio.Event()

    async def main() -> None:
        server = await asyncio.start_server(vendor.serve, "127.0.0.1", 0)
        async with serve(vendor.answer_socket, "127.0.0.1", 0, select_subprotocol=choose, max_size=None) as sockets:
            vendor.port = server.sockets[0].getsockname()[1]
            vendor.socket_port = next(iter(sockets.sockets)).getsockname()[1]
            is_up.set()
            await stopping.wait()
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    def run() -> None:
        with closing(loop):
            loop.run_until_complete(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(10)
    try:
        yield vendor
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)
