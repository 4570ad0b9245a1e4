"""`stayfast quantise` as a user runs it, and `stayfast plan` with what it found."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from stayfast.cli import main
from tests.engine.quantise_rig import write_model

pytestmark = pytest.mark.sockets


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An f16 model whose vocabulary are bytes."""
    path = write_model(tmp_path / "small.f16.gguf", n_embd=64, n_layer=1)
    path.with_suffix(".plain").unlink()
    return path


def write_text(path: Path, n_chars: int = 1_200) -> str:
    """Letters, each a token."""
    path.write_text("".join(Random(5).choices("abcdefghij", k=n_chars)))
    return str(path)


def test_quantise_writes_a_checked_model_that_a_plan_uses(model: Path, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    questions = tmp_path / "q.yaml"
    questions.write_text("- {question: Hi, regex: '^[a-z]*$', max_tokens: 4}\n"
                         "- {question: Hi, expected: x, max_tokens: 4}\n")
    status = main(["quantise", str(model), "--to", "q8_0", "--text", write_text(tmp_path / "text.txt"), "--questions",
                   str(questions), "--threads", "1"])
    printed = capsys.readouterr()
    assert status == 6, printed.err  # two questions show nothing
    target, report = tmp_path / "small.q8_0.gguf", json.loads((tmp_path / "small.q8_0.gguf.json").read_text())
    assert target.stat().st_size == report["after"]["file_bytes"] < report["before"]["file_bytes"] == model.stat().st_size
    assert report["accuracy"]["n_positions"] == 6 * 160
    assert 0 <= report["accuracy"]["kl"]["value"] < 0.01
    assert report["accuracy"]["same_first"]["value"] > 0.5
    assert (report["questions"]["n_right_before"], report["questions"]["n_lost"]) == (1, 0)
    assert report["speed"]["answer_before"] > 0
    assert [(one["measure"], one["verdict"]) for one in report["verdicts"]] == [
        ("perplexity", "holds"), ("KL divergence", "holds"), ("questions", "inconclusive")]
    for words in ("small.f16.gguf -> small.q8_0.gguf", "KV cache of a token", "1 of 2", "183",
                  "Verdict: inconclusive", f"Report: {target}.json"):
        assert words in printed.out
    assert all(len(line) <= 80 for line in printed.out.splitlines() if not line.startswith("Report"))
    for file in (model, target):
        assert main(["plan", "--model", str(file), "--memory", "2GB", "--bandwidth", "100GB/s"]) == 0
        plan = capsys.readouterr().out
        for words in ("quantise to q8_0", "most requests at a time: ", " -> ", "measured: ", "answers lost",
                      "inconclusive", "small.q8_0.gguf.json"):
            assert words in plan, words
    target.write_bytes(target.read_bytes() + b"\0" * 32)  # another file by now
    assert main(["plan", "--model", str(target)]) == 0
    assert "quantise to" not in capsys.readouterr().out


def test_quantise_without_a_check_writes_the_model_as_json(model: Path, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "other.gguf"
    assert main(["quantise", str(model), "--to", "q4_0", "-o", str(target), "--no-check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["accuracy"], report["to"]) == ("not checked", None, "q4_0")
    assert main(["quantise", str(model), "--to", "q4_0", "-o", str(target), "--no-check"]) == 2
    assert "--force overwrites it" in capsys.readouterr().err


def test_quantise_too_short_text_leaves_the_model_unchecked(model: Path, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["quantise", str(model), "--to", "q8_0", "--text", write_text(tmp_path / "text.txt", 300)])
    printed = capsys.readouterr()
    assert (status, (tmp_path / "small.q8_0.gguf").is_file()) == (6, True)
    assert "not checked: the text has 300 tokens; an interval needs 1,152" in printed.err
    assert "Verdict: not checked" in printed.out


@pytest.mark.parametrize(("words", "message"), [
    (["missing.gguf", "--to", "q8_0"], "missing.gguf: No such file"),
    (["{model}", "--to", "q8_0", "--questions", "missing.yaml"], "missing.yaml: No such file"),
    (["{model}", "--to", "q8_0", "-o", "{model}", "--force"], "is the model itself"),
    (["{model}", "--to", "q8_0", "-o", "/nonexistent/x.gguf"], "No such file"),
    ([__file__, "--to", "q8_0"], "is not a GGUF file")])
def test_quantise_wrong_file_exits_2(model: Path, words: list[str], message: str,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantise", *(word.format(model=model) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("stayfast quantise: ")
    assert message in error


@pytest.mark.parametrize("words", [["--to", "q4_k_m"], ["--to", "q8_0", "--max-kl", "no"], ["--to", "q8_0", "--chunks", "0"],
                                   ["--to", "q8_0", "--max-perplexity-loss", "200%"], []])
def test_quantise_wrong_option_exits_2(model: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quantise", str(model), *words])
    assert ended.value.code == 2


def test_quantise_without_its_packages_names_the_extra(model: Path) -> None:
    code = (f"import sys; sys.modules['gguf'] = None; from stayfast.cli import main; "
            f"sys.exit(main(['quantise', {str(model)!r}, '--to', 'q8_0']))")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "gguf is not installed; it is the extra `quantise`" in found.stderr


def test_quantise_terminated_leaves_no_part(tmp_path: Path) -> None:
    """SIGTERM in the middle of the writing: neither the model nor a part of it remains."""
    model = write_model(tmp_path / "big.f16.gguf", n_embd=1024, n_layer=4)
    folder = tmp_path / "out"
    folder.mkdir()
    child = subprocess.Popen([sys.executable, "-m", "stayfast", "quantise", str(model), "--to", "q4_0", "--no-check", "-o",
                              str(folder / "new.gguf")], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while child.poll() is None and not list(folder.iterdir()):
        os.sched_yield()
    assert [path.suffix for path in folder.iterdir()] == [".partial"]
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert list(folder.iterdir()) == []
