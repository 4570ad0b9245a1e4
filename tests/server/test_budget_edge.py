"""Deadlines set by clients, and headers that mark degraded answers."""

import pytest
import uvloop

from stayfast.server.http_request import parse_sdk_timeout_s
from stayfast.wire.client_headers import parse_client_timeout_s
from tests.server.fakes import ANSWER, CHAT, STREAM, FakeBackend, FakeGateway, Step, post, serving


@pytest.mark.parametrize(("name", "said", "expected_s"), [
    ("x-request-timeout", "2.5", 2.5), ("x-stayfast-deadline", "0.25", 0.25), ("x-litellm-timeout", "30", 30.0),
    ("x-request-timeout-ms", "250", 0.25), ("x-stayfast-deadline-ms", "1", 0.001), ("x-deadline-ms", "86400000", 86_400.0),
    ("x-envoy-expected-rq-timeout-ms", "15000", 15.0),
    ("grpc-timeout", "2H", 7200.0), ("grpc-timeout", "3M", 180.0), ("grpc-timeout", "4S", 4.0),
    ("grpc-timeout", "250m", 0.25), ("grpc-timeout", "1500u", 0.0015), ("grpc-timeout", "99999999n", 0.099999999),
])
def test_deadline_header_limits_request(name: str, said: str, expected_s: float) -> None:
    """In each form that clients and proxies use, as seconds."""
    assert parse_client_timeout_s({name.encode(): said.encode()}) == pytest.approx(expected_s)


def test_deadline_headers_shortest_counts() -> None:
    """A proxy that adds its own deadline does not lengthen the client's."""
    assert parse_client_timeout_s({b"x-request-timeout": b"3", b"x-deadline-ms": b"1500", b"grpc-timeout": b"2S"}) == 1.5
    assert parse_client_timeout_s({}) is None


@pytest.mark.parametrize(("said", "expected_s"), [
    ({b"x-stainless-read-timeout": b"600"}, 600.0), ({b"x-stainless-timeout": b"20.0"}, 20.0),
    ({b"x-stainless-read-timeout": b"5", b"x-stainless-timeout": b"NOT_GIVEN"}, 5.0),
    ({b"x-stainless-timeout": b"Timeout(connect=5.0)"}, None), ({b"x-stainless-timeout": b"-1"}, None),
    ({b"x-stainless-timeout": b"nan"}, None), ({b"x-stainless-timeout": b"600, 600"}, None), ({}, None),
])
def test_deadline_from_sdk_headers(said: dict[bytes, bytes], expected_s: float | None) -> None:
    """Numbers are taken; whatever else SDKs write there is ignored, since no user wrote it."""
    assert parse_sdk_timeout_s(said) == expected_s


@pytest.mark.sockets
@pytest.mark.parametrize(("line", "words"), [
    ("x-stayfast-deadline: soon", "x-stayfast-deadline must be seconds, more than 0 and at most 86400."),
    ("x-deadline-ms: 0", "x-deadline-ms must be milliseconds, more than 0 and at most 86400000."),
    ("x-request-timeout-ms: 1e99", "x-request-timeout-ms must be milliseconds"),
    ("grpc-timeout: 5", "grpc-timeout must be digits and a unit of H, M, S, m, u or n, and more than 0."),
    ("grpc-timeout: 0S", "grpc-timeout must be digits"), ("grpc-timeout: 123456789S", "grpc-timeout must be digits"),
])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_deadline_header_malformed_is_400(path: str, line: str, words: str) -> None:
    """400 in the client's dialect, naming the header."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post(CHAT, path, line))
            status, _, body = await client.answer()
            assert status == 400
            assert words.encode() in body
            assert (b'"param":"' + line.split(":", 1)[0].encode() in body) is (path != "/v1/messages")

    uvloop.run(main())


@pytest.mark.sockets
@pytest.mark.parametrize("extension", [b'{"deadline_ms":0}', b'{"deadline_ms":"soon"}', b'{"deadline":1}', b"[]", b"5"])
def test_deadline_in_body_malformed_is_400(extension: bytes) -> None:
    """400 naming the field."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post(CHAT[:-1] + b',"stayfast":' + extension + b"}"))
            status, _, body = await client.answer()
            assert status == 400
            assert b'"param":"stayfast' in body

    uvloop.run(main())


@pytest.mark.sockets
def test_deadline_of_every_api_reaches_gateway() -> None:
    """Header, SDK and body; the body's own member goes no further."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post(CHAT[:-1] + b',"stayfast":{"deadline_ms":1500},"seed":7}', "/v1/chat/completions",
                             "x-deadline-ms: 4000", "x-stainless-read-timeout: 5"))
            await client.answer()
            ((request, arrival),) = running.backend.gateway.seen
            assert (arrival.total_s, arrival.silence_s, request.client_timeout_s) == (4.0, 5.0, 1.5)
            assert request.body == CHAT[:-1] + b',"seed":7}'

    uvloop.run(main())


@pytest.mark.sockets
@pytest.mark.parametrize("stream", [True, False])
def test_degraded_answer_has_header(stream: bool) -> None:
    """By a header; a stream says it once more at its end, where a partial answer first knows."""

    async def main() -> None:
        steps: list[Step] = [b"data: a\n\n"] if stream else [ANSWER]
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: steps, degraded="fallback"))) as running:
            client = await running.connect()
            client.send(post(STREAM if stream else CHAT))
            head = await client.until(b"\r\n\r\n")
            assert b"\r\nx-stayfast-degraded: fallback\r\n" in head
            if stream:
                assert b"\n: x-stayfast-degraded fallback\n\n: server-timing" in await client.until(b"\r\n0\r\n\r\n")

    uvloop.run(main())
