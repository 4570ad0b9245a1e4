"""Stored keys at the edge: what they open, what their scopes refuse and how, and what ends them."""

import json
from hashlib import sha256
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from stayfast.keys.table import LiveKeys
from stayfast.server.auth import digest_key
from stayfast.server.config import ServerConfig
from tests.server.fakes import CHAT, FakeBackend, Running, get, post, serving
from tests.unit.keys.keys_rig import live_keys, stored_key

pytestmark = pytest.mark.sockets
STATIC, ONE = "sf-static-key-of-ops", "sf-stored-key-for-one"
ADMIN, METRICS = "sf-stored-key-of-admin", "sf-stored-for-metrics"
KEYS = (stored_key("key_one", ONE, scopes=("routes:m,vendor/*",)), stored_key("key_admin", ADMIN, scopes=("admin",)),
        stored_key("key_metrics", METRICS, scopes=("metrics",)))
CONFIG = ServerConfig(port=0, keys={"ops": digest_key(STATIC)}, admins=("ops",))


def backend(live: LiveKeys, config: ServerConfig = CONFIG) -> FakeBackend:
    return FakeBackend(config, keys=live)


async def fetch(running: Running, data: bytes) -> tuple[int, dict[str, str], Any]:
    client = await running.connect()
    client.send(data)
    status, headers, body = await client.answer()
    return status, headers, json.loads(body) if body.startswith(b"{") else body


def of_key(key: str) -> str:
    return f"authorization: Bearer {key}"


def test_stored_key_serves_its_routes_and_sets_tenant_and_key() -> None:
    async def main() -> None:
        async with serving(backend(live_keys(*KEYS))) as running:
            assert (await fetch(running, post(CHAT, "/v1/chat/completions", of_key(ONE))))[0] == 200
            arrival = running.backend.gateway.seen[0][1]
            assert (arrival.tenant, arrival.key_id) == ("acme", "key_one")
            assert (await fetch(running, post(CHAT, "/v1/chat/completions", of_key(STATIC))))[0] == 200
            arrival = running.backend.gateway.seen[1][1]
            assert (arrival.tenant, arrival.key_id) == ("ops", "")

    uvloop.run(main())


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/embeddings", {"model": "other", "input": "hi"}), ("/v1/responses", {"model": "other", "input": "hi"}),
    ("/v1/completions", {"model": "other", "prompt": "hi"})])
def test_route_outside_the_scopes_is_403_in_the_dialect(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving(backend(live_keys(*KEYS))) as running:
            status, _, error = await fetch(running, post(json.dumps(body).encode(), path, of_key(ONE)))
            assert (status, error["error"]["code"], error["error"]["param"]) == (403, "route_not_allowed", "model")
            messages = {"model": "other", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
            status, _, error = await fetch(running, post(json.dumps(messages).encode(), "/v1/messages", f"x-api-key: {ONE}"))
            assert (status, error["type"], error["error"]["type"]) == (403, "error", "permission_error")
            assert running.backend.gateway.seen == []

    uvloop.run(main())


def test_models_lists_only_the_routes_of_the_key() -> None:
    async def main() -> None:
        backend_ = backend(live_keys(*KEYS))
        backend_.resumable = frozenset(("hidden",))
        async with serving(backend_) as running:
            _, _, listed = await fetch(running, get("/v1/models", of_key(ONE)))
            assert [model["id"] for model in listed["data"]] == ["m", "vendor/m-2"]
            assert (await fetch(running, get("/v1/models/hidden", of_key(ONE))))[0] == 403
            assert (await fetch(running, get("/v1/models/m", of_key(ONE))))[0] == 200
            _, _, all_of_them = await fetch(running, get("/v1/models", of_key(STATIC)))
            assert len(all_of_them["data"]) == 3

    uvloop.run(main())


@pytest.mark.parametrize(("path", "allowed"), [
    ("/metrics", (STATIC, ADMIN, METRICS)), ("/admin/settings", (STATIC, ADMIN)), ("/debug/state", (STATIC, ADMIN)),
    ("/admin/cache", (STATIC, ADMIN))])
def test_admin_and_metrics_need_their_scope(path: str, allowed: tuple[str, ...]) -> None:
    async def main() -> None:
        async with serving(backend(live_keys(*KEYS))) as running:
            for key in (STATIC, ONE, ADMIN, METRICS):
                assert (await fetch(running, get(path, of_key(key))))[0] == (200 if key in allowed else 403), key

    uvloop.run(main())


def test_stored_key_of_an_admins_tenant_is_no_admin() -> None:
    """The tenant's name in server.admins is that of the static key alone."""
    async def main() -> None:
        live = live_keys(stored_key("key_ops", ONE, tenant="ops", scopes=("routes:*",)))
        async with serving(backend(live)) as running:
            assert (await fetch(running, get("/admin/settings", of_key(ONE))))[0] == 403
            assert (await fetch(running, get("/ui/login", of_key(ONE), "content-length: 0", method="POST")))[0] == 403

    uvloop.run(main())


def test_admin_scope_alone_calls_no_route() -> None:
    async def main() -> None:
        async with serving(backend(live_keys(*KEYS))) as running:
            assert (await fetch(running, post(CHAT, "/v1/chat/completions", of_key(ADMIN))))[0] == 403

    uvloop.run(main())


def test_page_takes_a_stored_admin_key_and_its_session_ends_with_it() -> None:
    async def main() -> None:
        live = live_keys(*KEYS)
        async with serving(backend(live)) as running:
            status, headers, _ = await fetch(running, get("/ui/login", of_key(ADMIN), "content-length: 0", method="POST"))
            assert status == 200
            cookie = f"cookie: {headers['set-cookie'].partition(';')[0]}"
            assert (await fetch(running, get("/admin/settings", cookie)))[0] == 200
            assert (await fetch(running, get("/ui/session", cookie)))[2]["signed_in"] is True
            live.apply([replace(KEYS[1], revoked_at=1.0, version=2)])
            assert (await fetch(running, get("/admin/settings", cookie)))[0] == 401
            assert (await fetch(running, get("/ui/session", cookie)))[2]["signed_in"] is False

    uvloop.run(main())


def test_revoked_key_is_refused_on_an_open_connection() -> None:
    async def main() -> None:
        live = live_keys(*KEYS)
        async with serving(backend(live)) as running:
            client = await running.connect()
            client.send(get("/v1/models", of_key(ONE)))
            assert (await client.answer())[0] == 200
            live.apply([replace(KEYS[0], revoked_at=1.0, version=2)])
            client.send(get("/v1/models", of_key(ONE)))
            assert (await client.answer())[0] == 401

    uvloop.run(main())


def test_unreadable_store_refuses_unknown_keys_with_503_and_serves_static_ones() -> None:
    """Fail closed: a stored key cannot be told from a wrong one. Without any key the answer is 401 as always."""
    async def main() -> None:
        live = live_keys()
        live.is_known = False
        async with serving(backend(live)) as running:
            status, headers, error = await fetch(running, get("/v1/models", of_key(ONE)))
            assert (status, error["error"]["code"]) == (503, "keys_unavailable")
            assert int(headers["retry-after"]) >= 1
            assert (await fetch(running, get("/v1/models")))[0] == 401
            assert (await fetch(running, get("/v1/models", of_key(STATIC))))[0] == 200

    uvloop.run(main())


def test_static_key_takes_precedence_over_a_stored_one_with_the_same_text() -> None:
    async def main() -> None:
        live = live_keys(stored_key("key_same", STATIC, scopes=("metrics",)))
        assert sha256(STATIC.encode()).hexdigest() in CONFIG.keys["ops"]
        async with serving(backend(live)) as running:
            assert (await fetch(running, get("/admin/settings", of_key(STATIC))))[0] == 200

    uvloop.run(main())


def test_required_auth_without_static_keys_serves_stored_ones() -> None:
    async def main() -> None:
        async with serving(backend(live_keys(*KEYS), ServerConfig(port=0, auth="required"))) as running:
            assert (await fetch(running, get("/v1/models", of_key(ONE))))[0] == 200
            assert (await fetch(running, get("/v1/models", of_key(STATIC))))[0] == 401

    uvloop.run(main())


def test_wrong_keys_with_stored_ones_are_limited_as_before() -> None:
    async def main() -> None:
        config = ServerConfig(port=0, auth="required", failed_keys_per_minute=2)
        async with serving(backend(live_keys(*KEYS), config)) as running:
            wrong = [(await fetch(running, get("/v1/models", of_key("sf-a-wrong-key-of-someone"))))[0] for _ in range(4)]
            assert wrong == [401, 401, 429, 429]
            assert (await fetch(running, get("/v1/models", of_key(ONE))))[0] == 200

    uvloop.run(main())
