"""`stayfast plan`: on a log, on standard input, on a model's file, and its exit statuses."""

import json
from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.cli.plan import parse, parse_bytes
from tests.unit.lab.plan.plan_rig import world


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.jsonl"
    path.write_bytes(b"".join(world("hosted", 5, 400)[1]))
    return path


def test_plan_log_as_json_has_predictions(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine 40 % quicker: every quantile falls by 40 %."""
    assert main(["plan", str(log), "--json", "--seeds", "2", "--change", "cap=100", "--change", "machine"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    by_name = {one["name"]: one for one in plan["predictions"]}
    assert by_name["cap"]["effects"]["e2e_p95"]["value"] < 0.95
    assert by_name["machine"]["effects"]["e2e_p50"]["value"] == pytest.approx(0.6, abs=0.02)


def test_plan_few_requests_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.jsonl"
    path.write_bytes(b"".join(world("hosted", 5, 400)[1][:50]) + b"no json\n")
    assert main(["plan", str(path)]) == 5
    assert "50 requests of the route 'm' are too few" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--change", "nothing"], ["missing.jsonl"], ["--memory", "80"], ["--model", "missing"]])
def test_plan_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    assert capsys.readouterr().err.startswith("stayfast plan: ")


def test_plan_model_prints_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                                "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}))
    assert main(["plan", "--model", str(path), "--memory", "80GB", "--dtype", "q8_0", "--bandwidth", "3350GB/s"]) == 0
    printed = capsys.readouterr().out
    assert "weights 8.53 GB, KV cache 131.1 kB a token" in printed
    assert "most requests at a time: 238" in printed


def test_plan_takes_the_address_of_a_gateway_in_place_of_a_log() -> None:
    """As doctor and top do; it was taken for a file."""
    arguments = parse(["http://127.0.0.1:9", "--key-env", "K"])
    assert (arguments.url, arguments.source, parse(["gateway.log"]).source) == ("http://127.0.0.1:9", None, "gateway.log")


def test_plan_prints_no_control_characters_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log may be of somebody else; its names could move the cursor or retitle the window."""
    path = tmp_path / "gateway.jsonl"
    lines = [json.loads(line) for line in world("hosted", 5, 400)[1]]
    path.write_text("".join(json.dumps({**line, "route": "m\x1b]0;t\x07"}) + "\n" for line in lines))
    main(["plan", str(path), "--seeds", "2", "--change", "cap=100"])
    out, err = capsys.readouterr()
    assert "m?]0;t?" in out + err
    assert all(line.isprintable() for line in [*out.split("\n"), *err.split("\n")])


def test_parse_bytes_reads_units() -> None:
    assert (parse_bytes("80GB"), parse_bytes("2GiB"), parse_bytes("3350GB/s"), parse_bytes(None)) == (
        80e9, 2.0 * 2**30, 3.35e12, None)
