"""Scopes of stored keys where requests come in other ways: jobs, batches, WebSockets; at a real gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.services.keys_rig import call, chat, create, gateways, seconds_until

pytestmark = pytest.mark.sockets


def job_for(model: str) -> dict[str, Any]:
    """A job."""
    return {"endpoint": "/v1/chat/completions", "body": {"model": model, "messages": [{"role": "user", "content": "hi"}],
                                                         "max_tokens": 2}}


def batch_for(model: str) -> dict[str, Any]:
    """A batch of one message."""
    return {"requests": [{"custom_id": "a", "params": {"model": model, "max_tokens": 2, "messages": [
        {"role": "user", "content": "hi"}]}}]}


def test_scopes_hold_for_jobs_batches_and_websockets(tmp_path: Path) -> None:
    """The allowed model runs, another is refused; an open WebSocket ends its answers with the key."""
    with gateways(tmp_path, 1, 1) as (one,):
        key_id, key = create(one, "ci", scopes=["routes:m"])
        seconds_until(lambda: chat(one, key) == 200)
        assert call(one, "POST", "/v1/jobs", key, job_for("m"))[0] in (200, 202)
        status, refused = call(one, "POST", "/v1/jobs", key, job_for("other"))
        assert (status, refused["error"]["code"], refused["error"]["param"]) == (403, "route_not_allowed", "body.model")
        assert call(one, "POST", "/v1/messages/batches", key, batch_for("m"))[0] == 200
        assert call(one, "POST", "/v1/messages/batches", key, batch_for("other"))[0] in (400, 404)
        status, refused = call(one, "POST", "/v1/responses", key, {"model": "other", "input": "hi", "background": True})
        assert (status, refused["error"]["code"]) == (403, "route_not_allowed")
        assert call(one, "GET", "/admin/keys", key)[0] == 403
        assert call(one, "POST", "/admin/keys", key, {"tenant": "acme", "name": "more", "scopes": ["admin"]})[0] == 403
        asyncio.run(_converse(one, key_id, key))


async def _converse(gateway: Any, key_id: str, key: str) -> None:
    """Three messages: allowed, outside the scopes, and after the revocation."""
    url = gateway.url.replace("http", "ws")
    async with connect(f"{url}/v1/responses", additional_headers={"authorization": f"Bearer {key}"}) as socket:
        async def ask(model: str) -> dict[str, Any]:
            await socket.send(json.dumps({"type": "response.create", "model": model, "input": "hi"}))
            while True:
                event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 20))
                if event["type"] in ("error", "response.completed"):
                    return event

        assert (await ask("m"))["type"] == "response.completed"
        refused = await ask("other")
        assert (refused["status"], refused["error"]["code"]) == (403, "route_not_allowed")
        assert (await asyncio.to_thread(call, gateway, "DELETE", f"/admin/keys/{key_id}"))[0] == 200
        await asyncio.to_thread(seconds_until, lambda: chat(gateway, key) == 401)
        refused = await ask("m")
        assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")
    async with connect(f"{url}/v1/jobs/ws", additional_headers={"authorization": f"Bearer {_new_key(gateway)}"}) as socket:
        await socket.send(json.dumps({"type": "submit", **job_for("other")}))
        event = json.loads(await asyncio.wait_for(socket.recv(), 20))
        assert event["error"]["code"] == "route_not_allowed"


def _new_key(gateway: Any) -> str:
    """Another key with the same scopes, once it is in force."""
    _, key = create(gateway, "ws", scopes=["routes:m"])
    seconds_until(lambda: chat(gateway, key) == 200)
    return key
