"""`stayfast import litellm` and `stayfast check` on a foreign file."""

from pathlib import Path

import pytest

from stayfast.cli import main

SIMPLE = "model_list: [{model_name: m, litellm_params: {model: openai/x}}]\n"


def test_import_prints_the_file_and_lists_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the file alone, so that it can be redirected."""
    source = tmp_path / "config.yaml"
    source.write_text(SIMPLE)
    assert main(["import", "litellm", str(source)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("# Settings of Stayfast")
    assert "taken: 2 values" in printed.err
    assert "set before the start: OPENAI_API_KEY" in printed.err


def test_import_overwrites_a_file_only_if_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing settings file may have been edited."""
    source, target = tmp_path / "config.yaml", tmp_path / "stayfast.yaml"
    source.write_text(SIMPLE)
    target.write_text("mine")
    assert main(["import", "litellm", str(source), "-o", str(target)]) == 1
    assert target.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["import", "litellm", str(source), "-o", str(target), "--force"]) == 0
    assert "upstreams: [openai]" in target.read_text()


@pytest.mark.parametrize(("text", "status"), [(SIMPLE, 0), (SIMPLE + "guardrails: [a]\n", 2)])
def test_import_with_strict_fails_if_a_value_is_not_taken(text: str, status: int, tmp_path: Path) -> None:
    """The file is written all the same."""
    source, target = tmp_path / "config.yaml", tmp_path / "stayfast.yaml"
    source.write_text(text)
    assert main(["import", "litellm", str(source), "-o", str(target), "--strict"]) == status
    assert target.exists()


def test_import_with_report_lists_every_value_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each value."""
    source = tmp_path / "config.yaml"
    source.write_text(SIMPLE + "guardrails:\n- a\n- b\n")
    assert main(["import", "litellm", str(source), "--report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "taken: 2 values", "taken differently: 0 values", "not taken: 2 values"]
    assert any(f"{source}:4: guardrails[1]: " in line for line in lines)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("text", [None, "a: [", "- 1", "include: [absent.yaml]\n"])
def test_import_of_what_cannot_be_read_fails(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, no YAML, no mapping, a missing include."""
    source = tmp_path / "config.yaml"
    if text is not None:
        source.write_text(text)
    assert main(["import", "litellm", str(source)]) == 1
    assert ".yaml" in capsys.readouterr().err


def test_import_without_a_usable_model_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway could not start with the result."""
    source = tmp_path / "config.yaml"
    source.write_text("model_list: [{model_name: m, litellm_params: {model: cohere/x}}]\n")
    assert main(["import", "litellm", str(source)]) == 1
    assert "nothing to serve" in capsys.readouterr().err


def test_import_reads_an_include_relative_to_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From any working directory."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "config.yaml").write_text("include: [parts/a.yaml]\n")
    (tmp_path / "parts" / "a.yaml").write_text("include: [b.yaml]\n")
    (tmp_path / "parts" / "b.yaml").write_text(SIMPLE)
    assert main(["import", "litellm", str(tmp_path / "config.yaml")]) == 0
    assert "# from b.yaml:1" in capsys.readouterr().out


def test_import_refuses_a_loop_of_includes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However the path is written."""
    source = tmp_path / "config.yaml"
    source.write_text("include: [./../" + tmp_path.name + "/config.yaml]\n")
    assert main(["import", "litellm", str(source)]) == 1
    assert "includes itself" in capsys.readouterr().err


def test_check_of_a_litellm_file_names_the_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command alone: hints for single keys would hide it."""
    source = tmp_path / "config.yaml"
    source.write_text(SIMPLE)
    assert main(["check", str(source)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"`stayfast import litellm {source} -o stayfast.yaml`" in line


@pytest.mark.parametrize(("model", "first"), [
    ("openai/x", " set the variables above, then\n"), ("hosted_vllm/x, api_base: 'http://h/v1'", "\n")])
def test_import_names_what_to_do_next(model: str, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "config.yaml", tmp_path / "stayfast.yaml"
    source.write_text(f"model_list: [{{model_name: m, litellm_params: {{model: {model}}}}}]\n")
    assert main(["import", "litellm", str(source), "-o", str(target)]) == 0
    assert f"wrote {target}; next:{first}  stayfast check {target}" in capsys.readouterr().err
