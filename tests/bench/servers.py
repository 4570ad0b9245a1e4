"""A tiny HTTP/1.1 server for the load half of the bench: each request is answered by a script of bytes and waits."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

RESET = "reset"
CLOSE = "close"
Step = bytes | float | str  # write these bytes, wait so many seconds, or end the connection one way or the other
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
END = b"0\r\n\r\n"


@dataclass
class Seen:
    """What the server was sent."""

    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    n_connections: int = 0


def chunk(data: bytes) -> bytes:
    """One chunk of the transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: str, name: str = "") -> bytes:
    """One server-sent event as a chunk."""
    return chunk((f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode())


def whole(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    """An answer in one piece."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def delta(text: str) -> str:
    """A chat chunk with content."""
    return '{"id":"c","choices":[{"index":0,"delta":{"content":"' + text + '"}}]}'


FINISH = '{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '{"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7}}'
ROLE = '{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'


@asynccontextmanager
async def serving(script: Sequence[Step] | Callable[[int], Sequence[Step]]) -> AsyncIterator[tuple[str, Seen]]:
    """Answer every request by the script, or by what it returns for the request's number; yields the base URL."""
    seen = Seen()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.n_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                seen.heads.append(head)
                seen.bodies.append(await reader.readexactly(length))
                steps = script(len(seen.bodies) - 1) if callable(script) else script
                if not await answer(writer, steps):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", seen
    finally:
        server.close()


async def answer(writer: asyncio.StreamWriter, steps: Sequence[Step]) -> bool:
    """Carry out the steps; whether the connection stays."""
    for step in steps:
        match step:
            case bytes():
                writer.write(step)
                await writer.drain()
            case float():
                await asyncio.sleep(step)
            case "reset":
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            case _:
                return False
    return True
