"""Over real sockets: whoever made a call that others share hangs up while it waits, and the call goes on."""

import asyncio
import socket

import pytest
import uvloop

from tests.flow.test_cancellation_sockets import EVENT, HEAD, gateway, until

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {{port: 0}}
upstreams: {{up: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", probe: false}}}}
routes: {{m: {{upstreams: [up], cache: {{mode: exact, max_temperature: 1}}}}}}
"""
BODY = (b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"hihi"},"finish_reason":"stop"}]}')
LAST = EVENT.replace(b'{"content":"hi"}', b"{}").replace(b'"finish_reason":null', b'"finish_reason":"stop"')
END = LAST + b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = [HEAD, chunk(EVENT), chunk(EVENT), chunk(END) + b"0\r\n\r\n"]
WHOLE = [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY),
         BODY[:40], BODY[40:]]


class Peer:
    """An upstream that says one part of its answer each time it may."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.n_asked = 0
        self.may = asyncio.Semaphore(0)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        self.n_asked += 1
        for part in self.parts:
            await self.may.acquire()
            writer.write(part)
            await writer.drain()
        await reader.read()
        writer.close()


async def read(client: socket.socket) -> bytes:
    """All that comes."""
    loop, parts = asyncio.get_running_loop(), []
    while part := await loop.sock_recv(client, 65_536):
        parts.append(part)
    return b"".join(parts)


def ask(port: int, *, stream: bool) -> socket.socket:
    """A client that has sent its request, and wants the connection closed after the answer."""
    body = b'{"model":"m","stream":%s,"messages":[{"role":"user","content":"x"}]}' % (b"true" if stream else b"false")
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"x-stayfast-keepalive: off\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    return client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n_parts", [0, 1, 2])
def test_coalesce_over_sockets_maker_hangs_up_and_the_call_goes_on(stream: bool, n_parts: int) -> None:
    """Before the head, after it, and in mid-answer: one call, whose answer the other client gets and the cache stores."""

    async def main() -> None:
        peer = Peer(STREAM if stream else WHOLE)
        upstream = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
        async with gateway(upstream.sockets[0].getsockname()[1], SETTINGS) as (system, port):
            caching = system.gateway.router.routes["m"].policy.cache
            assert caching is not None
            first = ask(port, stream=stream)
            await until(lambda: peer.n_asked == 1)
            other = ask(port, stream=stream)
            calls = system.gateway.coalescer.calls
            (call,) = calls.values()
            await until(lambda: len(call._subscribers) == 2)
            for _ in range(n_parts):
                peer.may.release()
            await until(lambda: not peer.may._value)
            await asyncio.sleep(0.02)
            first.close()
            await until(lambda: len(call._subscribers) == 1)
            for _ in range(len(peer.parts) - n_parts):
                peer.may.release()
            async with asyncio.timeout(20):
                body = await read(other)
            assert body.count(b'"content":"hi"') == 2 if stream else body.endswith(BODY)
            await until(lambda: caching.store.n_entries == 1 and not calls)
            assert peer.n_asked == 1
            (member,) = system.registry
            assert member.n_in_flight == 0
            other.close()
        upstream.close()

    uvloop.run(main())
