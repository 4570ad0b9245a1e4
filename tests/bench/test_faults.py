"""`stayfast bench faults`: the simulator's rules, the rows and the table."""

import argparse
import json
import re
import signal
import subprocess
import sys
from math import nan
from pathlib import Path

import msgspec
import pytest
import uvloop

from stayfast.cli.bench import add_fault_options, parse, run
from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.lab.harness.processes import Processes
from stayfast.lab.load.client import LoadTargetConfig, RequestConfig
from stayfast.lab.load.faults import (
    SCENARIOS,
    TAIL_SHARE,
    FaultRow,
    FaultsConfig,
    FaultTable,
    NoSimulator,
    SimulatorControl,
    run_scenarios,
)
from stayfast.lab.load.result import Subject
from stayfast.lab.simulated import FaultRule
from tests.sim.running import running_sim_command

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
PROVIDER = {"ttft": {"median_s": 0.005}, "gaps": {"median_s": 0.0, "sigma": 0.0}, "fills_max_tokens": True}


def test_tail_rules_hit_their_share_of_calls() -> None:
    left = 1.0
    for rule in BY_NAME["tail"].rules:
        left *= 1 - rule["rate"]
    assert 1 - left == pytest.approx(TAIL_SHARE)


@pytest.mark.parametrize("name", BY_NAME)
def test_scenario_rules_are_known_to_the_simulator(name: str) -> None:
    for rule in BY_NAME[name].rules:
        fields = {key: value for key, value in rule.items() if key != "provider"}
        assert msgspec.convert(fields, FaultRule).kind == rule["kind"]
        assert fields.keys() <= set(FaultRule.__slots__)


@pytest.mark.sockets
def test_bench_faults_over_sockets_measures_each_scenario() -> None:
    """Without a gateway, a direct call fails as often as the scenario says, and is never repeated."""
    async def main() -> list[FaultRow]:
        async with Processes() as processes:
            sim = await processes.start_simulator({"a": PROVIDER, "b": PROVIDER}, 1)
            config = FaultsConfig(sim.url, 50.0, 2.0, 0.2, 5.0)
            subjects = [(Subject("direct", sim.url, "chat", "m"), LoadTargetConfig(f"{sim.url}/v1",
                                                                                   RequestConfig(Api.CHAT, "m")))]
            scenarios = [BY_NAME[name] for name in ("healthy", "errors", "429", "brownout")]
            rows: list[FaultRow] = []
            clock = SystemClock()
            await run_scenarios(config, scenarios, subjects, SimulatorControl(sim.url, clock), clock,
                          report_progress=lambda _: None,
                          on_row=rows.append)
            return rows

    healthy, errors, refused, _ = uvloop.run(main())
    assert (healthy.n_failed, healthy.calls, errors.calls) == (0, 1.0, 1.0)
    assert 0.03 < errors.n_failed / errors.n < 0.25
    assert 0.3 < refused.n_failed / refused.n < 0.7
    assert (errors.p50_s is not None, errors.p99_s) == (True, None)


@pytest.mark.sockets
def test_bench_faults_other_server_raises_no_simulator() -> None:
    """Port 9 of loopback is closed."""
    control = SimulatorControl("http://127.0.0.1:9", SystemClock())
    with pytest.raises(NoSimulator, match="POST /_sim/reset"):
        uvloop.run(control.reset())


def test_fault_table_has_a_row_for_each_run_and_marks_invalid_ones() -> None:
    """A failed quantile is printed as `failed`."""
    rows = [FaultRow("tail", "one", "first token", 100, 0.2, 1.5, None, 2, 1.25),
            FaultRow("tail", "another", "first token", 0, None, None, None, 0, nan, ("the client was late",))]
    shown = FaultTable([BY_NAME["tail"]], ["one", "another"])
    lines = "".join([shown.format_head(), *map(shown.format_row, rows), shown.format_foot(rows)]).splitlines()
    assert lines[0].split() == ["scenario", "target", "token", "p50", "p95", "p99", "failed", "calls"]
    assert lines[0].index("token") == lines[1].index("first") == lines[2].index("first")
    assert lines[1].split() == ["tail", "one", "first", "200", "ms", "1.50", "s", "failed", "2.00%", "1.250"]
    assert lines[2].endswith("INVALID")
    assert "INVALID: tail, another: the client was late" in lines
    assert lines[-1].startswith("tail: 6.8 %")


def test_faults_config_estimates_the_total_time() -> None:
    """Run lengths plus time-outs of hanging calls."""
    config = FaultsConfig("http://127.0.0.1:8100", seconds=8.0, warmup_s=3.0, timeout_s=30.0)
    assert config.estimate_s([BY_NAME["healthy"], BY_NAME["hangs"]], 2) == 4 * 11 + 2 * 30
    assert config.estimate_s([BY_NAME["errors"]], 1) == 11


@pytest.mark.sockets
def test_bench_faults_interrupted_keeps_its_rows(tmp_path: Path) -> None:
    """The first row is printed during the second scenario; after Ctrl-C it is in the file, without a traceback."""
    path = tmp_path / "rows.json"
    with running_sim_command("--json", "--provider", "a=instant") as sim:
        assert sim.stdout is not None
        url = json.loads(sim.stdout.readline())["url"]
        command = [sys.executable, "-m", "stayfast", "bench", "faults", "--target", f"direct={url}/v1", "--simulator", url,
                   "--model", "m", "--only", "healthy,hangs", "--rate", "40", "--duration", "1s", "--warmup", "0s",
                   "--timeout", "30s", "--json", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("scenario")
            assert process.stdout.readline().startswith("healthy   direct  first ")
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=20)
    assert "about 32 s left" in errors
    assert "Traceback" not in errors
    assert (process.returncode, "\nhangs: 1 call in 20" in out) == (130, True)
    assert [row["scenario"] for row in json.loads(path.read_bytes())["rows"]] == ["healthy"]


@pytest.mark.parametrize(("words", "expected"), [
    (["--target", "http://a/v1", "--only", "nothing", "--model", "m"], "--only nothing"),
    (["--target", "http://a/v1"], "--model"),
    (["--target", "http://a/v1", "--model", "m", "--rate", "0"], "--rate must be more than 0"),
    (["--target", "http://a/v1", "--model", "m", "--simulator", "nowhere"], "simulator"),
    (["--target", "http://a/v1", "--model", "m", "--json", "/nowhere/at/all.json"], "folder"),
])
def test_bench_faults_wrong_options_exit_2(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse(["faults", *words])) == 2
    assert expected in capsys.readouterr().err


def test_bench_faults_options_are_on_its_docs_page() -> None:
    """docs/bench-faults.md has all scenarios and options."""
    page = (Path(__file__).parents[2] / "docs" / "bench-faults.md").read_text()
    parser = argparse.ArgumentParser("stayfast bench faults", add_help=False)
    add_fault_options(parser)
    options = re.findall(r"(?<!\S)--?[a-z][\w-]*", parser.format_help())
    assert "--help" not in options
    assert options
    assert [option for option in options if f"`{option}" not in page and f" {option} " not in page] == []
    assert [name for name in BY_NAME if f"| `{name}` |" not in page] == []
