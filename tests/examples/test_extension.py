"""The example package of kinds of upstreams and stores: installed as its users would, found by the gateway, and working."""

import asyncio
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from stayfast.core.clock import SystemClock
from stayfast.settings import SettingsError, SettingsText, load_settings
from stayfast.settings.added_kinds import AddedStore, AddedUpstream, implements
from stayfast.settings.upstreams import HttpUpstream, SqliteStoreSettings
from stayfast.stores.base import AcquireLead, IsLed, ReleaseLead, StoreUnavailable
from tests.server.gateway_process import Gateway, running

ROOT = Path(__file__).parents[2]
SECRET = "a secret of both sides"
ANSWER = {"id": "1", "object": "chat.completion", "created": 1, "model": "inner", "usage": {
    "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "signed"}}]}


class Gate(BaseHTTPRequestHandler):
    """Answers requests whose signature is right."""

    n_calls = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        stamp, _, mac = self.headers.get("x-acme-signature", "").partition(":")
        signed = b"\n".join((stamp.encode(), b"POST", self.path.encode(), body))
        is_right = hmac.compare_digest(mac, hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest())
        type(self).n_calls += is_right
        answer = json.dumps(ANSWER if is_right else {"error": {"message": "bad signature"}}).encode()
        self.send_response(200 if is_right else 403)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def gate() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, installed from a copy of its source."""
    source, target = tmp_path_factory.mktemp("source") / "extension", tmp_path_factory.mktemp("target")
    shutil.copytree(ROOT / "examples" / "extension", source)
    subprocess.run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, "--no-deps",
                    "--no-build-isolation", "--target", target, source], check=True, timeout=120)
    return target


def settings_of(url: str, folder: Path) -> str:
    return (f"upstreams: {{inside: {{kind: acme, base_url: '{url}', secret: '${{ACME_SECRET}}', probe: false}}}}\n"
            f"stores: {{answers: {{kind: folder, path: {folder}}}}}\n"
            "routes: {m: {upstreams: [inside], cache: {mode: exact, store: answers}}}\nserver: {drain_grace_s: 0}\n")


def ask(gateway: Gateway, question: str) -> tuple[str, str]:
    body = json.dumps({"model": "m", "temperature": 0, "messages": [{"role": "user", "content": question}]}).encode()
    request = Request(f"{gateway.url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urlopen(request, timeout=20) as got:
        return json.load(got)["choices"][0]["message"]["content"], got.headers["x-cache"].partition(";")[0]


def test_extension_upstream_signs_and_store_is_shared(installed: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gateways, one after the other: the second one has the answers of the first."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ACME_SECRET", SECRET)
    Gate.n_calls = 0
    with gate() as url:
        settings = settings_of(url, tmp_path / "answers")
        with running(tmp_path, 1, settings) as gateway:
            assert [ask(gateway, "one") for _ in range(2)] == [("signed", "miss"), ("signed", "hit")]
        with running(tmp_path, 2, settings) as gateway:
            assert [ask(gateway, question) for question in ("one", "two")] == [("signed", "hit"), ("signed", "miss")]
            purged = Request(f"{gateway.url}/admin/cache?route=m", method="DELETE")
            with urlopen(purged, timeout=20) as done:
                assert json.load(done)["forgotten"] >= 2
        assert Gate.n_calls == 2


def test_extension_wrong_setting_is_reported_like_a_built_in_one(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    text = "upstreams: {a: {kind: acme, base_url: nowhere, secret: x, prot: 1}}\nroutes: {m: [a]}\n"
    with pytest.raises(SettingsError) as caught:
        load_settings(SettingsText("s.yaml", text), {})
    found = str(caught.value)
    assert "upstreams.a.base_url: must be like https://host/v1" in found
    assert "upstreams.a.prot: unknown setting" in found


@pytest.mark.parametrize(("code", "problem"), [
    ("raise RuntimeError('no driver')",
     "the package stayfast-broken adds this kind, but cannot be imported: RuntimeError: no driver"),
    ("class Kind: pass", "broken_kind:Kind is no dataclass with the members of"),
])
def test_extension_that_cannot_be_used_is_a_settings_error(code: str, problem: str, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "stayfast_broken-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stayfast-broken\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[stayfast.upstreams]\nbroken = broken_kind:Kind\n")
    (tmp_path / "broken_kind.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_kind", raising=False)
    with pytest.raises(SettingsError, match="broken") as caught:
        load_settings(SettingsText("s.yaml", "upstreams: {a: {kind: broken}}\nroutes: {m: [a]}\n"), {})
    assert problem in str(caught.value)


def test_implements_built_in_kind_is_no_added_one() -> None:
    assert not implements(HttpUpstream, AddedUpstream)
    assert not implements(SqliteStoreSettings, AddedStore)


def test_extension_folder_backend_commands(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leads exclude each other and end; logs are read in order; a folder that cannot be made is unavailable."""
    monkeypatch.syspath_prepend(str(installed))

    make_backend = import_module("stayfast_acme.store").FolderBackend

    async def main() -> None:
        backend = make_backend(tmp_path / "f", SystemClock())
        key = b"k" * 32
        assert await backend.execute([AcquireLead(key, b"a", 60.0), AcquireLead(key, b"b", 60.0), IsLed(key)]) == [
            True, False, True]
        assert await backend.execute([ReleaseLead(key, b"b"), IsLed(key), ReleaseLead(key, b"a"), IsLed(key)]) == [
            None, True, None, False]
        await backend.append_log("l", [b"1", b"2", b"3"], 2)
        assert [record for _, record in await backend.read_log("l", "", 9)] == [b"2", b"3"]
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreUnavailable):
            await make_backend(tmp_path / "file" / "f", SystemClock()).execute([IsLed(key)])

    asyncio.run(main())
