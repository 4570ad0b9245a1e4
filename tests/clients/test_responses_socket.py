"""OpenAI's SDK with `responses.connect`: the Responses API over a WebSocket, in front of upstreams that speak HTTP."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import openai
import pytest
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses import responses_server_event
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.clients.gateway import Gateway
from tests.clients.script import TEXT
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")

ENDINGS = ("response.completed", "response.incomplete", "response.failed", "error")
OPTIONS: Any = {"open_timeout": 20, "close_timeout": 5}


@contextmanager
def connected(client: openai.OpenAI) -> Iterator[ResponsesConnection]:
    """A WebSocket of the SDK."""
    with client.responses.connect(websocket_connection_options=OPTIONS) as connection:
        yield connection


def create(model: str, text: str, **more: Any) -> Any:
    """A `response.create`."""
    return {"type": "response.create", "model": model, "input": text, **more}


def until_end(connection: ResponsesConnection) -> list[Any]:
    """The events up to the end of one response."""
    events: list[Any] = []
    for event in connection:
        events.append(event)
        if event.type in ENDINGS:
            return events
    raise AssertionError("the WebSocket ended before the response")


def raw_socket(gateway: Gateway, path: str = "/v1/responses", **headers: str) -> ClientConnection:
    """A WebSocket without the SDK."""
    return connect(gateway.origin.replace("http", "ws", 1) + path, additional_headers=headers, open_timeout=20, proxy=None)


def next_error(socket: ClientConnection, message: str | bytes) -> dict[str, Any]:
    """The reply to a bad message."""
    socket.send(message)
    error: dict[str, Any] = json.loads(socket.recv(20))
    assert error["type"] == "error"
    return error


def test_every_event_is_one_of_the_sdks_types(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """Created to completed, numbered, of every kind of upstream."""
    with connected(openai_client) as connection:
        connection.send(create(model, marker))
        events = until_end(connection)
    assert all(hasattr(responses_server_event, type(event).__name__) for event in events)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert events[-1].response.output_text == "".join(TEXT)
    assert events[-1].response.model_extra["stayfast"]["attempts"] == 1


def test_previous_response_id_continues_the_conversation(openai_client: openai.OpenAI, upstream: Upstream, model: str,
                                                         marker: str) -> None:
    """Over three turns; the upstream gets all items and stores nothing."""
    with connected(openai_client) as connection:
        connection.send(create(model, f"first {marker}"))
        first = until_end(connection)[-1].response
        connection.send(create(model, "second", previous_response_id=first.id, store=False))
        second = until_end(connection)[-1].response
        connection.send(create(model, "third", previous_response_id=second.id, store=False))
        assert until_end(connection)[-1].type == "response.completed"
    last = upstream.seen(marker)[-1]
    places = [last.text.find(word) for word in ("first", "".join(TEXT), "second", "third")]
    assert -1 not in places
    assert places == sorted(places)
    assert last.text.count("".join(TEXT)) == 2
    assert "previous_response_id" not in last.body


def test_response_without_output_is_continued(openai_client: openai.OpenAI, upstream: Upstream, model: str, marker: str
                                              ) -> None:
    """`generate: false` calls no upstream."""
    with connected(openai_client) as connection:
        connection.send(create(model, f"prepared {marker}", generate=False))
        events = until_end(connection)
        assert [event.type for event in events] == ["response.created", "response.completed"]
        assert upstream.seen(marker) == []
        connection.send(create(model, "go", previous_response_id=events[-1].response.id))
        assert until_end(connection)[-1].type == "response.completed"
    assert "go" in upstream.seen(marker)[0].text


def test_unknown_previous_response_is_an_error_with_its_code(openai_client: openai.OpenAI, model: str) -> None:
    """And the WebSocket goes on."""
    with connected(openai_client) as connection:
        connection.send(create(model, "hi", previous_response_id="resp_none", store=False, stream_id="a"))
        error = until_end(connection)[-1]
        assert (error.status, error.error.code, error.stream_id) == (400, "previous_response_not_found", "a")
        connection.send(create("no-such-model", "hi"))
        error = until_end(connection)[-1]
        assert (error.status, error.error.code, error.stream_id) == (404, "model_not_found", None)
        connection.send(create(model, "hi"))
        assert until_end(connection)[-1].type == "response.completed"


def test_lanes_run_in_parallel_and_each_in_its_order(openai_client: openai.OpenAI, upstream: Upstream, marker: str) -> None:
    """A lane that hangs does not hold up another; its own next response waits."""
    with connected(openai_client) as connection:
        connection.send(create("via-responses", f"{marker}-a1 [[hang_midway]]", stream_id="a"))
        connection.send(create("via-responses", f"{marker}-a2", stream_id="a"))
        upstream.wait_for(f"{marker}-a1").wait_silent()
        connection.send(create("via-responses", f"{marker}-b", stream_id="b"))
        lanes = []
        for event in connection:
            lanes.append(event.stream_id)
            if event.type == "response.completed":
                break
        assert lanes[-1] == "b"
        assert set(lanes) == {"a", "b"}
        assert upstream.seen(f"{marker}-a2") == []
    upstream.wait_for(f"{marker}-a1").wait_left()  # the client has closed the WebSocket


def test_async_client_that_leaves_frees_the_upstream(gateway: Gateway, upstream: Upstream, marker: str) -> None:
    """A cancelled Task closes its WebSocket, and that the calls of its responses."""
    async def read(connection: AsyncResponsesConnection) -> None:
        async for _ in connection:
            pass

    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=gateway.openai_url, api_key="sk-client") as client, \
                client.responses.connect(websocket_connection_options=OPTIONS) as connection:
            await connection.send(create("via-chat", f"{marker} [[hang_midway]]"))
            reading = asyncio.create_task(read(connection))
            await asyncio.to_thread(upstream.wait_for(marker).wait_silent)
            reading.cancel()

    asyncio.run(leave())
    upstream.wait_for(marker).wait_left()


def test_upstream_error_midway_ends_the_response_not_the_socket(openai_client: openai.OpenAI, marker: str) -> None:
    """With the number of the event that it replaces."""
    with connected(openai_client) as connection:
        connection.send(create("via-responses", f"{marker} [[error_midway]]"))
        events = until_end(connection)
        assert events[-1].type == "error"
        assert events[-1].sequence_number == len(events) - 1
        assert events[-1].error.headers["x-stayfast-upstream"] == "responses"
        connection.send(create("via-responses", marker))
        assert until_end(connection)[-1].type == "response.completed"


def test_bad_messages_are_errors_and_the_socket_stays(gateway: Gateway) -> None:
    """JSON, type, fields; each with what was expected."""
    with raw_socket(gateway) as socket:
        assert next_error(socket, "nonsense")["error"]["code"] == "invalid_json"
        assert "response.create" in next_error(socket, '{"type": "response.cancel"}')["error"]["message"]
        assert next_error(socket, b"\x00")["status"] == 400
        assert next_error(socket, '{"type": "response.create", "model": "via-chat"}')["error"]["param"] == "input"
        assert next_error(socket, json.dumps(create("via-chat", "x", background=True)))["error"]["param"] == "background"
        socket.send('{"type": "response.steer", "previous_response_id": "r", "input": "x"}')
        assert json.loads(socket.recv(20))["error"]["code"] == "steering_not_supported"


def test_too_many_responses_and_lanes_are_refused(gateway: Gateway, upstream: Upstream, marker: str) -> None:
    """The seventeenth unfinished response, and the thirty-third lane."""
    with raw_socket(gateway) as socket:
        for n in range(16):
            socket.send(json.dumps(create("via-responses", f"{marker}-{n} [[hang_at_once]]", stream_id=f"lane {n % 3}")))
        refused = next_error(socket, json.dumps(create("via-responses", "x", stream_id="last")))
        assert (refused["status"], refused["error"]["code"], refused["stream_id"]) == (429, "too_many_responses", "last")
        assert refused["error"]["headers"]["retry-after"] == "1"
        upstream.wait_for(f"{marker}-2")
    with raw_socket(gateway) as socket:
        for n in range(32):
            socket.send(json.dumps(create("via-chat", "x", generate=False, stream_id=f"lane {n}")))
            while json.loads(socket.recv(20))["type"] != "response.completed":
                pass
        refused = next_error(socket, json.dumps(create("via-chat", "x", stream_id="one more")))
        assert refused["error"]["code"] == "too_many_lanes"


def test_foreign_origin_is_refused_before_the_upgrade(gateway: Gateway) -> None:
    """As another site's page is without WebSockets; without an upgrade the path is POST's."""
    with pytest.raises(InvalidStatus) as refused:
        raw_socket(gateway, origin="https://evil.example")
    assert refused.value.response.status_code == 403
    with raw_socket(gateway, origin=gateway.origin) as socket:
        assert next_error(socket, "{}")["error"]["param"] == "type"


def test_message_above_the_limit_closes_with_1009(gateway: Gateway) -> None:
    """The limit of a body."""
    with raw_socket(gateway) as socket:
        with suppress(ConnectionClosed):
            socket.send(" " * (33 << 20))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_requests_of_a_socket_are_in_the_log_and_the_metrics(gateway: Gateway, marker: str) -> None:
    """Under ids made from that of the handshake."""
    with raw_socket(gateway, **{"x-request-id": marker}) as socket:
        socket.send(json.dumps(create("via-chat", "x")))
        while json.loads(socket.recv(20))["type"] != "response.completed":
            pass
        output = gateway.errors.with_name("stdout.txt")
        ends_at = time.monotonic() + 20
        while f'"{marker}.1"' not in output.read_text() + gateway.errors.read_text():
            assert time.monotonic() < ends_at
            time.sleep(0.05)
