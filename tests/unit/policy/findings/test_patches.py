"""Patches as YAML."""

import pytest
import yaml

from stayfast.policy.findings.patches import change_settings, write_patch
from stayfast.settings.load import SettingsText, load_settings


def test_patch_is_nested_yaml() -> None:
    assert write_patch({"routes": {"chat": {"hedge": {"mode": "auto", "budget": 0.05}}}}) == (
        "routes:\n  chat:\n    hedge:\n      mode: auto\n      budget: 0.05")


@pytest.mark.parametrize("name", ["*", "no", "gpt-4:x", "o'n", '"', "123", "1e3"])
def test_names_that_yaml_would_change_are_quoted(name: str) -> None:
    text = write_patch({"upstreams": {"u": {"kind": "openai", "key": "k"}},
                        "routes": {name: {"upstreams": ["u"], "deadline": 2.0}}})
    assert list(load_settings(SettingsText("patch", text), {}).routes) == [name]


@pytest.mark.parametrize("value", [200_000.0, 12_345.6, 999.99, 0.05, 1e6])
def test_float_is_read_as_a_number(value: float) -> None:
    assert yaml.safe_load(write_patch({"value": value}))["value"] == pytest.approx(value, rel=1e-3)


def test_change_has_effect_patch_and_saving() -> None:
    change = change_settings("less", {"workers": 2}, "measured", saves_s=1.0)
    assert (change.effect, change.patch, change.confidence, change.saves_s) == ("less", "workers: 2", "measured", 1.0)
