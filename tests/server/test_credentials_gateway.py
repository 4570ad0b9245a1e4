"""A gateway whose upstream takes tokens: it renews them, fails at once without one, and shows them nowhere."""

import json
import os
import signal
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stayfast.cli import main
from tests.server.gateway_process import Gateway, running, until
from tests.server.token_rig import TOKEN, Issuers, issuers, service_account

pytestmark = pytest.mark.sockets
SETTINGS = """
upstreams:
  vertex: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", credentials: {{kind: google, file: "{file}"}}}}
{more}
routes: {{m: [{names}]}}
server: {{drain_grace_s: 0}}
"""
OTHER = "  other: {kind: simulated, script: steady}"
PATHS = ("/metrics", "/debug/state", "/admin/settings", "/admin/snapshot", "/admin/findings", "/admin/requests", "/readyz")


def settings_for(folder: Path, server: Issuers, more: str = "", names: str = "vertex") -> str:
    return SETTINGS.format(port=server.port, file=service_account(folder, server.port), more=more, names=names)


def answer(gateway: Gateway, path: str, body: object = None) -> tuple[int, str]:
    """Status and text."""
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urlopen(Request(f"{gateway.url}{path}", data, {"content-type": "application/json"}), timeout=20) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def ask(gateway: Gateway, max_tokens: int = 2) -> tuple[int, str]:
    return answer(gateway, "/v1/chat/completions", {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "stream": True})


def reload(gateway: Gateway) -> None:
    """Wait until the settings file was loaded again."""
    n_before = len(gateway.log("reloaded"))
    os.kill(gateway.pids()[0], signal.SIGHUP)
    until(lambda: len(gateway.log("reloaded")) > n_before)


def test_gateway_sends_the_token_and_shows_no_secret(tmp_path: Path) -> None:
    with issuers() as server, running(tmp_path, 2, settings_for(tmp_path, server)) as gateway:
        until(lambda: answer(gateway, "/readyz")[0] == 200)
        status, text = ask(gateway)
        assert (status, "hi" in text) == (200, True)
        assert set(server.provider_tokens) == {f"Bearer {TOKEN}"}
        n_tokens = len([path for path, _ in server.asked if path == "/google/token"])
        for _ in range(20):
            ask(gateway)
        assert len([path for path, _ in server.asked if path == "/google/token"]) == n_tokens == 2  # one each worker
        server.refuses = True
        refused = ask(gateway)
        assert refused[0] >= 400
        shown = [text, refused[1], *(answer(gateway, path)[1] for path in PATHS)]
        assert gateway.count("stayfast_credential_renewals_total", upstream="vertex", result="renewed") == 2
        assert gateway.count("stayfast_credential_missing", upstream="vertex") == 0
        assert len(gateway.log("credential_renewed")) == 2
    private = json.loads((tmp_path / "account.json").read_text())["private_key"].splitlines()[1]
    everything = "".join([*shown, (tmp_path / "log").read_text()])
    assert "vertex" in everything
    for secret in (TOKEN, private):
        assert secret not in everything


def test_gateway_without_a_credential_fails_at_once_and_recovers(tmp_path: Path) -> None:
    with issuers() as server:
        server.status = 401
        with running(tmp_path, 1, settings_for(tmp_path, server)) as gateway:
            until(lambda: answer(gateway, "/readyz")[0] == 503)
            assert "no upstream has a valid credential (vertex: " in answer(gateway, "/readyz")[1]
            began_at = time.monotonic()
            status, text = ask(gateway)
            assert status == 502
            assert "has no valid credential" in text
            assert time.monotonic() - began_at < 2
            assert server.provider_tokens == []
            until(lambda: gateway.log("credential_not_renewed") != [])
            assert gateway.log("credential_not_renewed")[0]["level"] == "error"
            assert gateway.count("stayfast_credential_missing", upstream="vertex") == 1
            until(lambda: "credentials.renewal_fails" in answer(gateway, "/admin/findings")[1])
            server.status = 200
            until(lambda: answer(gateway, "/readyz")[0] == 200)
            assert ask(gateway)[0] == 200
            assert "credentials.renewal_fails" not in answer(gateway, "/admin/snapshot")[1]


def test_gateway_without_a_credential_fails_over(tmp_path: Path) -> None:
    with issuers() as server:
        server.status = 401
        settings = settings_for(tmp_path, server, OTHER, "vertex, other")
        with running(tmp_path, 1, settings) as gateway:
            until(lambda: answer(gateway, "/readyz")[0] == 200)
            assert [ask(gateway)[0] for _ in range(6)] == [200] * 6
            assert server.provider_tokens == []


def test_gateway_starts_and_stops_while_the_issuer_hangs(tmp_path: Path) -> None:
    """The end of `running` waits for the exit."""
    with issuers() as server:
        server.hang.clear()
        with running(tmp_path, 1, settings_for(tmp_path, server)) as gateway:
            assert answer(gateway, "/readyz")[0] == 503
        server.hang.set()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_gateway_reload_fetches_changed_credentials_before_it_switches(tmp_path: Path) -> None:
    with issuers() as server, running(tmp_path, 1, settings_for(tmp_path, server)) as gateway:
        until(lambda: answer(gateway, "/readyz")[0] == 200)
        settings = (tmp_path / "stayfast.yaml").read_text()
        for n_fetched, changed in ((1, settings.replace("}}", "}, keepalive_s: 20}", 1)),
                                   (2, settings.replace('json"}', 'json", scope: other}'))):
            (tmp_path / "stayfast.yaml").write_text(changed)
            reload(gateway)
            assert ask(gateway)[0] == 200
            assert len([path for path, _ in server.asked if path == "/google/token"]) == n_fetched


@pytest.mark.parametrize("works", [True, False])
def test_live_check_names_the_credential(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, works: bool) -> None:
    with issuers() as server:
        server.status = 200 if works else 401
        (tmp_path / "s.yaml").write_text(settings_for(tmp_path, server))
        status = main(["check", str(tmp_path / "s.yaml"), "--live"])
    text = capsys.readouterr().out
    assert status == (0 if works else 1)
    assert ("credential: kind google, ends in" if works else "credential: kind google: ") in text
    assert ("m: first token" in text) is works
    assert TOKEN not in text
