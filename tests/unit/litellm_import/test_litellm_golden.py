"""A whole configuration as a team has one: the written file, the lists, and that it loads."""

from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.settings import SettingsText, load_settings
from tests.unit.litellm_import.rig import variables_of

FOLDER = Path(__file__).parent / "golden"


@pytest.fixture(name="printed")
def print_import(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The written file and the lists."""
    monkeypatch.chdir(FOLDER)
    assert main(["import", "litellm", "config.yaml"]) == 0
    written = capsys.readouterr()
    return written.out, written.err


def test_import_of_a_whole_configuration_is_as_recorded(printed: tuple[str, str]) -> None:
    """After an intended change: `cd tests/unit/litellm_import/golden && stayfast import litellm config.yaml
    >stayfast.yaml 2>report.txt`, and read the difference."""
    assert printed[0] == (FOLDER / "stayfast.yaml").read_text(encoding="utf-8")
    assert printed[1] == (FOLDER / "report.txt").read_text(encoding="utf-8")


def test_import_of_a_whole_configuration_passes_check(printed: tuple[str, str], tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables set that the report names."""
    path = tmp_path / "stayfast.yaml"
    path.write_text(printed[0], encoding="utf-8")
    for name, value in variables_of(printed[0]).items():
        monkeypatch.setenv(name, value)
    assert main(["check", str(path)]) == 0


def test_import_of_a_whole_configuration_prints_no_secret(printed: tuple[str, str]) -> None:
    """Neither the file nor the lists contain what is written out in the source."""
    for secret in ("sk-a-key-in-clear-text", "sk-1234-in-clear-text", "t0ken", "langfuse.internal"):
        assert secret in (FOLDER / "config.yaml").read_text(encoding="utf-8")
        assert secret not in "".join(printed)


def test_whole_configuration_has_its_fallbacks_in_the_order_of_the_source(printed: tuple[str, str]) -> None:
    """Two replicas first, then the hosted models."""
    settings = load_settings(SettingsText("stayfast.yaml", printed[0]), variables_of(printed[0]))
    route = settings.routes["assistant"]
    assert route.upstreams == ("vllm", "vllm-2")
    assert route.on_overrun.fallback is not None
    assert [tier.model for tier in route.on_overrun.fallback.tiers] == [
        "gpt-4o-mini", "claude-sonnet-4-5", "anthropic.claude-sonnet-4-5-20250929-v1:0"]
