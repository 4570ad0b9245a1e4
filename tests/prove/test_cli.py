"""The output and exit status of `stayfast prove`, with claims that have fixed results."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, format_text
from stayfast.lab.report.table import TerminalStyle
from tests.prove.fakes import FALLS_SHORT, HOLDS, Fake, fakes

PATIENCE_S = 30.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fake claims, and a lock file that no real proof uses."""
    monkeypatch.setattr("stayfast.cli.prove.claims", fakes)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_prove_list_prints_each_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "good       What good claims."


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "name a proof, or use --all; available: good, bad,"),
    (["good", "cancle"], "unknown proof 'cancle'; available: good, bad,"),
    (["good", "--seed", "-1"], "--seed must be from 0 to 4294967295, not -1"),
])
def test_prove_wrong_usage_names_available_proofs(arguments: list[str], words: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


@pytest.mark.parametrize(("names", "status"), [(["good"], 0), (["good", "bad"], 1), (["bad", "good"], 1), (["void"], 6),
                                               (["broken"], 6), (["good", "open"], 6), (["open", "bad"], 1)])
def test_prove_exit_status_is_worst_of_all(names: list[str], status: int) -> None:
    assert main(["prove", *names]) == status


def test_prove_prints_figures_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures and notes go to standard output, progress to standard error."""
    main(["prove", "good", "--quick", "--seed", "7"])
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[1] == "What good claims."
    assert lines[2] == "  time to nothing  1.25 ms  (0.5 to 2)  goal at most 50  holds"
    assert lines[3] == "  clients            10"
    assert lines[4] == "  A note."
    assert lines[-1] == "good: holds (quick run, seed 7)"
    assert "half of it done" in said.err


def test_prove_failed_set_up_prints_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    main(["prove", "broken"])
    out = capsys.readouterr().out
    assert "proves nothing" in out
    assert "  no such preset" in out
    assert "broken: inconclusive" in out


def test_prove_several_claims_names_those_that_do_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    main(["prove", "open", "good", "bad", "void"])
    said = capsys.readouterr()
    assert said.err.splitlines()[-2:] == ["stayfast prove: falls short: bad", "stayfast prove: inconclusive: open, void"]
    assert "goal at most 50  inconclusive" in said.out


def test_prove_all_skips_claims_that_need_data(monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    needy = Fake("needy", FALLS_SHORT, needs="needs --data DIR")
    monkeypatch.setattr("stayfast.cli.prove.claims", lambda: {"good": Fake("good"), "needy": needy})
    assert main(["prove", "--all"]) == 0
    said = capsys.readouterr()
    assert "good (1 of 2):" in said.err
    assert "needy: not run: needs --data DIR" in said.err
    assert "need data sets: needy" in said.err.splitlines()[-1]
    assert "needy" not in said.out
    assert main(["prove", "--all", "--data", "/"]) == 1


@pytest.mark.parametrize(("names", "status"), [(["needy"], 5), (["good", "needy"], 5), (["needy", "bad"], 1)])
def test_prove_named_claim_without_data_exits_5(names: list[str], status: int, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """A claim that falls short takes precedence."""
    needy = Fake("needy", FALLS_SHORT, needs="needs --data DIR")
    monkeypatch.setattr("stayfast.cli.prove.claims", lambda: {**fakes(), "needy": needy})
    assert main(["prove", *names]) == status
    said = capsys.readouterr()
    assert "needy: not run: needs --data DIR" in said.err
    assert "folder with --data" in said.err
    assert "needy" not in said.out


def test_prove_json_contains_goal_and_verdict_of_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """A figure that could not be measured is null."""
    assert main(["prove", "good", "bad", "--json", "--quick"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good.keys() == {"name", "says", "verdict", "holds", "quick", "seed", "at", "machine", "spoiled", "figures",
                           "notes"}
    assert (good["name"], good["verdict"], good["holds"], good["quick"]) == ("good", "holds", True, True)
    assert (good["seed"], good["spoiled"]) == (1, None)
    assert good["figures"][0] == {"name": "time to nothing", "value": 1.25, "unit": "ms", "goal": 50.0, "sense": "at most",
                                  "low": 0.5, "high": 2.0, "is_exact": False, "is_valid": True, "verdict": "holds",
                                  "holds": True}
    assert [(figure["value"], figure["holds"]) for figure in bad["figures"]] == [(51.0, False), (99.0, False), (None, False)]
    assert [figure["verdict"] for figure in bad["figures"]] == ["falls short", "falls short", "inconclusive"]


def test_as_text_colours_only_if_ink_is_on() -> None:
    claim = Fake("it")
    plain, coloured = (format_text(claim, FALLS_SHORT, Conditions(), {"CPU": "one"}, TerminalStyle(is_on=on))
                       for on in (False, True))
    assert "\x1b" not in plain
    assert coloured.count("\x1b[1;31mfalls short\x1b[0m") == 3
    assert coloured.count("\x1b[33minconclusive\x1b[0m") == 1
    assert "\x1b[32mholds\x1b[0m" in format_text(claim, HOLDS, Conditions(), {}, TerminalStyle(is_on=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_as_text_wraps_long_lines() -> None:
    name = "calls " * 30 + "in the end"
    finding = ClaimResult((Figure(name, 1234567.8, "tokens", 1234567.8, low=1000000.0, high=2000000.0),
                       Figure("short", float("inf"), "x", 1.0)), ("word " * 100,), "because " * 60)
    text = format_text(Fake("it"), finding, Conditions(), {"CPU": "model " * 50}, TerminalStyle(is_on=False))
    assert max(map(len, text.splitlines())) < 160
    assert " ".join(text.split()).count("calls") == 30
    assert "inf" in text


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start the command with the fake claims, and its lock in `folder`."""
    return subprocess.Popen([sys.executable, "-m", "tests.prove.fakes", *arguments], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)})


def until_said(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read standard error up to a line that matches `pattern`."""
    assert process.stderr is not None
    for line in process.stderr:
        if (found := re.search(pattern, line)) is not None:
            return found
    raise AssertionError(f"it ended without saying {pattern!r}")


def test_prove_concurrent_runs_take_turns(tmp_path: Path) -> None:
    with (tmp_path / "stayfast-prove.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with start("good", folder=tmp_path) as process:
            until_said(process, "another proof is running")
            assert process.poll() is None
            fcntl.flock(lock, fcntl.LOCK_UN)
            said, _ = process.communicate(timeout=PATIENCE_S)
    assert "good: holds" in said
    assert process.returncode == 0


@pytest.mark.sockets
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_prove_signal_stops_servers_without_traceback(number: signal.Signals, status: int, tmp_path: Path) -> None:
    with start("endless", "good", folder=tmp_path) as process:
        pid = int(until_said(process, r"pid (\d+)")[1])
        process.send_signal(number)
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    assert "its servers were stopped" in errors
    assert "Traceback" not in errors
    assert said == ""
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_prove_signal_does_not_wait_for_computing_thread(number: signal.Signals, status: int, tmp_path: Path) -> None:
    with start("computing", folder=tmp_path) as process:
        until_said(process, "in a thread")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    assert "its servers were stopped" in errors
