"""`stayfast alerts` and `stayfast dashboard`: where their files go, and what wrong settings do."""

import json
from pathlib import Path

import pytest
import yaml

from stayfast.cli import main
from stayfast.compose.system import slo_bounds_s
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings

TEXT = """
upstreams: {u: {kind: simulated}}
routes:
  plain: [u]
  quick: {upstreams: [u], slo: {ttft: {under_s: 0.5, share: 0.99}, e2e: {under_s: 10}}}
  free: {upstreams: [u], slo: {availability: null, ttft: null}}
defaults: {slo: {availability: 0.999, usable: {under_s: 3}}}
"""


def settings() -> Settings:
    """Routes that promise what the defaults say, more, and less."""
    return load_settings(SettingsText("test", TEXT), {}, kinds=KINDS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The same as a file."""
    path = tmp_path / "stayfast.yaml"
    path.write_text(TEXT)
    return path


def test_alerts_route_without_slo_inherits_defaults() -> None:
    """What a route does not say comes from defaults.slo, piece by piece; null takes a promise back."""
    promised = {name: [objective.name for objective in route.slo.objectives()] for name, route in settings().routes.items()}
    assert promised == {"plain": ["availability", "ttft", "usable"], "quick": ["availability", "ttft", "usable", "e2e"],
                        "free": ["usable"]}
    assert settings().routes["quick"].slo.availability == 0.999


def test_alerts_every_slo_bound_is_a_bucket() -> None:
    """Each latency promised, by metric: what the gateway's histograms get."""
    assert slo_bounds_s(settings()) == {"ttft": [2.0, 0.5], "usable": [3.0, 3.0, 3.0], "e2e": [10.0]}


def test_alerts_without_out_prints_rules(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """YAML with a group for each promise."""
    assert main(["alerts", "--config", str(file)]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert "stayfast-slo-alerts-quick-e2e" in [group["name"] for group in made["groups"]]


def test_alerts_sloth_format_writes_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed; the windows are left to sloth."""
    assert main(["alerts", "--config", str(file), "--format", "sloth", "--out", str(tmp_path / "slo.yml")]) == 0
    made = yaml.safe_load((tmp_path / "slo.yml").read_text())
    assert [slo["name"] for slo in made["slos"]][:2] == ["plain-availability", "plain-ttft"]
    assert all("[{{.window}}]" in query for slo in made["slos"] for query in slo["sli"]["events"].values())
    assert capsys.readouterr().out == ""


def test_alerts_out_in_missing_folder_fails(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1 and a reason."""
    assert main(["alerts", "--config", str(file), "--out", str(tmp_path / "no" / "where.yml")]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "word"), [
    ("slo: {ttft: {under_s: 0}}", "under_s"), ("slo: {availability: 99}", "availability"), ("slo: {tftt: {}}", "ttft")])
def test_alerts_invalid_slo_is_reported(text: str, word: str) -> None:
    """Told with the line, by name."""
    with pytest.raises(SettingsError, match=word):
        load_settings(SettingsText("test", f"upstreams: {{u: {{kind: simulated}}}}\nroutes: "
                                           f"{{m: {{upstreams: [u], {text}}}}}\n"), {},
             kinds=KINDS)


def test_alerts_invalid_settings_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1 and what is wrong, no half a file."""
    (tmp_path / "stayfast.yaml").write_text("routs: {}")
    assert main(["alerts", "--config", str(tmp_path / "stayfast.yaml")]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "routs" in shown.err


def test_dashboard_prints_packaged_json(tmp_path: Path) -> None:
    """A file that is JSON."""
    assert main(["dashboard", "--out", str(tmp_path / "board.json")]) == 0
    assert json.loads((tmp_path / "board.json").read_text())["uid"] == "stayfast"
