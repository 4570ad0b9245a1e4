"""Presets of routes by kind of work."""

from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.policy.slo import Latency
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.effective import SettingsReport, settings_as_yaml
from stayfast.settings.presets import PRESETS, preset_lines

UPSTREAM = 'upstreams: {up: {kind: openai, base_url: "http://127.0.0.1:1/v1", key: none}}\n'


def settings(route: str, more: str = "") -> Settings:
    return load_settings(SettingsText("test", f"{UPSTREAM}routes: {{m: {{upstreams: [up], {route}}}}}\n{more}"), {})


@pytest.mark.parametrize(("preset", "under_s", "total_s"), [
    ("chat", 0.5, 300), ("completion", 0.1, 10), ("batch", 30, 3600), ("agent", 2, 900), ("reasoning", 30, 900)])
def test_preset_sets_objective_and_time_limits(preset: str, under_s: float, total_s: float) -> None:
    route = settings(f"preset: {preset}").routes["m"]
    assert (route.slo.ttft, route.total_s) == (Latency(under_s, 0.95), total_s)
    assert route.hedge.mode == ("off" if preset == "batch" else "auto")


def test_preset_gives_way_to_the_route_but_not_to_defaults() -> None:
    """The route knows better than a preset, a preset better than what is meant for all."""
    made = settings("preset: chat, timeouts: {total_s: 20}, slo: {ttft: {share: 0.8}}",
                    "defaults: {timeouts: {total_s: 50, connect_s: 3}, slo: {availability: 0.9}}\n").routes["m"]
    assert (made.total_s, made.timeouts.connect_s, made.timeouts.idle_s) == (20, 3, 30)
    assert (made.slo.ttft, made.slo.availability) == (Latency(0.5, 0.8), 0.9)


def test_preset_leaves_an_objective_that_the_route_turned_off() -> None:
    assert settings("preset: chat, slo: {ttft: null}").routes["m"].slo.ttft is None


def test_preset_of_unknown_name_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"routes\.m\.preset: must be one of chat, completion, batch, agent, reasoning"):
        settings("preset: chatt")


def test_preset_is_the_source_of_what_it_sets() -> None:
    made = settings("preset: completion, timeouts: {total_s: 5}")
    assert made.sources["routes.m.timeouts.idle_s"] == "preset completion"
    assert not made.sources["routes.m.timeouts.total_s"].startswith("preset")
    (line,) = preset_lines(made.sources)
    assert line.startswith("route m: preset completion: ")
    assert "slo.ttft.under_s 0.1" in line
    assert "total_s" not in line


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_survives_effective_settings(preset: str) -> None:
    """What `stayfast check --effective` prints is the same when it is loaded."""
    made = settings(f"preset: {preset}")
    text = settings_as_yaml(SettingsReport(made).read())
    again = load_settings(SettingsText("again", text.replace("(hidden)", "none")), {})
    assert again.routes["m"] == made.routes["m"]


def test_check_prints_presets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"{UPSTREAM}routes: {{m: {{upstreams: [up], preset: batch}}}}\n")
    assert main(["check", str(file)]) == 0
    assert "route m: preset batch: " in capsys.readouterr().out
