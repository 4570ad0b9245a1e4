"""What an open listener is sent: each shape has its status, in the path's dialect; smuggling shapes end the connection."""

import json

import pytest
import uvloop

from stayfast.core.events import RequestRefused
from stayfast.server.config import ServerConfig
from tests.server.fakes import CHAT, FakeBackend, get, parse_head, post, serving

pytestmark = pytest.mark.sockets

_P = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
_BROKEN = {
    "second content-length, same": _P + b"content-length: 1\r\ncontent-length: 1\r\n\r\na",
    "second content-length, other": _P + b"content-length: 1\r\ncontent-length: 2\r\n\r\na",
    "content-length list": _P + b"content-length: 1, 1\r\n\r\na",
    "content-length negative": _P + b"content-length: -1\r\n\r\na",
    "content-length with sign": _P + b"content-length: +1\r\n\r\na",
    "content-length hex": _P + b"content-length: 0x1\r\n\r\na",
    "content-length empty": _P + b"content-length: \r\n\r\na",
    "content-length beyond 64 bits": _P + b"content-length: 99999999999999999999999\r\n\r\na",
    "content-length before a space": _P + b"content-length : 1\r\n\r\na",
    "content-length and chunked": _P + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and content-length": _P + b"transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n0\r\n\r\n",
    "transfer-encoding identity": _P + b"transfer-encoding: identity\r\n\r\nabc",
    "transfer-encoding gzip, chunked": _P + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "transfer-encoding chunked, gzip": _P + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "transfer-encoding xchunked": _P + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "transfer-encoding twice": _P + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "transfer-encoding after a vertical tab": _P + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "transfer-encoding in 1.0": b"POST /v1/chat/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "content-length in a trailer": _P + b"transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 5\r\n\r\n",
    "chunk size not hex": _P + b"transfer-encoding: chunked\r\n\r\nz\r\n",
    "chunk size negative": _P + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
    "chunk size with prefix": _P + b"transfer-encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "chunk size beyond 64 bits": _P + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "chunk size before a space": _P + b"transfer-encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
    "chunk longer than its size": _P + b"transfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "chunk line with bare LF": _P + b"transfer-encoding: chunked\r\n\r\n1\na\n0\n\n",
    "chunk extension with bare LF": _P + b"transfer-encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nhost: t\r\nx: a\r\n b\r\n\r\n",
    "bare LF after the request line": b"GET / HTTP/1.1\nhost: t\r\n\r\n",
    "bare LF after a header": b"GET / HTTP/1.1\r\nhost: t\nx: b\r\n\r\n",
    "bare LF as the last line": b"GET / HTTP/1.1\r\nhost: t\r\n\n",
    "bare CR in a header": b"GET / HTTP/1.1\r\nhost: t\rx: b\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nhost: t\r\nx: a\0b\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nhost: t\r\nx\0: a\r\n\r\n",
    "control byte in a value": b"GET / HTTP/1.1\r\nhost: t\r\nx: a\x01b\r\n\r\n",
    "header without a name": b"GET / HTTP/1.1\r\nhost: t\r\n: a\r\n\r\n",
    "header without a colon": b"GET / HTTP/1.1\r\nhost: t\r\nfoo\r\n\r\n",
    "unknown method": b"GOT / HTTP/1.1\r\nhost: t\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nhost: t\r\n\r\n",
    "tab after the method": b"GET\t/ HTTP/1.1\r\nhost: t\r\n\r\n",
    "TLS on a plain port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version": b"GET /\r\n\r\n",
    "version 0.9": b"GET / HTTP/0.9\r\nhost: t\r\n\r\n",
    "version 1.2": b"GET / HTTP/1.2\r\nhost: t\r\n\r\n",
    "version 2.0": b"GET / HTTP/2.0\r\nhost: t\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "lower-case protocol": b"GET / http/1.1\r\nhost: t\r\n\r\n",
    "target without a slash": b"GET foo HTTP/1.1\r\nhost: t\r\n\r\n",
    "target with a space": b"GET /a b HTTP/1.1\r\nhost: t\r\n\r\n",
    "target not ASCII": b"GET /\xff HTTP/1.1\r\nhost: t\r\n\r\n",
    "target with a fragment": b"GET /livez#a HTTP/1.1\r\nhost: t\r\n\r\n",
    "target is a star": b"OPTIONS * HTTP/1.1\r\nhost: t\r\n\r\n",
    "no host in 1.1": b"GET / HTTP/1.1\r\n\r\n",
    "host twice": b"GET / HTTP/1.1\r\nhost: t\r\nhost: t\r\n\r\n",
    "host with a space": b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
    "host with a slash": b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n",
    "authorization twice": _P + b"authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
    "RTSP": b"DESCRIBE rtsp://a/ RTSP/1.0\r\nhost: t\r\n\r\n",
}


@pytest.mark.parametrize("shape", _BROKEN)
def test_malformed_request_is_400_and_closes(shape: str) -> None:
    """One 400, as JSON, with connection: close; the request behind it is never looked at."""

    async def main() -> None:
        async with serving() as running:
            answer = await running.ask(_BROKEN[shape] + get("/livez"))
            head, _, body = answer.partition(b"\r\n\r\n")
            status, headers = parse_head(head)
            assert (status, headers["connection"]) == (400, "close")
            assert json.loads(body)["error"]["type"] == "invalid_request_error"
            assert len(body) == int(headers["content-length"])
            assert running.backend.gateway.seen == []
            assert [fact.status for fact in running.sink.facts_of(RequestRefused)] == [400]

    uvloop.run(main())


def test_http2_preface_is_reported() -> None:
    """And not in the parser's own words."""

    async def main() -> None:
        async with serving() as running:
            assert b"This is not HTTP/1.1: HTTP/2 is not supported." in await running.ask(_BROKEN["HTTP/2 preface"])

    uvloop.run(main())


_REFUSED = [
    (get("/v1/chat/completions"), 405, "method_not_allowed"),
    (get("/livez", method="DELETE"), 405, "method_not_allowed"),
    (get("/v1/models", method="PURGE"), 405, "method_not_allowed"),
    (get("/nowhere"), 404, "not_found"),
    (post(path="/v1/chat/completions/"), 404, "not_found"),
    (post(b"{}"), 400, "missing_field"),
    (post(b""), 400, "invalid_json"),
    (post(b"\xff"), 400, "invalid_json"),
    (post(b"[" * 100_000), 400, "too_deep"),
    (post(CHAT, "/v1/chat/completions", "x-request-timeout: soon"), 400, "bad_timeout"),
    (post(CHAT, "/v1/chat/completions", "x-request-timeout: nan"), 400, "bad_timeout"),
    (post(CHAT, "/v1/chat/completions", "x-request-timeout: 1_0"), 400, "bad_timeout"),
    (post(CHAT, "/v1/chat/completions", "x-litellm-timeout: -1"), 400, "bad_timeout"),
    (post(CHAT, "/v1/chat/completions", "idempotency-key: \xe9").replace("é".encode(), b"\xe9"), 400, "bad_header"),
    (post(CHAT, "/v1/chat/completions", "content-encoding: gzip"), 415, "unsupported_content_encoding"),
]


@pytest.mark.parametrize(("request_bytes", "status", "code"), _REFUSED)
def test_refused_request_keeps_connection(request_bytes: bytes, status: int, code: str) -> None:
    """What is whole but wrong gets its 4xx, and the next request on the connection its answer."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(request_bytes + post())
            got, headers, body = await client.answer()
            assert (got, json.loads(body)["error"]["code"]) == (status, code)
            assert ("allow" in headers) == (status == 405)
            assert (await client.answer())[0] == 200

    uvloop.run(main())


_MEDIA = {"application/json": 200, "application/json; charset=utf-8": 200, "application/json;charset=UTF-8": 200,
          "Application/JSON": 200, "application/vnd.api+json": 200, "": 200, "text/plain": 415, "multipart/form-data": 415,
          "application/json; charset=latin-1": 415, "application/jsonx": 415, "application/x-www-form-urlencoded": 415}


@pytest.mark.parametrize("media", _MEDIA)
def test_content_type_other_than_utf8_json_is_415(media: str) -> None:
    """415 for another content type; one that is empty passes."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post().replace(b"application/json", media.encode()))
            assert (await client.answer())[0] == _MEDIA[media]

    uvloop.run(main())


def test_content_type_absent_is_accepted() -> None:
    """curl -d without -H is a common first try, and harmless."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post().replace(b"content-type: application/json\r\n", b""))
            assert (await client.answer())[0] == 200

    uvloop.run(main())


def test_errors_have_dialect_of_path() -> None:
    """Anthropic's shape on Anthropic's paths, even when the head is broken after the path."""

    async def main() -> None:
        async with serving() as running:
            for data in (post(b"{}", "/v1/messages"), post(b"{}", "/anthropic/v1/messages"), get("/anthropic/v1/nothing"),
                         b"POST /v1/messages HTTP/1.1\r\nhost: t\r\nx: a\0b\r\n\r\n"):
                answer = await running.ask(data.replace(b"host: ", b"connection: close\r\nhost: "))
                said = json.loads(answer.partition(b"\r\n\r\n")[2])
                assert said["type"] == "error", said
                assert said["error"]["type"] in ("invalid_request_error", "not_found_error")

    uvloop.run(main())


@pytest.mark.parametrize("data", [
    post(b"x" * 3000),
    _P + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n"
    + b"400\r\n" + b"x" * 1024 + b"\r\n" + b"1\r\nx\r\n",
    post(b"x" * 10, "/v1/chat/completions", "expect: 100-continue").replace(b"content-length: 10", b"content-length: 9999"),
])
def test_body_too_large_is_413(data: bytes) -> None:
    """Whether its length was announced or not; nothing of it is kept."""

    async def main() -> None:
        async with serving(FakeBackend(ServerConfig(port=0, max_body_bytes=2048))) as running:
            answer = await running.ask(data)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close\r\n" in answer

    uvloop.run(main())


def test_body_too_large_is_413_while_client_sends() -> None:
    """The refusal is not wiped out by a reset while megabytes are on their way."""

    async def main() -> None:
        async with serving(FakeBackend(ServerConfig(port=0, max_body_bytes=2048))) as running:
            client = await running.connect()
            client.send(post(b"x" * 8_000_000))
            assert (await client.rest()).startswith(b"HTTP/1.1 413 ")

    uvloop.run(main())


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"a" * 5000,
    b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"a" * 5000 + b"\r\n\r\n",
    b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: t\r\n\r\n",
    b"GET /" + b"a" * 5000,
    b"GET / HTTP/1.1\r\nhost: t\r\n" + b"x: a\r\n" * 11 + b"\r\n",
    _P + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x: a\r\n" * 30 + b"y: b",
])
def test_head_too_large_is_431(data: bytes) -> None:
    """One long line, many short ones, or trailers without end; whole or not, in one read or in many."""

    async def main() -> None:
        config = ServerConfig(port=0, max_head_bytes=2048, max_headers=10, head_timeout_s=5)
        async with serving(FakeBackend(config)) as running:
            client = await running.connect()
            for at in range(0, len(data), 1000):
                client.send(data[at : at + 1000])
                await client.writer.drain()
            assert (await client.rest()).startswith(b"HTTP/1.1 431 ")

    uvloop.run(main())


def test_partial_request_and_eof_closes_without_report() -> None:
    """No answer, no exception, no trace of it."""

    async def main() -> None:
        async with serving() as running:
            for data in (b"POST /v1/ch", _P, _P + b"content-length: 10\r\n\r\nabc"):
                client = await running.connect()
                client.send(data)
                client.writer.write_eof()
                assert await client.rest() == b""
                client.leave()
            assert running.sink.facts == []

    uvloop.run(main())


def test_upgrade_header_is_ignored() -> None:
    """JDK's client offers h2c with every first request: it is served, its body included, and so is what follows."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            offer = post(CHAT, "/v1/chat/completions", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c",
                         "http2-settings: x")
            client.send(offer + offer + get("/livez"))
            assert [(await client.answer())[0] for _ in range(3)] == [200, 200, 200]
            assert [request.body for request, _ in running.backend.gateway.seen] == [CHAT, CHAT]
            assert (await running.ask(b"CONNECT t:80 HTTP/1.1\r\nhost: t\r\n\r\nraw")).startswith(b"HTTP/1.1 405 ")

    uvloop.run(main())


def test_absolute_target_and_query_are_accepted() -> None:
    """RFC 9112, 3.2.2: a server must accept the absolute form."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post().replace(b" /v1", b" http://t:80/v1") + post(path="/openai/v1/chat/completions?api-version=1"))
            assert [(await client.answer())[0] for _ in range(2)] == [200, 200]

    uvloop.run(main())
