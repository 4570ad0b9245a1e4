"""Authentication: keys, tenants, and endpoints without a key."""

import json
from typing import Literal

import pytest
import uvloop

from stayfast.core.events import KeysFailed, RequestRefused
from stayfast.server.auth import FailedKeys, digest_key, new_key
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import ServerConfig, check_exposure, is_loopback
from stayfast.wire.request_body import MAX_DEPTH
from tests.server.fakes import CHAT, FakeBackend, get, post, serving

KEY, KEPT = new_key(b"0123456789abcdef")
OTHER, OTHER_KEPT = new_key(b"fedcba9876543210")
GUARDED = ServerConfig(port=0, keys={"acme": KEPT, "beta": OTHER_KEPT})

pytestmark = pytest.mark.sockets


@pytest.mark.parametrize(("line", "tenant"), [
    (f"authorization: Bearer {KEY}", "acme"),
    (f"Authorization: bearer {OTHER}", "beta"),
    (f"x-api-key: {KEY}", "acme"),
    (f"x-goog-api-key: {OTHER}", "beta"),
    ("accept: */*", None),
    (f"authorization: Basic {KEY}", None),
    (f"authorization: Bearer {KEY}x", None),
    (f"authorization: Bearer {KEPT}", None),
    (f"authorization: Bearer {'x' * 5000}", None),
    ("authorization: Bearer", None),
])
def test_auth_valid_key_sets_tenant(line: str, tenant: str | None) -> None:
    """Three headers are accepted; anything else is 401 with a challenge, and never reaches the gateway."""

    async def main() -> None:
        async with serving(FakeBackend(GUARDED)) as running:
            client = await running.connect()
            client.send(post(CHAT, "/v1/chat/completions", line))
            status, headers, body = await client.answer()
            if tenant is None:
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert json.loads(body)["error"]["code"] == "invalid_api_key"
                assert KEY.encode() not in body
                assert running.backend.gateway.seen == []
            else:
                assert status == 200
                assert running.backend.gateway.seen[0][1].tenant == tenant

    uvloop.run(main())


MetricsAccess = Literal["admin", "key", "open"]


@pytest.mark.parametrize(("path", "metrics_access", "status"), [
    ("/livez", "admin", 200), ("/readyz", "admin", 200), ("/healthz", "admin", 200), ("/health", "admin", 200),
    ("/", "admin", 200), ("/openapi.json", "admin", 200), ("/metrics", "admin", 401), ("/metrics", "key", 401),
    ("/metrics", "open", 200), ("/v1/models", "open", 401), ("/v1/models/m", "open", 401), ("/nowhere", "open", 401),
])
def test_auth_open_paths_need_no_key(path: str, metrics_access: MetricsAccess, status: int) -> None:
    """Health is for balancers; names, numbers and even what does not exist are for those with a key."""

    async def main() -> None:
        config = ServerConfig(port=0, keys={"acme": KEPT}, metrics_access=metrics_access)
        async with serving(FakeBackend(config)) as running:
            client = await running.connect()
            client.send(get(path))
            assert (await client.answer())[0] == status

    uvloop.run(main())


_PAGES = ("/metrics", "/debug/state", "/admin/settings", "/admin/cache", f"/admin/cache/{'0' * 64}")


@pytest.mark.parametrize(("metrics_access", "shown"), [("admin", ()), ("key", ("/metrics",)), ("open", ("/metrics",))])
def test_auth_metrics_need_admin_key(metrics_access: MetricsAccess, shown: tuple[str, ...]) -> None:
    """A client's key reads none of them, but for /metrics where the operator says so; an admin's reads all; without keys,
    everybody does.
    """

    async def main() -> None:
        config = ServerConfig(port=0, keys=GUARDED.keys, admins=("beta",),
                              metrics_access=metrics_access)
        async with serving(FakeBackend(config)) as running, serving() as without_keys:
            client, other = await running.connect(), await without_keys.connect()
            for path in _PAGES:
                client.send(get(path, f"x-api-key: {KEY}") + get(path, f"x-api-key: {OTHER}"))
                status, _, body = await client.answer()
                assert status == (200 if path in shown else 403), path
                assert status == 200 or json.loads(body)["error"]["code"] == "admins_only"
                assert (await client.answer())[0] == 200
                other.send(get(path))
                assert (await other.answer())[0] == 200

    uvloop.run(main())


def test_auth_invalid_keys_get_429_and_valid_keys_are_served() -> None:
    """After so many in a minute: 429 with Retry-After; one line for the log, however many they are; a valid key from the
    same address, even on the same connection, is served.
    """

    async def main() -> None:
        config = ServerConfig(port=0, keys={"acme": KEPT}, failed_keys_per_minute=3)
        async with serving(FakeBackend(config)) as running:
            client = await running.connect()
            wrong, right = (post(CHAT, "/v1/chat/completions", f"x-api-key: {key}") for key in (OTHER, KEY))
            for _ in range(3):
                client.send(wrong + right)
                assert [(await client.answer())[0] for _ in range(2)] == [401, 200]
            for _ in range(4):
                client.send(wrong)
                status, headers, body = await client.answer()
                assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_failed_keys")
                assert 1 <= int(headers["retry-after"]) <= 20
                client.send(right)
                assert (await client.answer())[0] == 200
            assert [(fact.n, fact.address, fact.limit) for fact in running.sink.facts_of(KeysFailed)] == [(1, "127.0.0.1",
                                                                                                           3)]
            assert [fact.code for fact in running.sink.facts_of(RequestRefused)] == ["invalid_api_key"] * 3 + [
                "too_many_failed_keys"] * 4

    uvloop.run(main())


def test_failed_keys_are_counted_by_address_and_refill() -> None:
    """Each address has its own; they come back evenly; an IPv6 customer's addresses count as one; memory is bounded."""
    failed = FailedKeys()
    one, other = ("10.0.0.1", 1), ("10.0.0.2", 1)
    assert [failed.count(one, 2, 0.0) for _ in range(3)] == [0.0, 0.0, 30.0]
    assert failed.count(other, 2, 0.0) == 0.0
    assert failed.count(one, 2, 29.0) == pytest.approx(1.0)
    assert failed.count(one, 2, 30.0) == 0.0
    assert failed.count(("2001:db8::1", 1), 1, 0.0) == 0.0
    assert failed.count(("2001:db8::ffff:1", 1), 1, 0.0) == 60.0
    assert failed.count(("2001:db8:0:1::1", 1), 1, 0.0) == 0.0
    assert failed.count(("::ffff:10.0.0.1", 1), 1, 30.0) > 0.0
    assert failed.count(None, 1, 0.0) == 0.0
    assert failed.due_report(100.0) == 4
    assert failed.count(one, 1, 100.0) == 0.0
    assert failed.count(one, 1, 100.0) == 60.0
    assert (failed.due_report(159.0), failed.due_report(160.0), failed.due_report(161.0)) == (0, 1, 0)
    for n in range(2 * FailedKeys.MAX_ADDRESSES):
        failed.count((f"10.1.{n >> 8}.{n & 255}", 1), 1, 200.0)
    assert repr(failed) == f"<FailedKeys: {FailedKeys.MAX_ADDRESSES} addresses>"


def test_idempotency_key_is_hashed_by_tenant() -> None:
    """The provider's account is one for all tenants: the same word of two must not be one key there. A tenant's own is the
    same each time; where there are no tenants it goes on as it came.
    """

    async def main() -> None:
        async with serving(FakeBackend(GUARDED)) as running, serving() as without_keys:
            client, other = await running.connect(), await without_keys.connect()
            for key in (KEY, KEY, OTHER):
                client.send(post(CHAT, "/v1/chat/completions", f"x-api-key: {key}", "idempotency-key: order-7"))
                await client.answer()
            acme, again, beta = (dict(arrival.headers)["idempotency-key"] for _, arrival in running.backend.gateway.seen)
            assert acme == again != beta
            assert all("order-7" not in key and len(key) == 35 for key in (acme, beta))
            other.send(post(CHAT, "/v1/chat/completions", "idempotency-key: order-7"))
            await other.answer()
            assert dict(without_keys.backend.gateway.seen[0][1].headers) == {"idempotency-key": "order-7"}

    uvloop.run(main())


def test_auth_401_has_dialect_of_path() -> None:
    """Anthropic's clients read Anthropic's errors."""

    async def main() -> None:
        async with serving(FakeBackend(GUARDED)) as running:
            client = await running.connect()
            client.send(post(CHAT, "/v1/messages"))
            status, _, body = await client.answer()
            assert (status, json.loads(body)["error"]["type"]) == (401, "authentication_error")

    uvloop.run(main())


def test_auth_cross_site_request_without_keys_is_403() -> None:
    """A page that the operator visits could post to 127.0.0.1; where no key is asked, the browser's word decides."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(post(CHAT, "/v1/chat/completions", "sec-fetch-site: cross-site")
                        + post(CHAT, "/v1/chat/completions", "sec-fetch-site: same-origin"))
            assert [(await client.answer())[0] for _ in range(2)] == [403, 200]

    uvloop.run(main())


_HOSTS = {"localhost": 200, "LocalHost:8090": 200, "127.0.0.1": 200, "127.8.9.1:1": 200, "[::1]": 200, "[::1]:8090": 200,
          "evil.example": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:8090": 403, "10.0.0.1": 403,
          "[::2]": 403, "127.0.0.1:80@evil.example": 400}


@pytest.mark.parametrize("name", _HOSTS)
def test_auth_foreign_host_without_keys_is_403(name: str) -> None:
    """A page whose own name was made to mean 127.0.0.1 is its own site to the browser: only the host's name tells."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            for asked in (post(), get("/v1/models")):
                client.send(asked.replace(b"host: localhost", b"host: " + name.encode()))
                status, _, body = await client.answer()
                assert status == _HOSTS[name]
                if status != 200:
                    assert json.loads(body)["error"]["param"] == "host"
                if status == 400:
                    return
            assert len(running.backend.gateway.seen) == (_HOSTS[name] == 200)

    uvloop.run(main())


@pytest.mark.parametrize(("config", "line"), [
    (GUARDED, f"x-api-key: {KEY}"), (ServerConfig(host="0.0.0.0", port=0, auth="off"), "accept: */*"),
])
def test_auth_any_host_is_accepted_with_keys(config: ServerConfig, line: str) -> None:
    """A key is proof enough; a published container port has whatever name its network gives it."""

    async def main() -> None:
        async with serving(FakeBackend(config)) as running:
            client = await running.connect()
            client.send(post(CHAT, "/v1/chat/completions", line).replace(b"host: localhost", b"host: gateway.example"))
            assert (await client.answer())[0] == 200

    uvloop.run(main())


def test_auth_health_accepts_any_host() -> None:
    """What needs no key needs no name either."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(get("/livez").replace(b"host: localhost", b"host: gateway.example"))
            assert (await client.answer())[0] == 200

    uvloop.run(main())


def test_auth_reload_changes_keys_for_next_request() -> None:
    """On the very connection that used the old one."""

    async def main() -> None:
        async with serving(FakeBackend(GUARDED)) as running:
            client = await running.connect()
            asked = post(CHAT, "/v1/chat/completions", f"x-api-key: {KEY}")
            client.send(asked)
            assert (await client.answer())[0] == 200
            running.current.swap(FakeBackend(ServerConfig(port=0, keys={"beta": OTHER_KEPT})))
            client.send(asked)
            assert (await client.answer())[0] == 401

    uvloop.run(main())


def test_auth_keys_are_random_and_stored_as_digests() -> None:
    """A new key matches its digest; short keys and too little entropy are refused."""
    assert digest_key(KEY) == KEPT
    assert len(KEY) >= 22
    assert KEY != OTHER
    with pytest.raises(ValueError, match="at least 16 characters"):
        digest_key("short")
    with pytest.raises(ValueError, match="16 bytes of entropy"):
        new_key(b"few")


@pytest.mark.parametrize(("host", "is_local"), [
    ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("10.0.0.1", False), ("example.org", False), ("", False),
])
def test_auth_without_keys_listens_on_loopback_only(host: str, *, is_local: bool) -> None:
    """Elsewhere it needs a key, or the operator's explicit word."""
    assert is_loopback(host) is is_local
    if is_local:
        check_exposure(ServerConfig(host=host))
    else:
        with pytest.raises(ValueError, match="no keys"):
            check_exposure(ServerConfig(host=host))
    check_exposure(ServerConfig(host=host, auth="off"))
    check_exposure(ServerConfig(host=host, keys={"acme": KEPT}))


@pytest.mark.parametrize(("setting", "value", "said"), [
    ("port", 65_536, "port must be from"), ("max_body_bytes", 0, "max_body_bytes must be"),
    ("head_timeout_s", 0, "head_timeout_s must be"),
    ("sse_keepalive_s", -1, "sse_keepalive_s must be"), ("idle_timeout_s", float("nan"), "idle_timeout_s must be"),
    ("auth", "maybe", "auth must be one of"),
    ("keys", {"a b": KEPT}, "not a valid name"),
    ("keys", {"acme": "sha256:12"}, "64 hex digits"), ("keys", {"acme": KEY}, "64 hex digits"),
])
def test_server_config_invalid_values_are_rejected(setting: str, value: object, said: str) -> None:
    """A wrong value names itself; a key given in place of its digest is not repeated."""
    with pytest.raises(ValueError, match=said) as caught:
        ServerConfig(**{setting: value})  # type: ignore[arg-type]
    assert KEY not in str(caught.value)


def test_server_config_largest_max_depth_decodes() -> None:
    """One bound for the setting and for the decoder: the largest makes a system, the next names itself."""
    assert ActiveSystem(FakeBackend(ServerConfig(max_depth=MAX_DEPTH))).limits.max_depth == MAX_DEPTH
    with pytest.raises(ValueError, match=f"max_depth must be from 8 to {MAX_DEPTH}"):
        ServerConfig(max_depth=MAX_DEPTH + 1)


def test_server_config_repr_hides_keys() -> None:
    """Digests are no secrets, but they do not belong in logs either."""
    assert KEPT not in repr(GUARDED)
