"""The sign-in to the page: who gets a cookie, what it authorises, and what ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import uvloop

from stayfast.server.auth import digest_key
from stayfast.server.config import ServerConfig
from stayfast.server.ui.sessions import SESSION_S, Sessions
from tests.ports import free_port
from tests.server.fakes import FakeBackend, Running, get, post, serving

pytestmark = pytest.mark.sockets

ADMIN_KEY, USER_KEY = "an-admin-key-that-is-long", "a-user-key-that-is-long"
CONFIG = ServerConfig(port=0, keys={"boss": digest_key(ADMIN_KEY), "app": digest_key(USER_KEY)}, admins=("boss",),
                      failed_keys_per_minute=3)
NOW = 1_800_000_000.0
DATA = ("/admin/requests", "/admin/requests/r%2F1", "/admin/cache", "/admin/gateways", "/debug/state", "/metrics")


async def fetch(running: Running, data: bytes) -> tuple[int, dict[str, str], bytes]:
    client = await running.connect()
    client.send(data)
    return await client.answer()


async def sign_in(running: Running, *lines: str, key: str = ADMIN_KEY) -> tuple[int, dict[str, str], bytes]:
    return await fetch(running, get("/ui/login", f"authorization: Bearer {key}", "content-length: 0", *lines, method="POST"))


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def cookie_for(sessions: Sessions) -> dict[bytes, bytes]:
    """The header that a browser sends back."""
    line = sessions.make_cookie("boss", CONFIG, NOW, "0a" * 16, is_secure=False)
    return {b"cookie": line.partition(";")[0].encode()}


def test_session_is_accepted_by_each_worker_and_ends_with_its_time() -> None:
    """Two workers have one secret; another parent has another."""
    one, other, foreign = Sessions(b"s" * 32), Sessions(b"s" * 32), Sessions(b"t" * 32)
    fields = cookie_for(one)
    assert other.authenticate(fields, CONFIG, NOW + SESSION_S - 1) == "boss"
    assert other.authenticate(fields, CONFIG, NOW + SESSION_S + 1) is None
    assert foreign.authenticate(fields, CONFIG, NOW) is None
    renamed = {b"cookie": fields[b"cookie"].replace(one.cookie_name.encode(), foreign.cookie_name.encode())}
    assert foreign.authenticate(renamed, CONFIG, NOW) is None


@pytest.mark.parametrize("config", [
    replace(CONFIG, keys={**CONFIG.keys, "boss": digest_key("another-key-that-is-long")}),
    replace(CONFIG, keys={**CONFIG.keys, "new": digest_key("another-key-that-is-long")}),
    replace(CONFIG, admins=("app",)), replace(CONFIG, admins=("app", "boss")),
])
def test_changed_key_table_ends_every_session(config: ServerConfig) -> None:
    sessions = Sessions(b"s" * 32)
    assert sessions.authenticate(cookie_for(sessions), config, NOW) is None


@pytest.mark.parametrize("change", [
    lambda value: value.replace(b"boss", b"app"), lambda value: value[:-1], lambda value: value + b"0",
    lambda value: value.replace(b"1800043200", b"1900043200"), lambda value: b"", lambda value: b"a=b; c",
    lambda value: value.replace(b"=", b"=:", 1), lambda value: b"x=1; " * 2000 + value,
    lambda value: value.partition(b"=")[0] + b"=:::", lambda value: value.partition(b"=")[0] + "=boss:é:x:y".encode(),
])
def test_changed_cookie_is_not_accepted(change: object) -> None:
    """Any byte of it; malformed ones raise nothing."""
    assert callable(change)
    sessions = Sessions(b"s" * 32)
    value = cookie_for(sessions)[b"cookie"]
    assert change(value) != value
    assert sessions.authenticate({b"cookie": change(value)}, CONFIG, NOW) is None


def test_cookie_of_another_site_is_not_accepted() -> None:
    """A second line of defence behind SameSite=Strict."""
    sessions = Sessions(b"s" * 32)
    fields = cookie_for(sessions)
    for site, user in ((b"same-origin", "boss"), (b"none", "boss"), (b"same-site", None), (b"cross-site", None)):
        assert sessions.authenticate({**fields, b"sec-fetch-site": site}, CONFIG, NOW) == user


@pytest.mark.parametrize("others", [b'a={"x": 1}; ', b"a[0]=1; ", b"flag; ", b"a=b c; ", b"\xc3\xa9=1; "])
def test_cookie_is_found_among_those_of_other_programs(others: bytes) -> None:
    """All programs on one host share their cookies, whatever the port."""
    sessions = Sessions(b"s" * 32)
    value = cookie_for(sessions)[b"cookie"]
    other = value.partition(b"=")[0] + b"=set-by-a-sibling"
    assert sessions.authenticate({b"cookie": others + other + b"; " + value}, CONFIG, NOW) == "boss"


def test_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Sessions(b"short")


def test_admin_key_signs_in_and_reads_data_only() -> None:
    """The cookie reads the data of the page; it never deletes, and never reaches an LLM endpoint."""

    async def main() -> None:
        async with serving(FakeBackend(replace(CONFIG, failed_keys_per_minute=1000))) as running:
            assert json.loads((await fetch(running, get("/ui/session")))[2]) == {
                "needs_key": True, "signed_in": False, "user": None, "version": "0"}
            status, headers, body = await sign_in(running)
            assert (status, json.loads(body)["user"]) == (200, "boss")
            attributes = headers["set-cookie"].split("; ")
            assert attributes[1:] == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
            cookie = f"cookie: theme=dark; {attributes[0]}"
            for path in DATA:
                assert (await fetch(running, get(path, cookie)))[0] == 200, path
                assert (await fetch(running, get(path)))[0] == 401, path
            assert json.loads((await fetch(running, get("/ui/session", cookie)))[2])["user"] == "boss"
            for data in (get("/admin/cache?all=true", cookie, method="DELETE"), post(b"{}", "/v1/chat/completions", cookie),
                         get("/v1/models", cookie), get("/v1/jobs", cookie)):
                status, _, body = await fetch(running, data)
                assert (status, code_of(body)) == (401, "invalid_api_key"), data
            assert running.backend.forgotten == []
            assert running.backend.gateway.seen == []

    uvloop.run(main())


def test_sign_in_marks_the_cookie_secure_over_https() -> None:
    """A proxy ends TLS; the browser's origin, or the proxy, shows it."""

    async def main() -> None:
        async with serving(FakeBackend(CONFIG)) as running:
            for line in ("origin: https://gw.example", "x-forwarded-proto: https"):
                assert (await sign_in(running, line))[1]["set-cookie"].endswith("; Secure")
            assert "Secure" not in (await sign_in(running, "origin: http://gw.example"))[1]["set-cookie"]

    uvloop.run(main())


def test_key_that_is_no_admins_does_not_sign_in() -> None:
    async def main() -> None:
        async with serving(FakeBackend(CONFIG)) as running:
            status, headers, body = await sign_in(running, key=USER_KEY)
            assert (status, code_of(body)) == (403, "admins_only")
            assert "set-cookie" not in headers

    uvloop.run(main())


def test_wrong_keys_at_the_sign_in_are_limited() -> None:
    """As wrong keys everywhere else: so many a minute for an address, then 429."""

    async def main() -> None:
        async with serving(FakeBackend(CONFIG)) as running:
            statuses = [(await sign_in(running, key="a-wrong-key-that-is-long"))[0] for _ in range(5)]
            assert statuses == [401, 401, 401, 429, 429]
            assert (await sign_in(running))[0] == 200

    uvloop.run(main())


def test_sign_out_removes_the_cookie() -> None:
    async def main() -> None:
        async with serving(FakeBackend(CONFIG)) as running:
            name = (await sign_in(running))[1]["set-cookie"].partition("=")[0]
            _, headers, _ = await fetch(running, get("/ui/logout", "content-length: 0", method="POST"))
            assert headers["set-cookie"].startswith(f"{name}=; Path=/; Max-Age=0")
            for site in ("cross-site", "same-site"):
                data = get("/ui/logout", "content-length: 0", f"sec-fetch-site: {site}", method="POST")
                status, headers, body = await fetch(running, data)
                assert (status, code_of(body), "set-cookie" in headers) == (403, "cross_site", False)

    uvloop.run(main())


def test_reload_with_other_keys_ends_the_session() -> None:
    async def main() -> None:
        async with serving(FakeBackend(CONFIG)) as running:
            cookie = "cookie: " + (await sign_in(running))[1]["set-cookie"].partition(";")[0]
            assert (await fetch(running, get("/admin/requests", cookie)))[0] == 200
            running.current.swap(FakeBackend(replace(CONFIG, admins=("app", "boss"))))
            assert (await fetch(running, get("/admin/requests", cookie)))[0] == 401
            running.current.swap(FakeBackend(replace(CONFIG, ui="off")))
            assert (await fetch(running, get("/admin/requests", cookie)))[0] == 401

    uvloop.run(main())


def test_gateway_without_keys_needs_no_sign_in() -> None:
    """Nothing to sign in with: the page is open to this machine, and a foreign page's sign-in is refused."""

    async def main() -> None:
        async with serving() as running:
            assert json.loads((await fetch(running, get("/ui/session")))[2])["signed_in"] is True
            status, headers, _ = await fetch(running, get("/ui/login", "content-length: 0", method="POST"))
            assert (status, "set-cookie" in headers) == (200, False)
            status, _, body = await fetch(running, get("/ui/login", "content-length: 0", "sec-fetch-site: cross-site",
                                                       method="POST"))
            assert (status, code_of(body)) == (403, "cross_site")

    uvloop.run(main())


def test_session_is_accepted_by_each_worker_of_a_parent(tmp_path: Path) -> None:
    """A real parent with two workers: the cookie of one is good for the other, and a reload leaves it valid."""
    port = free_port()
    settings: dict[str, dict[str, Any]] = {
        "server": {"keys": dict(CONFIG.keys), "admins": ["boss"], "drain_grace_s": 0, "drain_s": 1},
        "upstreams": {"sim": {"kind": "simulated"}}, "routes": {"m": ["sim"]}}
    (tmp_path / "stayfast.yaml").write_text(json.dumps(settings))
    log = tmp_path / "log"
    with log.open("wb") as out:
        parent = subprocess.Popen([sys.executable, "-m", "stayfast", "serve", "--config", "stayfast.yaml", "--workers", "2",
                                   "--port", str(port)], cwd=tmp_path, stdout=out, stderr=out,
                                  env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        wait_until(lambda: "listens on" in log.read_text(), parent, log)
        url = f"http://127.0.0.1:{port}"
        answer = urlopen(Request(f"{url}/ui/login", method="POST", headers={"authorization": f"Bearer {ADMIN_KEY}"}))
        cookie = answer.headers["set-cookie"].partition(";")[0]

        def worker() -> int:
            """Which worker accepts the cookie on a new connection."""
            with urlopen(Request(f"{url}/debug/state", headers={"cookie": cookie})) as state:
                return int(json.load(state)["worker"])

        seen = {worker() for _ in range(40)}
        assert seen == {0, 1}
        settings["server"]["drain_s"] = 2
        (tmp_path / "stayfast.yaml").write_text(json.dumps(settings))
        parent.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_text().count('"reloaded"') == 2, parent, log)
        assert {worker() for _ in range(40)} == {0, 1}
    finally:
        parent.terminate()
        assert parent.wait(20) == 0


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a condition while a process lives, at most 30 s."""
    ends_at = time.monotonic() + 30
    while not holds():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < ends_at, log.read_text()
        time.sleep(0.02)
