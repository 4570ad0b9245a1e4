"""WebSockets of a gateway with keys: jobs over one, and what a shutdown does to them."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from stayfast.server.auth import new_key
from tests.clients.gateway import Gateway, started

KEYS = {name: new_key(name.encode() * 8) for name in ("anna", "bert")}
SETTINGS = f"""
server:
  drain_grace_s: 0
  websocket_origins: ["https://app.example.com"]
  keys: {{anna: "{KEYS['anna'][1]}", bert: "{KEYS['bert'][1]}"}}
upstreams: {{sim: {{kind: simulated, ttft: {{median_s: 0.05}}, gaps: {{median_s: 0.01}}, fills_max_tokens: true}}}}
routes: {{m: [sim]}}
jobs: {{path: jobs}}
"""


@contextmanager
def running(folder: Path) -> Iterator[Gateway]:
    """A gateway with two keys and a simulated upstream."""
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS)
    with started(settings, folder) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests that leave it running."""
    with running(tmp_path_factory.mktemp("keyed")) as gateway:
        yield gateway


def opened(gateway: Gateway, path: str, tenant: str = "anna", **headers: str) -> ClientConnection:
    """A WebSocket of one key."""
    return connect(gateway.origin.replace("http", "ws", 1) + path, open_timeout=20, proxy=None,
                   additional_headers={"authorization": f"Bearer {KEYS[tenant][0]}"} | headers)


def read(socket: ClientConnection) -> dict[str, Any]:
    """The next message."""
    message: dict[str, Any] = json.loads(socket.recv(30))
    return message


def submit(socket: ClientConnection, n_tokens: int = 3, **more: Any) -> None:
    """A chat with a stream."""
    body = {"model": "m", "stream": True, "max_tokens": n_tokens, "messages": [{"role": "user", "content": "hi"}]}
    fields = {"endpoint": "/v1/chat/completions", "body": body | more.pop("body", {})}
    socket.send(json.dumps({"type": "submit"} | fields | more))


def until(socket: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """The messages up to the first of these types."""
    messages = [read(socket)]
    while messages[-1]["type"] not in kinds:
        messages.append(read(socket))
    return messages


def refused(gateway: Gateway, path: str, tenant: str = "anna", **headers: str) -> int:
    """The status of a handshake that fails."""
    with pytest.raises(InvalidStatus) as failed:
        opened(gateway, path, tenant, **headers)
    return failed.value.response.status_code


def test_submitted_job_is_queued_then_streamed_then_ended(keyed: Gateway) -> None:
    """And the same events come again, after any of them, on its own WebSocket."""
    with opened(keyed, "/v1/jobs/ws") as socket:
        submit(socket)
        messages = until(socket, "result")
    assert messages[0]["type"] == "queued"
    assert messages[0]["place"] >= 1
    job_id, result = messages[0]["id"], messages[-1]
    events = [message for message in messages if message["type"] == "event"]
    assert [event["id"] for event in events] == [f"1-{n}" for n in range(len(events))]
    text = "".join(event["data"]["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert (result["id"], result["status"], events[-1]["data"]) == (job_id, "completed", "[DONE]")
    assert text == result["result"]["body"]["choices"][0]["message"]["content"]
    for n in range(len(events)):
        with opened(keyed, f"/v1/jobs/{job_id}/ws?after={events[n]['id']}") as socket:
            again = until(socket, "result")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(20)
        assert [message for message in again if message["type"] == "event"] == events[n + 1:]
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_job_of_another_key_is_unknown_before_the_upgrade(keyed: Gateway) -> None:
    """As an id that never was; and its cancellation fails."""
    with opened(keyed, "/v1/jobs/ws") as socket:
        submit(socket)
        job_id = until(socket, "result")[-1]["id"]
    assert refused(keyed, f"/v1/jobs/{job_id}/ws", "bert") == 404
    assert refused(keyed, "/v1/jobs/job_none/ws") == 404
    with opened(keyed, "/v1/jobs/ws", "bert") as socket:
        socket.send(json.dumps({"type": "cancel", "id": job_id}))
        assert read(socket)["error"]["code"] == "job_not_found"


def test_handshake_without_key_or_from_a_foreign_page_is_refused(keyed: Gateway) -> None:
    """By status; pages of the setting may."""
    for path in ("/v1/responses", "/v1/jobs/ws", "/openai/v1/responses"):
        assert refused(keyed, path, authorization="Bearer wrong-key-of-some-length") == 401
        assert refused(keyed, path, origin="https://evil.example") == 403
        with opened(keyed, path, origin="https://app.example.com") as socket:
            socket.send("{}")
            assert read(socket)["type"] == "error"


def test_running_job_is_cancelled_by_a_message(keyed: Gateway) -> None:
    """Its follower reports the end; the WebSocket takes no other message of another job."""
    with opened(keyed, "/v1/jobs/ws") as socket:
        submit(socket, 5000)
        job_id = until(socket, "event")[-1]["job"]
        with opened(keyed, f"/v1/jobs/{job_id}/ws") as follower:
            follower.send('{"type": "submit", "body": {}}')
            assert until(follower, "error")[-1]["error"]["param"] == "type"
        socket.send(json.dumps({"type": "cancel", "id": job_id}))
        result = until(socket, "result")[-1]
    assert result["status"] == "cancelled", result
    assert result["error"]["code"] == "cancelled"


def test_bad_submissions_are_errors_with_the_field(keyed: Gateway) -> None:
    """And the WebSocket stays."""
    with opened(keyed, "/v1/jobs/ws") as socket:
        submit(socket, unknown=1)
        assert "unknown" in read(socket)["error"]["message"]
        submit(socket, body={"messages": 3})
        assert read(socket)["error"]["param"] == "body.messages"
        submit(socket, body={"model": "none"})
        assert read(socket)["status"] == 404
        submit(socket, idempotency_key="")
        assert read(socket)["error"]["code"] == "bad_idempotency_key"


def test_shutdown_closes_idle_sockets_and_ends_running_responses(tmp_path: Path) -> None:
    """1001 in both cases; a new response is refused meanwhile."""
    create = {"type": "response.create", "model": "m", "input": "hi", "max_output_tokens": 150}
    with running(tmp_path) as gateway, opened(gateway, "/v1/responses") as idle, opened(gateway, "/v1/jobs/ws") as jobs, \
            opened(gateway, "/v1/responses") as busy:
        busy.send(json.dumps(create))
        until(busy, "response.output_text.delta")
        os.kill(gateway.pid, signal.SIGTERM)
        for socket in (idle, jobs):
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        busy.send(json.dumps(create | {"stream_id": "late"}))
        messages = until(busy, "response.incomplete", "response.completed")
        assert [message["error"]["code"] for message in messages if message["type"] == "error"] in ([], ["draining"])
        with pytest.raises(ConnectionClosed) as closed:
            until(busy, "nothing more")
        os.waitid(os.P_PID, gateway.pid, os.WEXITED | os.WNOWAIT)  # a second SIGTERM would end it at once
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
