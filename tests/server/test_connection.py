"""One connection's life: order, keep-alive, HTTP/1.0, 100-continue, time-outs, limits."""

import asyncio
import json

import pytest
import uvloop

from stayfast.core.types import Request
from stayfast.http.server.parser import READ_AHEAD_BYTES
from stayfast.server.config import ServerConfig
from tests.server.fakes import (
    ANSWER,
    CHAT,
    STREAM,
    FakeBackend,
    FakeGateway,
    Step,
    eventually,
    get,
    post,
    record_overrun_parsers,
    record_transports,
    serving,
)

pytestmark = pytest.mark.sockets


def named(model: str, *, stream: bool = False) -> bytes:
    """A chat request for a model of this name."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()


def test_connection_pipelined_responses_are_in_order() -> None:
    """The slow first one holds the quick second one back; a cold and a refused one keep their places."""

    def script(request: Request) -> list[Step]:
        return [0.05 if request.model == "slow" else 0.0, b'{"model":"%b"}' % request.model.encode()]

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(script))) as running:
            client = await running.connect()
            client.send(post(named("slow")) + post(named("quick")) + get("/livez") + get("/nope") + post(named("last")))
            answers = [await client.answer() for _ in range(5)]
            assert [status for status, _, _ in answers] == [200, 200, 200, 404, 200]
            assert [answers[at][2] for at in (0, 1, 4)] == [b'{"model":"slow"}', b'{"model":"quick"}', b'{"model":"last"}']

    uvloop.run(main())


def test_connection_runs_one_request_at_a_time() -> None:
    """Pipelining is no way around admission."""
    running_now = 0
    most = 0

    async def before(request: Request) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.005)
        running_now -= 1

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(before=before))) as running:
            client = await running.connect()
            client.send(post() * 10)
            for _ in range(10):
                assert (await client.answer())[0] == 200
        assert most == 1

    uvloop.run(main())


def test_connection_read_ahead_limit_serves_complete_requests_then_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on, because only reading shows a disconnect; bytes above the read-ahead limit are dropped."""
    overrun = record_overrun_parsers(monkeypatch)

    async def main() -> None:
        gate = asyncio.Event()

        async def before(request: Request) -> None:
            await gate.wait()

        async with serving(FakeBackend(gateway=FakeGateway(before=before))) as running:
            client = await running.connect()
            body = named("m" * 30_000)
            client.send(post(body))
            await eventually(lambda: len(running.backend.gateway.seen) == 1)
            client.send(post(body) * 400)
            await eventually(lambda: bool(overrun))
            await client.writer.drain()  # 12 MB are taken in, so nothing but the answers hold them
            gate.set()
            statuses, told = list[int](), b""
            while not statuses or statuses[-1] == 200:
                status, headers, told = await client.answer()
                statuses.append(status)
            assert (statuses[-1], json.loads(told)["error"]["code"]) == (400, "too_far_ahead")
            assert headers["connection"] == "close"
            assert [request.body for request, _ in running.backend.gateway.seen] == [body] * (len(statuses) - 1)
            assert 2 <= len(statuses) - 1 <= 1 + (READ_AHEAD_BYTES + 256 * 1024) // len(body)  # one read is at most 256 KiB

    uvloop.run(main())


def test_connection_http_10_closes_without_keep_alive() -> None:
    """And it says `connection: keep-alive` when it stays, as 1.0 clients expect."""

    async def main() -> None:
        async with serving() as running:
            plain = await running.ask(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert plain.endswith(ANSWER)
            assert b"connection: close\r\n" in plain
            client = await running.connect()
            client.send(post(CHAT, "/v1/chat/completions", "connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0") * 2)
            for _ in range(2):
                assert (await client.answer())[1]["connection"] == "keep-alive"

    uvloop.run(main())


def test_connection_http_10_stream_is_not_chunked() -> None:
    """1.0 has no other way to say where a body of unknown length ends."""

    async def main() -> None:
        backend = FakeBackend(gateway=FakeGateway(lambda request: [b"data: a\n\n", b"data: b\n\n"]))
        async with serving(backend) as running:
            asked = post(STREAM, "/v1/chat/completions", "connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
            head, _, body = (await running.ask(asked)).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head
            assert body == b"data: a\n\ndata: b\n\n: server-timing call;dur=1.00\n\n"

    uvloop.run(main())


def test_connection_100_continue_is_sent_in_turn() -> None:
    """At once on a free line, after the running answer on a busy one, never unasked."""

    async def main() -> None:
        backend = FakeBackend(gateway=FakeGateway(lambda request: [0.02, ANSWER]))
        async with serving(backend) as running:
            client = await running.connect()
            head = post(CHAT, "/v1/chat/completions", "expect: 100-continue").removesuffix(CHAT)
            client.send(head)
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(CHAT)
            assert (await client.answer())[0] == 200
            client.send(post() + head)
            assert (await client.answer())[0] == 200
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(CHAT)
            assert (await client.answer())[0] == 200
            client.send(head + CHAT)
            assert (await client.answer())[0] == 200

    uvloop.run(main())


_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n"


@pytest.mark.parametrize(("sent", "said"), [
    (b"POST /v1/chat/comp", b"HTTP/1.1 408 "),
    (_HEAD + b"abc", b"HTTP/1.1 408 "),
    (_HEAD.replace(b"content-length: 100", b"transfer-encoding: chunked") + b"5\r\nab", b"HTTP/1.1 408 "),
    (b"", b""),
    (b"\r\n\r\n", b""),
])
def test_connection_slow_client_gets_408(sent: bytes, said: bytes) -> None:
    """Half a head or body: 408. Nothing at all: closed without a word."""

    async def main() -> None:
        config = ServerConfig(port=0, head_timeout_s=0.05, body_timeout_s=0.05, idle_timeout_s=0.05)
        async with serving(FakeBackend(config)) as running:
            answer = await running.ask(sent)
            assert answer[: len(said)] == said
            assert bool(answer) == bool(said)

    uvloop.run(main())


def test_connection_slow_head_has_one_deadline() -> None:
    """Each byte is no new lease: slow-loris ends in head_timeout_s."""

    async def main() -> None:
        async with serving(FakeBackend(ServerConfig(port=0, head_timeout_s=0.1))) as running:
            client = await running.connect()
            for byte in get("/livez", "x: " + "a" * 200):
                client.send(bytes((byte,)))
                await asyncio.sleep(0.002)
                if not running.server.http.connections or running.sink.facts:
                    break
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")

    uvloop.run(main())


def test_connection_idle_timeout_starts_after_last_response() -> None:
    """Keep-alive is counted from the answer, not from the connection's start."""

    async def main() -> None:
        async with serving(FakeBackend(ServerConfig(port=0, idle_timeout_s=0.5))) as running:
            client = await running.connect()
            for _ in range(3):
                await asyncio.sleep(0.3)
                client.send(post())
                assert (await client.answer())[0] == 200
            began_at = asyncio.get_running_loop().time()
            assert await client.rest() == b""
            assert 0.3 < asyncio.get_running_loop().time() - began_at < 2.0

    uvloop.run(main())


def test_connection_long_response_is_not_idle() -> None:
    """Only waiting for a request counts."""

    async def main() -> None:
        backend = FakeBackend(ServerConfig(port=0, idle_timeout_s=0.05, head_timeout_s=0.05, body_timeout_s=0.05),
                              FakeGateway(lambda request: [0.3, ANSWER]))
        async with serving(backend) as running:
            client = await running.connect()
            client.send(post())
            assert (await client.answer())[0] == 200
            assert await client.rest() == b""  # and waiting counts again after it

    uvloop.run(main())


def test_connections_above_limit_are_refused() -> None:
    """503 with Retry-After, and room again when one leaves."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [30.0])
        async with serving(FakeBackend(ServerConfig(port=0, max_connections=2), gateway)) as running:
            clients = [await running.connect() for _ in range(2)]
            for client in clients:
                client.send(post())
            await eventually(lambda: len(gateway.replies) == 2)
            third = await running.connect()
            refused = await third.rest()
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in refused
            clients[0].leave()
            await eventually(lambda: len(running.server.http.connections) == 1)
            fourth = await running.connect()
            fourth.send(get("/livez"))
            assert (await fourth.answer())[0] == 200

    uvloop.run(main())


def test_connections_hundred_concurrent() -> None:
    """Every client gets its own answer, streamed or not."""

    def script(request: Request) -> list[Step]:
        return [0.01, request.model.encode(), 0.01, b"!"]

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(script))) as running:

            async def one(at: int) -> None:
                client = await running.connect()
                for turn in range(3):
                    name = f"m{at}-{turn}"
                    stream = (at + turn) % 2 == 0
                    client.send(post(named(name, stream=stream)))
                    if stream:
                        assert name.encode() in await client.until(b"\r\n0\r\n\r\n")
                    else:
                        assert (await client.answer())[2] == name.encode() + b"!"
                client.leave()

            await asyncio.gather(*(one(at) for at in range(100)))
            assert len(running.backend.gateway.seen) == 300

    uvloop.run(main())


def test_connection_small_segments_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP_NODELAY: a second small chunk does not wait for the client's acknowledgement."""
    transports = record_transports(monkeypatch)

    async def main() -> None:
        async with serving() as running:
            await running.connect()
            await eventually(lambda: len(transports) == 1)
            sock = transports[0].get_extra_info("socket")
            assert sock.getsockopt(6, 1) == 1  # IPPROTO_TCP, TCP_NODELAY

    uvloop.run(main())
