"""`stayfast sim` as a person or a script runs it."""

import json
import signal
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from stayfast import cli
from stayfast.cli.sim import format_presets, load_providers
from stayfast.lab.simulated import PRESETS, ProviderConfig
from stayfast.settings import SettingsError
from tests.sim.running import running_sim_command

ASK = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
BASE = ProviderConfig("gpt-4o-like", 7)


@pytest.mark.sockets
def test_sim_json_prints_address_first_and_counts_last() -> None:
    with running_sim_command("--json", "--provider", "fast=instant", "--provider", "slow=opus-4.6-like") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["url"] == f"http://127.0.0.1:{told['port']}"
        with urlopen(Request(f"{told['providers']['fast']}/chat/completions", ASK), timeout=10) as answer:
            assert json.load(answer)["object"] == "chat.completion"
        order = Request(f"{told['url']}/_sim/faults", b'{"kind":"hang"}')
        with urlopen(order, timeout=10):
            pass
        hanging = HTTPConnection("127.0.0.1", told["port"])
        hanging.request("POST", "/v1/chat/completions", ASK)
        began_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=10)
    assert time.monotonic() - began_at < 2
    hanging.close()
    assert (process.returncode, errors) == (0, "")
    assert json.loads(said)["providers"]["fast"]["outcomes"] == {"completed": 1}


@pytest.mark.sockets
def test_sim_closed_stdout_is_no_error() -> None:
    with running_sim_command("--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(10) == 0
    assert errors == ""


@pytest.mark.sockets
def test_sim_prints_an_address_and_a_curl_line() -> None:
    with running_sim_command() as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urlopen(f"{url}/models", timeout=10) as answer:
            assert json.load(answer)["data"][0]["id"] == "sim"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=10)
    assert (process.returncode, said) == (0, "")
    assert f"curl -i -N {url}/chat/completions" in errors
    assert "-H 'content-type: application/json' \\\n    -d '{" in errors  # a gateway demands it
    assert f"  {url.removesuffix('/v1')}/sim/v1  gpt-4o-like\n" in errors


@pytest.mark.sockets
def test_sim_provider_with_own_settings_is_not_called_instant(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text("providers: {a: {ttft: {median_s: 1}, gaps: {median_s: 1}}, b: {preset: steady, engine: {}}, "
                    "c: {preset: instant}}\n")
    with running_sim_command("--config", str(path)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert [line.partition("/v1  ")[2] for line in errors.splitlines()[1:4]] == [
        "its own ttft, its own gaps", "steady, its own engine", "instant"]


@pytest.mark.parametrize(("words", "said"), [
    (["bench", "--rte", "20"], "usage: stayfast bench run "), (["bench", "--rte=20"], "did you mean --rate?"),
    (["sim", "--preset", "instant"], "usage: stayfast sim "), (["sim", "--prot", "1"], "did you mean --port?"),
    (["cache", "stats", "--jsn"], "did you mean --json?"), (["sim", "--xyzzy"], "arguments: --xyzzy\n")])
def test_sim_wrong_option_prints_its_own_usage(words: list[str], said: str,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status", "named"), [
    (("--provider", "a=none"), 2, "'none'"),
    (("--provider", "_sim=instant"), 2, "_sim"),
    (("--provider", "a=instant", "--provider", "a=steady"), 2, "twice"),
    (("--seed", "-1"), 2, "seed"),
    (("--key", "with space"), 2, "key"),
    (("--port", "70000"), 2, "port"),
    (("--config", "no-such-file.yaml"), 78, "no-such-file.yaml"),
    (("--host", "192.0.2.1"), 3, "192.0.2.1"),
])
def test_sim_wrong_usage_is_named(arguments: tuple[str, ...], status: int, named: str) -> None:
    with running_sim_command(*arguments) as process:
        said, errors = process.communicate(timeout=20)
    assert (process.returncode, said) == (status, "")
    assert named in errors
    assert "Traceback" not in errors


def test_sim_lists_presets_with_percentiles() -> None:
    lines = format_presets().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(PRESETS)
    assert "0.639" in lines[1]


def test_sim_providers_file(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text("providers:\n  a: {}\n  b: {preset: instant, seed: 3, faults: [{kind: hang, rate: 0.01}]}\n")
    found = load_providers(path, BASE)
    assert found["a"] == BASE
    assert (found["b"].preset, found["b"].seed, found["b"].faults[0].rate) == ("instant", 3, 0.01)


def test_sim_provider_with_own_model_has_no_default_preset(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text("providers:\n  a: {engine: {}}\n  b: {ttft: {median_s: 1}}\n  c: {gaps: {median_s: 1}}\n"
                    "  d: {quota: {requests_per_min: 5}}\n  e: {preset: steady, engine: {}}\n")
    found = load_providers(path, BASE)
    assert [found[name].preset for name in "abcde"] == ["", "", "", "gpt-4o-like", "steady"]
    assert found["a"].numbers.ttft == PRESETS["instant"].ttft
    assert {one.seed for one in found.values()} == {7}


@pytest.mark.parametrize(("text", "named"), [
    ("providers: {a: {preset: gpt-5}}", "providers.a.preset: must be one of"),
    ("providers: {a: {faults: [{kind: hang, rat: 1}]}}", "providers.a.faults[0].rat: unknown setting, did you mean rate?"),
    ("providers: {a: {quota: {requests_per_min: 0}}}", "providers.a.quota.requests_per_min: must be a whole number"),
    ("providers: {v1: {}}", "providers.v1: cannot be a provider's name"),
    ("providers: {}", "providers: must not be empty"),
    ("provider: {a: {}}", "unknown setting, did you mean providers?"),
    ("providers: [", "not YAML"),
])
def test_sim_wrong_file_names_line_and_field(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_providers(path, BASE)
    assert named in str(raised.value)
    assert str(raised.value).startswith((f"{path}:1:", f"{path}:2:1:"))
