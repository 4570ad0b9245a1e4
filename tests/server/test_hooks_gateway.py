"""Hooks of a gateway's settings: imported from its folder, checked at the start, loaded again by a reload."""

import json
import os
import signal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stayfast.settings import SettingsError, SettingsText, load_settings
from stayfast.settings.effective import effective_settings
from tests.server.gateway_process import Gateway, running, until

HOOK = """
from stayfast.pipeline.hooks import HookRefused
class Mark:
    def before(self, request):
        if request.body["messages"][0]["content"] == "refuse":
            raise HookRefused("not today", 422)
        request.state["n"] = len(request.body["messages"])
    async def after(self, request, answer):
        answer.body["choices"][0]["message"]["content"] = "{text} " + str(request.state["n"])
mark = Mark()
"""
SETTINGS = """
upstreams: {sim: {kind: simulated, script: steady}}
routes: {m: {upstreams: [sim], hooks: "marking:mark"}}
server: {drain_grace_s: 0}
"""
BASE = 'upstreams: {{a: {{kind: openai, base_url: "http://h/v1"}}}}\nroutes: {{m: {{upstreams: [a], hooks: {hooks}}}}}\n'


def ask(gateway: Gateway, text: str = "hi", path: str = "chat/completions") -> tuple[int, dict[str, object]]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 3}
    try:
        with urlopen(Request(f"{gateway.url}/v1/{path}", json.dumps(body).encode(), {"content-type": "application/json"}),
                     timeout=20) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.sockets
def test_gateway_runs_hooks_and_loads_changed_ones_again(tmp_path: Path) -> None:
    (tmp_path / "marking.py").write_text(HOOK.replace("{text}", "first"))
    with running(tmp_path, 1, SETTINGS) as gateway:
        status, answer = ask(gateway)
        assert (status, "first 1" in json.dumps(answer)) == (200, True)
        status, answer = ask(gateway, "refuse")
        assert (status, "not today" in json.dumps(answer)) == (422, True)
        status, answer = ask(gateway, "refuse", "messages")
        assert (status, answer["type"]) == (422, "error")  # Anthropic's dialect
        (tmp_path / "marking.py").write_text(HOOK.replace("{text}", "second"))
        os.kill(gateway.pids()[0], signal.SIGHUP)
        until(lambda: gateway.log("reloaded") != [])
        assert "second 1" in json.dumps(ask(gateway)[1])
        (tmp_path / "marking.py").write_text("broken =")
        os.kill(gateway.pids()[0], signal.SIGHUP)
        until(lambda: gateway.log("reload_refused") != [])
        assert "second 1" in json.dumps(ask(gateway)[1])


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a hook of the right and one of the wrong shape."""
    (tmp_path / "shapes_of_hooks.py").write_text("def good(request): ...\ndef bad(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(("hooks", "complaint"), [
    ("nowhere_at_all:redact", "there is no module nowhere_at_all"), ("shapes_of_hooks:god", "did you mean good"),
    ("shapes_of_hooks:bad", "takes ()"), ("not a name", "like package.module:name"),
    ("[shapes_of_hooks:good, shapes_of_hooks:good]", "each hook once"), ("{use: [shapes_of_hooks:good], timeout_s: 0}",
                                                                         "from 0.001 to 60")])
@pytest.mark.usefixtures("modules")
def test_wrong_hook_is_an_error_of_the_settings(hooks: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(SettingsText("test", BASE.format(hooks=hooks)), {})
    assert complaint in str(refused.value)


@pytest.mark.usefixtures("modules")
def test_one_name_a_list_and_defaults_mean_the_same() -> None:
    good = "shapes_of_hooks:good"
    for hooks in (good, f"[{good}]", f"{{use: [{good}]}}"):
        assert load_settings(SettingsText("test", BASE.format(hooks=hooks)), {}).routes["m"].hooks.use == (good,)
    text = BASE.format(hooks="{timeout_s: 2}") + f"defaults: {{hooks: {good}}}\n"
    settings = load_settings(SettingsText("test", text), {})
    assert (settings.routes["m"].hooks.use, settings.routes["m"].hooks.timeout_s) == ((good,), 2.0)
    assert effective_settings(settings)["routes"]["m"]["hooks"]["use"] == [good]
    assert settings.sources["routes.m.hooks.use"] == "test:3"
