"""Shared calls over real sockets: the client that made the call hangs up, and the call goes on."""

import asyncio
import socket

import pytest
import uvloop

from tests.flow.socket_rig import EVENT, EVENT_STREAM, gateway, read_request, send_request, until

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {port: 0}
upstreams: {up: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", probe: false}}
routes: {m: {upstreams: [up], cache: {mode: exact, max_temperature: 1}}}
"""
BODY = (b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"hihi"},"finish_reason":"stop"}]}')
LAST = EVENT.replace(b'{"content":"hi"}', b"{}").replace(b'"finish_reason":null', b'"finish_reason":"stop"')
END = LAST + b"data: [DONE]\n\n"


def chunk_of_bytes(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = [EVENT_STREAM, chunk_of_bytes(EVENT), chunk_of_bytes(EVENT), chunk_of_bytes(END) + b"0\r\n\r\n"]
WHOLE = [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY),
         BODY[:40], BODY[40:]]


class PartwisePeer:
    """An upstream that writes one part of its answer for each call of `permit`."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.n_requests = 0
        self.n_written = 0
        self._permits = asyncio.Semaphore(0)

    def permit(self, n_parts: int) -> None:
        """Write so many parts more."""
        for _ in range(n_parts):
            self._permits.release()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        await read_request(reader)
        self.n_requests += 1
        for part in self.parts:
            await self._permits.acquire()
            writer.write(part)
            await writer.drain()
            self.n_written += 1
        await reader.read()
        writer.close()


async def read_all(client: socket.socket) -> bytes:
    """All bytes until the connection closes."""
    loop, parts = asyncio.get_running_loop(), []
    while part := await loop.sock_recv(client, 65_536):
        parts.append(part)
    return b"".join(parts)


def connect(port: int, *, stream: bool) -> socket.socket:
    """A client that has sent its request; the connection is closed after the answer."""
    client = send_request(port, stream=stream, headers=b"x-stayfast-keepalive: off\r\nconnection: close\r\n")
    client.setblocking(False)
    return client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n_parts", [0, 1, 2])
def test_coalesce_over_sockets_maker_hangs_up_and_the_call_goes_on(stream: bool, n_parts: int) -> None:
    """Before the head, after it, and in mid-answer: one call, whose answer the other client gets and the cache stores."""

    async def main() -> None:
        peer = PartwisePeer(STREAM if stream else WHOLE)
        upstream = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
        async with gateway(SETTINGS.replace("PORT", str(upstream.sockets[0].getsockname()[1]))) as (system, port):
            caching = system.gateway.router.routes["m"].policy.cache
            assert caching is not None
            first = connect(port, stream=stream)
            await until(lambda: peer.n_requests == 1)
            other = connect(port, stream=stream)
            calls = system.gateway.coalescer.calls
            (call,) = calls.values()
            await until(lambda: call.n_subscribers == 2)
            peer.permit(n_parts)
            await until(lambda: peer.n_written == n_parts)
            await asyncio.sleep(0.02)
            first.close()
            await until(lambda: call.n_subscribers == 1)
            peer.permit(len(peer.parts) - n_parts)
            async with asyncio.timeout(20):
                body = await read_all(other)
            assert body.count(b'"content":"hi"') == 2 if stream else body.endswith(BODY)
            await until(lambda: caching.store.n_entries == 1 and not calls)
            assert peer.n_requests == 1
            (member,) = system.registry
            assert member.n_in_flight == 0
            other.close()
        upstream.close()

    uvloop.run(main())
