"""The command line of `stayfast bench`: errors, a run, an A/B, a sweep, Ctrl-C."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import uvloop

from stayfast import cli
from stayfast.cli.bench import format_command_line, parse
from stayfast.cli.bench_options import make_job
from stayfast.cli.bench_session import SocketSession
from stayfast.core.clock import SystemClock
from stayfast.lab.load import selftest
from stayfast.lab.load.measure import LoadOrigin
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report import files, table
from stayfast.lab.report.table import TerminalStyle
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import HttpUpstream, SettingsText, load_settings
from tests.bench.servers import serving, whole
from tests.bench.synthetic import Scenario, result

ROOT = Path(__file__).parents[2]
BASE = ["bench", "--target", "http://127.0.0.1:9/v1", "--model", "m", "--quiet"]


@pytest.fixture(scope="module")
def server() -> Iterator[selftest.SelftestServer]:
    """A server on its own loop with answers of four pieces in 20 ms."""
    ready: Future[tuple[selftest.SelftestServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        served = selftest.SelftestServer(selftest.SelftestTiming(0.01, 0.003, 4), SystemClock())
        await served.start()
        stop = asyncio.Event()
        ready.set_result((served, asyncio.get_running_loop(), stop))
        await stop.wait()
        served.close()

    thread = threading.Thread(target=lambda: uvloop.run(main()), daemon=True)
    thread.start()
    served, loop, stop = ready.result(5)
    yield served
    loop.call_soon_threadsafe(stop.set)
    thread.join(5)


@pytest.fixture
def url(server: selftest.SelftestServer) -> str:
    return server.url


REFUSED = [
    (["--rate", "5", "--concurrency", "2"], "give one of"),
    ([], "no load is given"),
    (["--rate", "x"], "--rate x: not a number"),
    (["--rate", "0"], "above 0"),
    (["--concurrency", "0"], "1 to 1000000"),
    (["--rate", "5", "--config", "x.yaml"], "--config is for --virtual"),
    (["--arrivals", "trace:/nope"], "/nope cannot be read"),
    (["--arrivals", "trace:x", "--input-tokens", "5"], "no meaning with a trace"),
    (["--rate", "5", "--time-scale", "2"], "--time-scale is for"),
    (["--arrivals", "gamma:1", "--concurrency", "3"], "closed loop"),
    (["--rate", "5", "--think", "3s"], "--think needs --turns"),
    (["--rate", "5", "--zipf", "1"], "--zipf needs --pool"),
    (["--rate", "5", "--duration", "10"], "--duration: '10' is not a duration"),
    (["--rate", "5", "--timeout", "0s"], "time-out must be"),
    (["--rate", "5", "--assert", "ttft.p9x<3"], "column 8"),
    (["--rate", "5", "--slo", "ttft:500"], "add the unit"),
    (["--rate", "5", "--key-env", "STAYFAST_NO_SUCH_KEY"], "is not set"),
    (["--rate", "5", "--input-tokens", "some"], "write N"),
    (["--rate", "5", "--dialect", "morse"], "known are chat"),
    (["--rate", "5", "--body", "[1]"], "JSON object"),
    (["--rate", "5", "--header", "x"], "NAME:VALUE"),
    (["--rate", "5", "--json", "/no/such/folder/x"], "folder does not exist"),
    (["--rate", "5", "--block", "2s"], "--block is for an A/B"),
    (["--rate", "5", "--target", "b=http://b", "--sweep", "1,2"], "leave out --rate"),
    (["--sweep", "1,2", "--target", "b=http://b"], "give one --target"),
    (["--rate", "5", "--target", "b=http://b", "--turns", "2"], "give one --target"),
    (["--sweep", "rate=1,2", "--arrivals", "ramp:1:2s"], "cannot change them"),
    (["--rate", "5", "--model", "n"], "given twice"),
    (["--rate", "5", "--target", "127.0.0.1:9=http://b"], "127.0.0.1:9 is the name of another"),
    (["--rate", "5", "--target", "=http://b"], "the name before the = is empty"),
    (["--rate", "5", "--target", "a/b=http://b"], "the name before the = is 'a/b'"),
    (["--rate", "5", "--target", "a b=http://b"], "no blank"),
    (["--rate", "5", "--target", "gateway"], "neither a URL"),
    (["--rate", "5", "--insecure", "--ca-file", "x"], "leave out --ca-file"),
]


@pytest.mark.parametrize(("options", "expected"), REFUSED)
def test_bench_wrong_options_exit_2(options: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is sent; exit status 2 with the reason in one line."""
    assert cli.main([*BASE, *options]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_command_line_omits_header_values() -> None:
    """Header values may be keys."""
    words = ["run", "--rate", "5", "--header", "authorization: Bearer k", "--header=x-key: k", "--key-env", "KEY"]
    assert format_command_line(words) == (
        "stayfast bench --rate 5 --header authorization:... --header=x-key:... --key-env KEY")


@pytest.mark.sockets
def test_bench_run_writes_json_csv_and_html(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table on standard output; JSON that can be read, one CSV row a request, a page."""
    paths = {kind: str(tmp_path / f"r.{kind}") for kind in ("json", "csv", "html")}
    cli.main(["bench", "--target", f"here={url}", "--model", "m", "--rate", "60", "--duration", "500ms",
              "--warmup", "100ms", "--slo", "e2e:5s", "--assert", "goodput>0.99", "--quiet",
              *(f"--{kind}={path}" for kind, path in paths.items())])
    shown = capsys.readouterr()
    assert "ttft_sched" in shown.out
    assert "goodput>0.99" in shown.out
    [result] = files.from_json(Path(paths["json"]).read_bytes())
    assert (result.label, result.duration_s, result.counted_by) == ("here", 0.5, "usage")
    assert result.workload["warm-up"] == "100 ms, not measured"
    assert all(sample.at_s >= 0 for sample in result.samples)
    assert len(Path(paths["csv"]).read_text().splitlines()) == len(result.samples) + 1
    assert Path(paths["html"]).read_text().startswith("<!doctype html>")


@pytest.mark.sockets
def test_bench_failed_assertion_exits_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--target", url, "--model", "m", "--rate", "30", "--requests", "10", "--quiet",
                     "--assert", "e2e.p50<1ms"]) == 1
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.sockets
def test_bench_two_targets_are_compared(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run, two results with the same requests, and `compare` and `report` of the file."""
    path = str(tmp_path / "ab.json")
    cli.main(["bench", "run", "--target", f"a={url}", "--target", f"b={url}", "--model", "m", "--rate", "40",
              "--duration", "1s", "--block", "500ms", "--quiet", "--json", path])
    assert "a (A) against b (B)" in capsys.readouterr().out
    a, b = files.from_json(Path(path).read_bytes())
    assert sorted(a.samples.floats["at_s"]) == pytest.approx(sorted(b.samples.floats["at_s"]))
    is_valid = a.health.is_valid and b.health.is_valid  # by the machine's grace
    assert cli.main(["bench", "compare", path, "--threshold", "1000"]) == (0 if is_valid else 1)
    assert "a (A) against b (B)" in capsys.readouterr().out
    assert cli.main(["bench", "report", f"{path}:b"]) == 0
    assert "b  http" in capsys.readouterr().out
    assert cli.main(["bench", "compare", f"{path}:a"]) == 2
    assert cli.main(["bench", "compare", f"{path}:nope", path]) == 2
    assert cli.main(["bench", "report", "/nope.json"]) == 2
    assert "/nope.json: No such file" in capsys.readouterr().err
    assert cli.main(["bench", "compare", "nofile.json"]) == 2
    assert "nofile.json: No such file" in capsys.readouterr().err


@pytest.mark.sockets
def test_bench_sweep_prints_the_knee(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["bench", "--target", url, "--model", "m", "--sweep", "1,3", "--duration", "300ms", "--quiet"])
    shown = capsys.readouterr().out
    assert "c=1" in shown
    assert "c=3" in shown
    assert "knee:" in shown


@pytest.mark.sockets
def test_bench_dead_target_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BASE, "--rate", "50", "--requests", "5"]) == 1
    shown = capsys.readouterr().out
    assert "connect 5" in shown
    assert "127.0.0.1:9 cannot be reached: Connection refused.\n  Nothing succeeded: connect (5)." in shown


@pytest.mark.sockets
def test_bench_dead_named_target_shows_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["bench", "--target", "up=http://127.0.0.1:9/v1", "--model", "m", "--quiet", "--rate", "50", "--requests", "2"])
    assert "  127.0.0.1:9 cannot be reached: Connection refused." in capsys.readouterr().out


def test_bench_large_bound_without_unit_prints_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--virtual", "--model", "m", "--rate", "50", "--requests", "5", "--quiet"]
    cli.main([*words, "--assert", "ttft.p50<800", "--assert", "e2e.p50<60"])
    assert capsys.readouterr().err == "--assert ttft.p50<800: read as 800 seconds; write ms for milliseconds\n"


def test_bench_compare_equal_labels_shows_file_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("gw.json", "gw2.json")]
    for seed, path in enumerate(paths):
        path.write_bytes(files.to_json([MeasuredRun(result(Scenario(n=200), seed, label="127.0.0.1:8090"))]))
    cli.main(["bench", "compare", *map(str, paths)])
    assert capsys.readouterr().out.startswith(f"{paths[0]} (A) against {paths[1]} (B)\n")


def test_bench_help_refers_to_the_options_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    assert "`stayfast bench run --help` has the options" in " ".join(capsys.readouterr().out.split())


def test_measuring_page_compares_the_gateway_with_its_own_upstream() -> None:
    """In "Two targets", the gateway's only upstream is the other target."""
    section = (ROOT / "docs" / "measuring.md").read_text().partition("\n## Two targets\n")[2].partition("\n## ")[0]
    [settings] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    read = load_settings(SettingsText("measuring.md", settings), {}, kinds=KINDS)
    [upstream] = read.upstreams.values()
    assert isinstance(upstream, HttpUpstream)
    assert f"--target direct={upstream.base_url} " in section
    assert f"--model {next(iter(read.routes))} " in section
    assert "stayfast sim --provider fast=instant" in section


@pytest.mark.sockets
def test_bench_without_success_shows_the_failed_body() -> None:
    """Status and start of the body, so that a wrong path or key is visible."""
    async def main() -> str:
        async with serving([whole(b'{"error":{"message":"no such model"}}', "404 Not Found")]) as (url, _):
            given = parse(["--target", url, "--model", "m", "--rate", "50", "--requests", "5", "--quiet"])
            session = SocketSession(make_job(given, {}), LoadOrigin(), is_quiet=True)
            await session.run()
            [result] = session.results
            return table.format_report([MeasuredRun(result)], TerminalStyle(is_on=False))

    shown = asyncio.run(main())
    assert "Nothing succeeded: status 404 (5)." in shown
    assert 'Body of the first failed answer: {"error":{"message":"no such model"}}' in shown


@pytest.mark.sockets
def test_bench_interrupted_reports_finished_requests(server: selftest.SelftestServer, tmp_path: Path) -> None:
    """A run of a minute, interrupted after ten answers: the report of what was sent, marked as interrupted."""
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "stayfast", "bench", "--target", server.url, "--model", "m", "--rate", "20",
               "--duration", "60s", "--json", str(path), "--assert", "goodput>0.5"]
    server.write_times.clear()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "NO_COLOR": "1"}) as process:
        by = time.monotonic() + 10
        while len(server.write_times) < 10 and time.monotonic() < by:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=10)
    assert "no more is sent" in error
    assert "interrupted: assertions were not judged" in out
    assert "holds" not in out
    assert process.returncode == 130
    [result] = files.from_json(path.read_bytes())
    assert 10 <= len(result.samples) < 200
    assert json.loads(path.read_bytes())["results"][0]["label"] == server.url.removeprefix("http://").removesuffix("/v1")
