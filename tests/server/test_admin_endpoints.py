"""The admin endpoints, and the bridge that mounts any ASGI application."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.http.server.asgi import AsgiApp, Message, Scope
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer
from stayfast.server.openapi import document
from stayfast.testing import RecordingSink
from tests.server.fakes import Client, FakeBackend, eventually, get, host, parse_head, post, serving

pytestmark = pytest.mark.sockets

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def test_admin_endpoints_return_pages() -> None:
    """Each answers GET with JSON, except metrics, and HEAD with the same head and no body."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            for path in ("/", "/livez", "/readyz", "/healthz", "/health", "/metrics", "/openapi.json", "/v1/models",
                         "/v1/models/m"):
                client.send(get(path))
                status, headers, body = await client.answer()
                assert status == 200
                assert headers["x-request-id"].startswith("req_")
                assert headers["server-timing"].startswith("total;dur=")
                if path != "/metrics":
                    assert json.loads(body)
                client.send(get(path, method="HEAD"))
                status, head = parse_head(await client.until(b"\r\n\r\n"))
                assert (status, head["content-length"]) == (200, str(len(body)))

    uvloop.run(main())


def test_models_endpoint_lists_and_finds_models() -> None:
    """With slashes in their names, quoted or not; a missing one is a 404 in the client's dialect."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(get("/v1/models"))
            assert [model["id"] for model in json.loads((await client.answer())[2])["data"]] == ["m", "vendor/m-2"]
            for path in ("/v1/models/vendor/m-2", "/v1/models/vendor%2Fm-2", "/openai/v1/models/vendor/m-2"):
                client.send(get(path))
                assert json.loads((await client.answer())[2])["id"] == "vendor/m-2"
            client.send(get("/anthropic/v1/models/none"))
            status, _, body = await client.answer()
            assert (status, json.loads(body)["error"]["type"]) == (404, "not_found_error")

    uvloop.run(main())


def test_readyz_503_has_reason() -> None:
    """503 with the reason until an upstream has answered; liveness does not care."""

    async def main() -> None:
        async with serving(FakeBackend(reason="no upstream has answered yet")) as running:
            client = await running.connect()
            client.send(get("/readyz") + get("/livez"))
            status, _, body = await client.answer()
            assert (status, json.loads(body)["reason"]) == (503, "no upstream has answered yet")
            assert (await client.answer())[0] == 200

    uvloop.run(main())


def test_openapi_document_covers_all_endpoints() -> None:
    """Each $ref points at something that is there."""
    told = document("1.2.3")
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
            "/v1/messages/count_tokens", "/v1/models", "/v1/models/{model}", "/readyz", "/metrics"} <= told["paths"].keys()
    text = json.dumps(told)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.split('"')[0] in told["components"]["schemas"]
    assert "messages" in told["components"]["schemas"]["ChatRequest"]["required"]


async def with_app(app: AsgiApp, talk: Callable[[Client], Awaitable[None]]) -> list[str]:
    """Serve `app` in place of the cold endpoints; what it raised."""
    sink, errors = RecordingSink(), list[BaseException]()
    server = GatewayServer(ActiveSystem(FakeBackend()), replace(host(sink, errors), admin_app=app))
    await server.listen()
    client = Client(*await asyncio.open_connection("127.0.0.1", server.addresses()[0][1]))
    try:
        await talk(client)
    finally:
        client.reset()
        server.close()
        await server.app.tasks.wait_until_empty(5)
    return [str(error) for error in errors]


def test_asgi_response_is_chunked_or_has_length() -> None:
    """Unknown length: chunked. One part: its length. Its own length: kept."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        assert scope["client"][0] == "127.0.0.1"
        parts = [b"ab", b"", b"cde"] if scope["path"] == "/livez" else [b"abcde"]
        headers = [(b"content-length", b"5")] if scope["path"] == "/health" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": at < len(parts) - 1})

    async def talk(client: Client) -> None:
        client.send(get("/livez"))
        assert (await client.until(b"0\r\n\r\n")).endswith(b"\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")
        for path in ("/healthz", "/health"):
            client.send(get(path))
            _, headers, body = await client.answer()
            assert body == b"abcde"
            assert list(headers).count("content-length") == 1
        client.send(get("/livez", method="HEAD") + get("/health"))
        head = await client.until(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert (await client.answer())[2] == b"abcde"
        client.send(get("/livez").replace(b"1.1", b"1.0"))
        assert (await client.rest()).endswith(b"\r\n\r\nabcde")

    assert uvloop.run(with_app(app, talk)) == []


def test_asgi_application_receives_body_and_query() -> None:
    """Whole, once."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": scope["query_string"] + message["body"]})

    async def talk(client: Client) -> None:
        client.send(post(b"abc", "/livez?a=b").replace(b"POST", b"GET"))
        assert (await client.answer())[2] == b"a=babc"

    assert uvloop.run(with_app(app, talk)) == []


def test_asgi_application_is_cancelled_with_its_client() -> None:
    """Also while it waits for http.disconnect."""
    ended_at = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await receive()
        finally:
            ended_at.append(SystemClock().now())

    async def talk(client: Client) -> None:
        client.send(get("/livez"))
        await asyncio.sleep(0.05)
        left_at = SystemClock().now()
        client.leave()
        await eventually(lambda: bool(ended_at))
        assert ended_at[0] - left_at < 0.5

    assert uvloop.run(with_app(app, talk)) == []


@pytest.mark.parametrize(("n_sent", "said"), [(0, b"HTTP/1.1 500 "), (1, b"HTTP/1.1 200 ")])
def test_asgi_application_exception_is_reported(n_sent: int, said: bytes) -> None:
    """500 before its first byte; after it the answer breaks off."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        if n_sent:
            await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        raise RuntimeError("a bug")

    async def talk(client: Client) -> None:
        client.send(get("/livez", "connection: close"))
        answer = await client.rest()
        assert answer.startswith(said)
        assert not answer.endswith(b"0\r\n\r\n")

    assert uvloop.run(with_app(app, talk)) == ["a bug"]


def test_asgi_application_without_end_is_reported() -> None:
    """A start without a body is no answer."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def talk(client: Client) -> None:
        client.send(get("/livez"))
        assert (await client.answer())[0] == 500

    assert uvloop.run(with_app(app, talk)) == ["the ASGI application returned before its response was complete"]
