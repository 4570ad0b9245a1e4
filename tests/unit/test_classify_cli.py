"""`stayfast classify`: training from a file, and errors that name the line."""

from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.lab.classify_eval import UnreadableExamples, read_examples
from tests.classifier_rig import EXAMPLES, write_small_classifier


def write_examples(path: Path) -> Path:
    """Three labels, 24 rows, one of them twice."""
    rows = [f"{text},{label}" for label, texts in EXAMPLES.items() for text in texts]
    path.write_text("text,label\n" + "\n".join([*rows, rows[0]]) + "\n")
    return path


def test_classify_train_test_show_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write_examples(tmp_path / "a.csv"), tmp_path / "x.npz"
    assert main(["classify", "train", str(file), "--out", str(out), "--precision", "0.8"]) == 0
    first = out.read_bytes()
    printed = capsys.readouterr().out
    assert "3 labels, 1 repeated rows left out" in printed
    assert main(["classify", "train", str(file), "--out", str(out), "--precision", "0.8"]) == 0
    assert out.read_bytes() == first
    assert main(["classify", "test", str(out), str(file)]) == 0
    assert "the figures flatter" in capsys.readouterr().out
    assert main(["classify", "show", str(out)]) == 0
    assert "static-" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "word"), [
    ("a,b\n1,2\n", "line 1: the columns are a, b"), ("text,label\nhi,\n", "line 2: a cell is empty"),
    ("text,label\nhi\n", "line 2: has 1 columns"), ("text,label\nhi,unknown\n", "line 2: unknown is the answer"),
    ("text,label\nhi,a\nhi,b\n", "line 3: the same text has two labels"), ("text,label\nhi,a\nho,a\n", "1 labels"),
    ("text,label\nhi,a\nho,a\nha,b\n", "'b' has one row"), ("", "line 1"),
    (f"text,label\n{'a' * 2_001},b\n", "line 2: 2,001 characters"),
])
def test_read_examples_wrong_row_is_named(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UnreadableExamples, match=word):
        read_examples(tmp_path / "a.csv")


SETTINGS = """upstreams: {{u: {{kind: simulated}}}}
classifiers: {{intent: {{file: {file}}}}}
routes:
  m: {{upstreams: [u], classify: {{by: intent, routes: {{{label}: other}}}}}}
  other: {{upstreams: [u]}}
"""


def test_check_usable_classifier_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(SETTINGS.format(file=write_small_classifier(tmp_path / "x.npz"), label="card"))
    assert main(["check", str(file)]) == 0


@pytest.mark.parametrize(("label", "n_bytes", "message"), [
    ("card", 3_000, "classifiers.intent.file: {file} is not a classifier"),
    ("crad", None, "routes.m.classify.routes: classifier intent has no label 'crad'"),
])
def test_check_and_serve_unusable_classifier_is_one_line_with_the_setting(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str, n_bytes: int | None, message: str) -> None:
    """Status 1 of `check`, 78 of `serve`, which neither starts nor prints a traceback."""
    model, file = write_small_classifier(tmp_path / "x.npz"), tmp_path / "f.yaml"
    model.write_bytes(model.read_bytes()[:n_bytes])
    file.write_text(SETTINGS.format(file=model, label=label))
    assert main(["check", str(file)]) == 1
    assert message.format(file=model) in capsys.readouterr().err
    assert main(["serve", "--check", "--config", str(file)]) == 78
    capsys.readouterr()
    assert main(["serve", "--port", "0", "--config", str(file)]) == 78
    assert f"stayfast serve: {message.format(file=model)}" in capsys.readouterr().err
