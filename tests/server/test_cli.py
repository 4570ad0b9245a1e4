"""The command line: what it prints, where, and with which status it ends."""

import asyncio
import errno
import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stayfast import __version__
from stayfast.cli import main
from stayfast.cli.serve import startup_message
from stayfast.compose.caching import UNKNOWN
from stayfast.lab.simulated.settings import KINDS
from stayfast.policy.prompt_cache.rules import rules_of
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.upstreams.embedded import EngineAddress
from stayfast.workers.channels import ParentChannel, encode_frame
from tests.server.compose_rig import Compose
from tests.terminal import in_terminal

GOOD = "upstreams: {a: {kind: simulated}, b: {kind: simulated}}\nroutes: {m: [a, b]}\n"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder and an environment without our variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("PORT", "NOTIFY_SOCKET", *(name for name in os.environ if name.startswith("STAYFAST_"))):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def compose(monkeypatch: pytest.MonkeyPatch) -> Compose:
    """A gateway that only pretends."""
    fake = Compose()
    monkeypatch.setattr("stayfast.cli.serve.compose", fake)
    return fake


@pytest.mark.serial
def test_version_is_quick() -> None:
    """`stayfast --version` imports next to nothing: it is what shells and scripts call. CPU, the least of three."""
    def run(*arguments: str) -> tuple[float, str]:
        before = os.times()
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4]), done.stdout

    version_s, bare_s = (min(run(*arguments)[0] for _ in range(3)) for arguments in (("-m", "stayfast", "--version"),
                                                                                     ("-c", "pass")))
    assert run("-m", "stayfast", "--version")[1] == f"stayfast {__version__}\n"
    assert version_s < max(0.1, 5 * bare_s)  # an interpreter that does nothing takes more on a slow machine


def test_version_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`stayfast version` says the same."""
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"stayfast {__version__}\n"


def test_a_command_that_there_is_not_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """And without any, the list of them."""
    with pytest.raises(SystemExit):
        main(["serv"])
    said = " ".join(capsys.readouterr().err.split())
    assert "stayfast: unknown command serv, did you mean serve? `stayfast --help` lists all" in said
    with pytest.raises(SystemExit):
        main([])
    assert "\n    serve " in capsys.readouterr().err


def test_an_interrupt_before_a_command_listens_for_it_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while modules are imported: the status that a shell gives it."""
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stayfast.cli.serve.check", interrupted)
    assert main(["check"]) == 130


@pytest.mark.parametrize("command", [["--help"], ["serv"], ["prove", "--list"], ["prove"], ["bench"], ["check", "bad.yaml"],
                                     ["explain", "req_0", "--url", "http://127.0.0.1:9"], ["init"], ["bench", "--help"],
                                     ["bench", "run", "--help"]])
def test_in_a_terminal_of_80_columns_no_line_is_broken_by_it(command: list[str], tmp_path: Path) -> None:
    """Help, lists and errors."""
    (tmp_path / "bad.yaml").write_text("model_list: [{model_name: m}]\nupstreams: {a: {kind: azure}}\nroutes: {m: [a]}\n")
    seen = in_terminal([sys.executable, "-m", "stayfast", *command], cwd=tmp_path)
    assert max(map(len, seen.lines)) <= 80
    assert "Traceback" not in seen.coloured


@pytest.mark.parametrize("arguments", [[], ["serv"], ["serve", "--prot", "1"], ["check", "a", "b"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and a word on how to use it."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: stayfast" in capsys.readouterr().err


def test_every_command_has_its_module_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """What the help lists can be run."""
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for name in ("serve", "check", "init", "schema", "key", "explain", "version"):
        assert f"\n    {name} " in shown
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
    assert "78   the settings are invalid" in shown


def test_check_prints_prompt_cache_rules_of_each_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each model of a route with `prefix`, also if the name of the model is unknown."""
    file = tmp_path / "s.yaml"
    file.write_text("""
upstreams:
  claude: {kind: anthropic, key: k, models: {own: our-assistant}}
  other: {kind: openai, key: k}
routes:
  claude-sonnet-4-6: {upstreams: [claude], prefix: {mode: auto}}
  own: {upstreams: [claude, other], prefix: {mode: auto}}
  plain: {upstreams: [other]}
""")
    assert main(["check", str(file)]) == 0
    told = [line.partition(": prompt cache of ")[::2] for line in capsys.readouterr().out.splitlines() if "cache of" in line]
    assert told == [
        ("route claude-sonnet-4-6", "claude-sonnet-4-6 at claude by claude: anthropic marks from 1024 tokens on"),
        ("route own", f"our-assistant at claude by {rules_of('our-assistant', {}, is_anthropic=True)}"),
        ("route own", f"own at other by {UNKNOWN}")]


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file is counted; of a bad one every line is shown on standard error."""
    file = tmp_path / "s.yaml"
    file.write_text(GOOD)
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == "ok: 2 upstreams, 1 route\n"
    file.write_text(GOOD + "workers: x\nprot: 1\n")
    assert main(["check", str(file)]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 2)
    assert main(["check", "nope.yaml"]) == 1
    assert capsys.readouterr().err == "nope.yaml: cannot be read: No such file or directory\n"


def test_check_and_serve_point_out_an_upstream_that_nothing_leads_to(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no error: a route may be left out for a while."""
    file = tmp_path / "s.yaml"
    file.write_text("upstreams: {a: {kind: simulated}, spare: {kind: simulated}}\nroutes: {m: [a]}\n")
    for command in (["check", str(file)], ["serve", "--check", "--config", str(file)]):
        assert main(command) == 0
        assert capsys.readouterr().err == (f"{file}: warning: upstreams.spare: no route uses it: add it to a route's "
                                           "`upstreams`, or remove it\n")


def test_init(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a file that `check` accepts, overwrites nothing unasked, and reports what it cannot do."""
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 20)
    assert main(["init"]) == 0
    assert main(["check"]) == 0
    Path("stayfast.yaml").write_text("mine")
    capsys.readouterr()
    assert main(["init"]) == 1
    assert capsys.readouterr().err == "stayfast init: stayfast.yaml exists; --force overwrites it\n"
    assert Path("stayfast.yaml").read_text() == "mine"
    assert main(["init", "--force"]) == 0
    assert main(["check"]) == 0
    assert main(["init", "no/such/folder.yaml"]) == 1


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON by default, the page on demand."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Stayfast settings"
    assert main(["schema", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("# Settings\n")


def test_key(capsys: pytest.CaptureFixture[str]) -> None:
    """The key is shown once, beside lines that can be pasted and hold only its digest; each call makes another."""
    assert main(["key", "app"]) == 0
    key, *lines = capsys.readouterr().out.splitlines()
    assert len(key) > 40
    settings = load_settings(SettingsText("x", GOOD + "\n".join(lines)), {}, check_engine=lambda config: None, kinds=KINDS)
    assert settings.server.keys == {"app": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    assert key not in "".join(lines)
    assert main(["key", "app"]) == 0
    assert capsys.readouterr().out.splitlines()[0] != key
    assert main(["key", "no good"]) == 2


def test_serve(compose: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags reach the settings; once it listens, a line that works when pasted is shown."""
    Path("s.yaml").write_text(GOOD)
    assert main(["serve", "--config", "s.yaml", "--port", "8090", "--host", "127.0.0.1"]) == 0
    assert compose.settings is not None
    assert list(compose.settings.routes) == ["m"]
    assert (compose.given["siblings"].others, compose.given["n_workers"], compose.given["engines"]) == ((), 1, None)
    out, err = capsys.readouterr()
    assert out == ""
    command = shlex.split(err.partition("try:\n")[2])
    assert command[:4] == ["curl", "-i", "-N", "http://127.0.0.1:8090/v1/chat/completions"]
    assert json.loads(command[-1])["model"] == "m"


def test_serve_reloads_the_file_as_it_is_then(compose: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    """The reload that the gateway gets reads again, flags on top, refuses what is wrong, and says what needs a restart."""
    Path("s.yaml").write_text(GOOD)
    assert main(["serve", "--config", "s.yaml", "--port", "1234"]) == 0
    Path("s.yaml").write_text(GOOD.replace("m:", "other:") + "workers: 3")
    settings: Settings = compose.given["reload"]()
    assert (list(settings.routes), settings.server.port) == (["other"], 1234)
    assert capsys.readouterr().err.splitlines()[-1] == "stayfast: workers stays 1 until a restart"
    Path("s.yaml").write_text("workers: x")
    with pytest.raises(SettingsError):
        compose.given["reload"]()


def test_serve_refuses_wrong_settings(compose: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 78, all reasons, and nothing is served."""
    assert main(["serve", "--port", "x", "--workers", "0"]) == 78
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["--port", "--workers"]
    assert compose.settings is None


def test_serve_check(compose: Compose) -> None:
    """--check only checks."""
    assert main(["serve", "--check"]) == 0
    assert compose.settings is None


def test_serve_notifies_systemd(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY=1 after the start of listening, STOPPING=1 at the start of draining."""
    told: list[tuple[str | None, str]] = []
    monkeypatch.setattr("stayfast.cli.serve.notify_systemd", lambda address, state: told.append((address, state)))
    monkeypatch.setenv("NOTIFY_SOCKET", "@manager")
    assert main(["serve"]) == 0
    compose.given["on_draining"]()
    assert told == [("@manager", "READY=1"), ("@manager", "STOPPING=1")]


def test_taken_port_has_its_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 3 and the address, no traceback; another error of the system is not hidden behind it."""
    taken = Compose(OSError(errno.EADDRINUSE, "Address already in use"))
    monkeypatch.setattr("stayfast.cli.serve.compose", taken)
    assert main(["serve", "--port", "8123"]) == 3
    assert "cannot listen on 127.0.0.1 port 8123: Address already in use" in capsys.readouterr().err
    monkeypatch.setattr("stayfast.cli.serve.compose", Compose(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(OSError, match="Too many"):
        main(["serve"])


@pytest.mark.parametrize(("text", "address", "part"), [
    (GOOD, ("0.0.0.0", 1), "http://127.0.0.1:1/v1/"),
    (GOOD, ("::", 1), "http://[::1]:1/v1/"),
    (GOOD, ("::1", 1), "http://[::1]:1/v1/"),
    (GOOD, ("10.0.0.1", 1), "http://10.0.0.1:1/v1/"),
    ("upstreams: {tiny: {kind: embedded}}\nroutes: {stayfast-tiny: [tiny]}", ("127.0.0.1", 1),
     '"model": "stayfast-tiny"'),
    (GOOD + f"server: {{keys: {{a: 'sha256:{'0' * 64}'}}}}", ("127.0.0.1", 1), 'authorization: Bearer $STAYFAST_KEY'),
    ("upstreams: {a: {kind: openai, key: k}, b: {kind: simulated}}\nroutes: {paid: [a], free: [b]}", ("h", 1), '"free"'),
    ("upstreams: {a: {kind: openai, key: k}}\nroutes: {\"*\": [a], paid: [a]}", ("h", 1), '"model": "paid"'),
    ("upstreams: {a: {kind: simulated}}\nroutes: {\"*\": [a]}", ("h", 1), '"model": "any"'),
    ("upstreams: {a: {kind: openai, key: k, models: {its: x}}}\nroutes: {\"*\": [a]}", ("h", 1), '"model": "its"'),
])
def test_hello(text: str, address: tuple[str, int], part: str) -> None:
    """The line to try names an address that can be called and a model that costs nothing where there is one."""
    settings = load_settings(SettingsText("x", text), {}, check_engine=lambda config: None, kinds=KINDS)
    _, _, command = startup_message(settings, [address], "1").partition("\ntry:\n")
    assert part in command
    assert max(map(len, command.splitlines())) <= 80
    words = shlex.split(command)
    assert words[:3] == ["curl", "-i", "-N"]
    assert json.loads(words[-1])["messages"] == [{"role": "user", "content": "Hello!"}]


def test_hello_without_a_name_to_try() -> None:
    """With nothing but a wildcard to a provider, whose models only its customer knows, it says what is to be put in."""
    text = 'upstreams: {a: {kind: openai, key: k}}\nroutes: {"*": [a]}'
    said = startup_message(load_settings(SettingsText("x", text), {}, kinds=KINDS), [("h", 1)], "1")
    _, _, command = said.partition("\ntry (replace MODEL by a model of your upstream):\n")
    assert '"model": "MODEL"' in command


class Parent:
    """Replaces the supervisor and `compose`: starts no worker, records snapshots, and announces an engine."""

    def __init__(self) -> None:
        self.command: Callable[[int], list[str]]
        self.reload: Callable[[], bytes]
        self.announce: Callable[[str, EngineAddress], None]
        self.snapshots: list[bytes] = []

    def __call__(self, config: object, command: Callable[[int], list[str]], reload: Callable[[], bytes], *_: object,
                 **__: object) -> "Parent":
        """Replaces the constructor."""
        self.command, self.reload = command, reload
        return self

    def engine_hosts(self, settings: Settings, announce: Callable[[str, EngineAddress], None]) -> list[Any]:
        """No engine runs; one is announced later."""
        self.announce = announce
        return []

    def send_snapshot(self, snapshot: bytes) -> None:
        """Record what the workers would receive."""
        self.snapshots.append(snapshot)

    async def run(self) -> int:
        """Announce an engine, then end."""
        self.announce("tiny", EngineAddress("127.0.0.1", 7, 4))
        return 0


def test_workers_get_the_settings_that_the_parent_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker builds the parent's settings from the snapshot alone, even when the file is broken meanwhile."""
    from stayfast.cli import serve

    parent = Parent()
    monkeypatch.setattr(serve, "compose", parent)
    monkeypatch.setattr(serve, "Supervisor", parent)
    Path("s.yaml").write_text(GOOD)
    assert main(["serve", "--config", "s.yaml", "--workers", "2", "--port", "0"]) == 0
    assert parent.command(1)[1:] == ["-m", "stayfast", "serve", "--worker", "1/2"]
    Path("s.yaml").write_text("prot: 1")
    with pytest.raises(SettingsError):
        parent.reload()

    above, below = socket.socketpair()
    with above, below:
        above.sendall(encode_frame(parent.snapshots[0]))
        told = serve.ParentState(ParentChannel(below), {})
    settings = told.load()
    assert (list(settings.routes), settings.workers) == (["m"], 2)
    assert settings.server.port != 0
    assert told.engine_addresses() == {"tiny": EngineAddress("127.0.0.1", 7, 4)}


def test_worker_is_ready_only_when_it_takes_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge listens before its loop takes SIGHUP, and the parent may answer "ready" with a reload at once."""
    from stayfast.cli import serve

    above, below = socket.socketpair()
    with above, below:
        told: dict[str, object] = {"name": "x", "text": GOOD, "model": None, "engines": {}, "folder": None, "overrides": [],
                                   "session_secret": "00", "sockets": [], "files": []}
        above.sendall(encode_frame(json.dumps(told).encode()))
        lifeline = ParentChannel(below)
        monkeypatch.setattr(lifeline, "watch", lambda drain_s: None)
        monkeypatch.setattr(ParentChannel, "from_stdin", lambda: lifeline)
        said: list[str] = []
        monkeypatch.setattr(lifeline, "send_ready", lambda: said.append("ready"))

        async def edge(on_listening: Callable[[Sequence[tuple[str, int]]], None]) -> None:
            on_listening([])
            said.append("takes signals")
            await asyncio.sleep(0)

        def run_edge(settings: Settings, *, on_listening: Callable[[Sequence[tuple[str, int]]], None], **_: object) -> int:
            asyncio.run(edge(on_listening))
            return 0

        fake = Compose()
        monkeypatch.setattr(fake, "serve", run_edge)
        monkeypatch.setattr(serve, "compose", fake)
        before = signal.getsignal(signal.SIGHUP)
        try:
            assert main(["serve", "--worker", "0/2"]) == 0
        finally:
            signal.signal(signal.SIGHUP, before)
    assert said == ["takes signals", "ready"]


@pytest.mark.sockets
@pytest.mark.parametrize("n_workers", [1, 2])
def test_serve_for_real(n_workers: int) -> None:
    """One process or a parent with two: it says where it listens, answers there, and drains to status 0."""
    Path("s.yaml").write_text(GOOD + "server: {drain_grace_s: 0, port: 0}")
    with subprocess.Popen([sys.executable, "-m", "stayfast", "serve", "--config", "s.yaml", "--workers", str(n_workers)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            for _ in range(5):
                with urllib.request.urlopen(f"{url.removesuffix('/v1')}/livez", timeout=10) as answer:
                    assert answer.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.sockets
@pytest.mark.parametrize("n_workers", [1, 2])
def test_serve_on_a_taken_port(n_workers: int) -> None:
    """Another program's port is a clear error, also where workers could have shared it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        Path("s.yaml").write_text(GOOD)
        done = subprocess.run(
            [sys.executable, "-m", "stayfast", "serve", "--config", "s.yaml", "--workers", str(n_workers), "--port",
             str(other.getsockname()[1])], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 3
    assert "cannot listen on 127.0.0.1 port" in done.stderr
    assert "Traceback" not in done.stderr
