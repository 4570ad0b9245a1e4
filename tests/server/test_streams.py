"""Streams and their heads: what every answer carries, comments in the silence, errors after the first byte."""

import asyncio
import json
import re
import socket
import struct

import pytest
import uvloop

from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.events import RequestRefused
from stayfast.core.types import Request, Stage
from stayfast.server.config import ServerConfig
from tests.server.fakes import CHAT, STREAM, FakeBackend, FakeGateway, Step, eventually, get, parse_head, post, serving

pytestmark = pytest.mark.sockets

FAILED = UpstreamFailed("fake", Fault.RESET, "the connection broke")


def test_response_has_upstream_and_timing_headers() -> None:
    """Request id, server-timing, upstream and attempts; for streams the timing comes again at the end."""

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [b"data: a\n\n"]))) as running:
            client = await running.connect()
            client.send(post())
            _, whole, _ = await client.answer()
            client.send(post(STREAM))
            _, stream = parse_head(await client.until(b"\r\n\r\n"))
            body = await client.until(b"\r\n0\r\n\r\n")
            for headers in (whole, stream):
                assert re.fullmatch(r"req_[0-9a-f]{16}", headers["x-request-id"])
                assert headers["server-timing"] == "call;dur=1.00"
                assert (headers["x-stayfast-upstream"], headers["x-stayfast-attempts"]) == ("fake", "1")
                assert headers["date"].endswith(" GMT")
            assert whole["x-request-id"] != stream["x-request-id"]
            assert stream["content-type"] == "text/event-stream; charset=utf-8"
            assert (stream["cache-control"], stream["x-accel-buffering"]) == ("no-cache", "no")
            assert body == b"9\r\ndata: a\n\n\r\n1f\r\n: server-timing call;dur=1.00\n\n\r\n0\r\n\r\n"

    uvloop.run(main())


@pytest.mark.parametrize(("stages", "expected"), [
    (None, r"total;dur=\d+\.\d\d"), ("route;dur=0.02, call;dur=5.31", r"route;dur=0.02, call;dur=5.31, total;dur=\d+\.\d\d"),
])
def test_error_has_timing_header(stages: str | None, expected: str) -> None:
    """With the stages that were begun, where it ended a story."""
    failed = UpstreamFailed("fake", Fault.RESET, "the connection broke")
    failed.server_timing = stages

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [failed]))) as running:
            client = await running.connect()
            client.send(post())
            status, headers, _ = await client.answer()
            assert status == 502
            assert re.fullmatch(expected, headers["server-timing"])

    uvloop.run(main())


@pytest.mark.parametrize(("asked", "honoured"), [("my-id_1!~", True), ("a" * 128, True), ("a" * 129, False), ("a b", False)])
def test_client_request_id_is_used(asked: str, *, honoured: bool) -> None:
    """1 to 128 visible ASCII characters come back and go to the gateway; anything else is replaced."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post(CHAT, "/v1/chat/completions", f"x-request-id: {asked}"))
            _, headers, _ = await client.answer()
            assert (headers["x-request-id"] == asked) is honoured
            assert running.backend.gateway.seen[0][1].request_id == headers["x-request-id"]

    uvloop.run(main())


def test_arrival_has_headers_and_deadlines() -> None:
    """Patience, and the headers that go on; no secret is among them."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post(CHAT, "/v1/chat/completions", "x-request-timeout: 2.5", "authorization: Bearer sk-secret",
                             "cookie: a", "anthropic-beta: one", "anthropic-beta: two", "traceparent: 00-1",
                             "x-stainless-retry-count: 1", "x-stainless-read-timeout: 600"))
            await client.answer()
            ((request, arrival),) = running.backend.gateway.seen
            assert request.body == CHAT
            assert arrival.total_s == 2.5
            assert dict(arrival.headers) == {"anthropic-beta": "one, two", "traceparent": "00-1",
                                             "x-stainless-retry-count": "1"}
            assert arrival.tenant is None

    uvloop.run(main())


def test_keepalive_comments_before_first_token() -> None:
    """Head and comment after keepalive_s, more comments, then the tokens, and no comment among them."""

    async def main() -> None:
        async def slow(request: Request) -> None:
            await asyncio.sleep(0.75)

        gateway = FakeGateway(lambda request: [b"data: a\n\n", 0.4, b"data: b\n\n"], slow)
        async with serving(FakeBackend(ServerConfig(port=0, sse_keepalive_s=0.3), gateway)) as running:
            client = await running.connect()
            client.send(post(STREAM))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            body = await client.until(b"\r\n0\r\n\r\n")
            comment = b"e\r\n: keep-alive\n\n\r\n"
            assert body.startswith(comment * 2 + b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n")

    uvloop.run(main())


def test_keepalive_interval_follows_sdk_timeout() -> None:
    """Half of the silence that it bears, so that it does not give up on an answer that is on its way."""

    async def main() -> None:
        async def slow(request: Request) -> None:
            await asyncio.sleep(0.75)

        gateway = FakeGateway(lambda request: [b"data: a\n\n"], slow)
        async with serving(FakeBackend(ServerConfig(port=0, sse_keepalive_s=15), gateway)) as running:
            client = await running.connect()
            client.send(post(STREAM, "/v1/chat/completions", "x-stainless-read-timeout: 0.6"))
            await client.until(b"\r\n\r\n")
            body = await client.until(b"\r\n0\r\n\r\n")
            assert body.startswith(b"e\r\n: keep-alive\n\n\r\n" * 2 + b"9\r\ndata: a")

    uvloop.run(main())


def test_keepalive_interval_has_minimum() -> None:
    """A patience of a nanosecond gets a comment each 100 ms, not one each turn of the loop."""

    async def main() -> None:
        async def slow(request: Request) -> None:
            await asyncio.sleep(0.45)

        gateway = FakeGateway(lambda request: [b"data: a\n\n"], slow)
        async with serving(FakeBackend(ServerConfig(port=0, sse_keepalive_s=15), gateway)) as running:
            client = await running.connect()
            client.send(post(STREAM, "/v1/chat/completions", "x-stainless-read-timeout: 1e-9"))
            body = await client.until(b"\r\n0\r\n\r\n")
            assert 1 <= body.count(b": keep-alive") <= 5

    uvloop.run(main())


@pytest.mark.parametrize(("keepalive_s", "line"), [(0, "x: y"), (0.02, "x-stayfast-keepalive: off")])
def test_keepalive_can_be_disabled_by_header(keepalive_s: float, line: str) -> None:
    """By the operator, or by the client that wants a real status for a late error."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [0.1, FAILED])
        async with serving(FakeBackend(ServerConfig(port=0, sse_keepalive_s=keepalive_s), gateway)) as running:
            client = await running.connect()
            client.send(post(STREAM, "/v1/chat/completions", line))
            assert (await client.answer())[0] == 502

    uvloop.run(main())


def test_keepalive_not_for_whole_answers() -> None:
    """A comment in a JSON answer would break it."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [0.1, b"{}"])
        async with serving(FakeBackend(ServerConfig(port=0, sse_keepalive_s=0.02), gateway)) as running:
            client = await running.connect()
            client.send(post())
            assert (await client.answer())[2] == b"{}"

    uvloop.run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("steps", [[b"data: a\n\n", FAILED], [0.1, FAILED]])
def test_error_after_first_byte_is_an_event(path: str, steps: list[Step]) -> None:
    """After a token, or after no more than a comment: the error in-band, and no last chunk."""
    body = {"/v1/messages": STREAM.replace(b"{", b'{"max_tokens":9,', 1),
            "/v1/responses": b'{"model":"m","input":"hi","stream":true}'}.get(path, STREAM)

    async def main() -> None:
        backend = FakeBackend(ServerConfig(port=0, sse_keepalive_s=0.05), FakeGateway(lambda request: steps))
        async with serving(backend) as running:
            answer = await running.ask(post(body, path))
            assert answer.startswith(b"HTTP/1.1 200 ")
            event = answer.rstrip(b"\r\n").rpartition(b"data: ")[2]
            assert json.loads(event)["error"]["message"] == "the connection broke"
            assert not answer.endswith(b"0\r\n\r\n")
            assert b"[DONE]" not in answer
            assert running.backend.gateway.replies[0].is_closed

    uvloop.run(main())


@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_error_before_first_byte_has_its_status(body: bytes) -> None:
    """And the connection stays usable."""

    async def main() -> None:
        errors = iter([FAILED, DeadlineExceeded(Stage.CALL, "first_token_s", 1.0), StayfastError("no")])
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [next(errors)]))) as running:
            client = await running.connect()
            for status in (502, 504, 500):
                client.send(post(body))
                got, headers, _ = await client.answer()
                assert got == status
                assert headers["server-timing"].startswith("total;dur=")
                assert headers.get("x-stayfast-upstream") == ("fake" if status == 502 else None)
            assert running.sink.facts_of(RequestRefused) == []  # the gateway tells of what reached it

    uvloop.run(main())


@pytest.mark.parametrize(("body", "ends"), [(CHAT, b"}"), (STREAM, b"}\n\n\r\n")])
def test_unexpected_exception_is_500_and_reported(body: bytes, ends: bytes) -> None:
    """An unexpected exception reaches the operator; the client learns only that there was one."""

    async def bug() -> None:
        raise RuntimeError("secret prompt")

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [b"data: a\n\n", bug]))) as running:
            answer = await running.ask(post(body, "/v1/chat/completions", "connection: close"))
            assert b"internal_error" in answer
            assert b"secret" not in answer
            assert answer.endswith(ends)
            assert [str(error) for error in running.errors] == ["secret prompt"]
            running.errors.clear()

    uvloop.run(main())


def test_cancellation_without_disconnect_closes_connection() -> None:
    """If something in the gateway is cancelled by mistake, the connection ends instead of hanging."""

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [cancelled]))) as running:
            client = await running.connect()
            client.send(post())
            assert await client.rest() == b""
            await eventually(lambda: not running.server.http.connections)

    uvloop.run(main())


def test_empty_chunks_do_not_end_stream() -> None:
    """A chunk that holds content for the counters but no bytes is not written: it would be the last."""

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [b"", b"data: a\n\n", b""]))) as running:
            client = await running.connect()
            client.send(post(STREAM) + get("/livez"))
            body = await client.until(b"\r\n0\r\n\r\n")
            assert body.count(b"\r\n0\r\n") == 1
            assert b"data: a\n\n" in body
            assert (await client.answer())[0] == 200

    uvloop.run(main())


def test_disconnect_at_first_token() -> None:
    """Its reset came, but the loop has not read it: the write fails, and nothing else does."""

    async def main() -> None:
        async def vanish(request: Request) -> None:
            vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            vanishing.close()

        gateway = FakeGateway(lambda request: [b"data: a\n\n", b"data: b\n\n", 0.01, b"data: c\n\n"], vanish)
        async with serving(FakeBackend(gateway=gateway)) as running:
            vanishing = socket.create_connection(("127.0.0.1", running.port))
            vanishing.sendall(post(STREAM))
            await eventually(lambda: bool(gateway.replies) and gateway.replies[0].is_closed)
            assert not running.errors

    uvloop.run(main())
