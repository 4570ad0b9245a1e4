"""The bench in virtual time: bit for bit repeatable, and what it refuses."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.report.files import from_json
from stayfast.lab.simulated import PRESETS

LOAD = ("--virtual", "--model", "m", "--arrivals", "gamma:0.5", "--rate", "200", "--quiet")
JAGGED = """
upstreams:
  first: {kind: simulated, preset: gpt-4o-mini-like, seed: 3, faults: [{kind: status, status: 500, rate: 0.05}]}
  other: {kind: simulated, preset: haiku-4.5-like, seed: 4}
routes: {m: {upstreams: [first, other], retry: {max_attempts: 3}}}
"""


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stayfast", "bench", *words], capture_output=True, text=True, timeout=120,
                          check=False)


def results(tmp_path: Path, name: str, words: Sequence[str]) -> list[Result]:
    file = tmp_path / name
    done = bench(*words, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return from_json(file.read_bytes())


def columns(result: Result) -> bytes:
    """All samples as bytes."""
    samples = result.samples
    floats = b"".join(column.tobytes() for column in samples.floats.values())
    return floats + b"".join(column.tobytes() for column in samples.ints.values()) + msgspec.json.encode(samples.errors)


def test_virtual_run_same_seed_is_bit_identical(tmp_path: Path) -> None:
    """Two processes with one seed: every instant of every request is equal, with faults, retries and random picks."""
    config = tmp_path / "jagged.yaml"
    config.write_text(JAGGED)
    words = (*LOAD, "--requests", "400", "--config", str(config), "--output-tokens", "conv")
    [one], [two] = results(tmp_path, "one.json", words), results(tmp_path, "two.json", words)
    assert columns(one) == columns(two)
    assert max(one.samples.ints["n_upstream_attempts"]) > 1  # retries were made
    [other] = results(tmp_path, "other.json", (*words, "--seed", "1"))
    assert columns(other) != columns(one)


def test_virtual_run_finds_known_percentiles(tmp_path: Path) -> None:
    """Percentiles match the provider's closed form: p50 within 3 %, p99 within 7 %."""
    config = tmp_path / "one.yaml"
    config.write_text("upstreams: {p: {kind: simulated, preset: sonnet-4.6-like}}\n"
                      "routes: {m: {upstreams: [p], hedge: {mode: off}}}\n")
    words = (*LOAD, "--requests", "12000", "--output-tokens", "1", "--config", str(config))
    [found] = results(tmp_path, "found.json", words)
    floats = found.samples.floats
    ttft = ExactDistribution(first - at for first, at in zip(floats["first_s"], floats["at_s"], strict=True))
    known = PRESETS["sonnet-4.6-like"].ttft
    assert ttft.quantile(0.5) == pytest.approx(known.quantile(0.5), rel=0.03)
    assert ttft.quantile(0.99) == pytest.approx(known.quantile(0.99), rel=0.07)


def test_virtual_run_failures_are_not_good(tmp_path: Path) -> None:
    """Errors, truncated streams and hanging upstreams are rows that are not good."""
    config = tmp_path / "broken.yaml"
    config.write_text("upstreams: {p: {kind: simulated, preset: instant, faults: [{kind: hang, rate: 0.2}, "
                      "{kind: truncated, rate: 0.2}, {kind: status, status: 503, rate: 0.2}]}}\n"
                      "routes: {m: {upstreams: [p], deadline: 2, retry: {max_attempts: 1}}}\n")
    [found] = results(tmp_path, "found.json", (*LOAD, "--requests", "500", "--config", str(config)))
    counted = {str(error): found.samples.errors.count(error) for error in set(found.samples.errors)}
    assert len(found.samples) == 500
    assert set(counted) >= {"", "status", "stream_error"}
    assert 100 < counted[""] < 400


def test_virtual_run_report_shows_its_cost() -> None:
    """CPU and time of this machine, and CPU of a request."""
    done = bench(*LOAD, "--requests", "50")
    assert re.search(r"^  cost      [\d.]+ m?s of CPU in [\d.]+ m?s on this machine: [\d.]+ (ms|us) of CPU a request$",
                     done.stdout, re.MULTILINE), done.stdout


def test_virtual_sweep_runs_its_steps(tmp_path: Path) -> None:
    """Each step has its own clock and system."""
    words = ("--virtual", "--model", "m", "--sweep", "rate=10,20", "--duration", "10s", "--quiet")
    found = results(tmp_path, "sweep.json", words)
    assert [len(step.samples) > 0 for step in found] == [True, True]
    assert found[0].label != found[1].label


@pytest.mark.parametrize(("words", "expected"), [
    (("--virtual", "--model", "m", "--rate", "1", "--target", "http://127.0.0.1:1"), "leave out --target"),
    (("--model", "m", "--rate", "1", "--config", "x.yaml"), "--config is for --virtual"),
    (("--virtual", "--model", "m", "--rate", "1", "--config", "missing.yaml"), "missing.yaml"),
])
def test_virtual_wrong_options_exit_2(words: Sequence[str], expected: str) -> None:
    done = bench(*words)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_virtual_real_upstreams_are_refused(tmp_path: Path) -> None:
    """A socket answers in real time; the upstream is named."""
    config = tmp_path / "real.yaml"
    config.write_text("upstreams: {far: {kind: openai, base_url: 'http://127.0.0.1:1/v1', key: k}}\nroutes: {m: [far]}\n")
    done = bench("--virtual", "--model", "m", "--rate", "1", "--config", str(config))
    assert done.returncode == 2
    assert "far (kind openai)" in done.stderr
