"""Keys of earlier versions are refused with what to do about them."""

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Override, SettingsError, SettingsText, load_settings
from stayfast.settings.decoder import REMOVED_KEYS, RENAMED_KEYS, explain_removed
from stayfast.settings.migration_hints import ANY
from stayfast.settings.problems import Path

BASE = "upstreams: {a: {kind: simulated}}\nroutes: {m: [a]}\n"
TABLE = {("server", "old"): "renamed to new", ("routes", ANY, "tiers", ANY, "old"): "in a list", ("gone",): "a section"}


def complaints(text: str, *overrides: Override) -> list[str]:
    """The lines of the error that a text makes."""
    with pytest.raises(SettingsError) as caught:
        load_settings(SettingsText("f.yaml", text), {}, overrides, kinds=KINDS)
    return str(caught.value).splitlines()


def test_removed_key_is_reported_with_its_line() -> None:
    """In place of `unknown setting`, whatever its value is."""
    for value in ("300", "0", "[x]", "{y: 1}", ""):
        [line] = complaints(f"{BASE}server:\n  keep_warm_per_s: {value}")
        assert line == ("f.yaml:4:3: server.keep_warm_per_s: removed: the gateway no longer sends requests to itself. "
                        "Delete this line")


def test_removed_key_does_not_hide_other_problems() -> None:
    """One run names them all."""
    lines = complaints(f"{BASE}server: {{keep_warm_per_s: 0, keep_warm: 0, port: x}}")
    assert [line.split(": ")[1] for line in lines] == ["server.keep_warm_per_s", "server.keep_warm", "server.port"]
    assert ": removed: " in lines[0]
    assert lines[1].endswith(": unknown setting")


@pytest.mark.parametrize(("path", "explanation"), [
    (("server", "old"), "renamed to new"),
    (("routes", "m", "tiers", 3, "old"), "in a list"),
    (("gone",), "a section"),
    (("old",), None),
    (("server", "old", "inner"), None),
    (("routes", "m", "old"), None),
    (("routes", "m", "tiers", 3, "older"), None),
])
def test_removed_key_pattern_matches_any_name_and_position(path: Path, explanation: str | None) -> None:
    """A key is explained in the place that the table names, and in no other."""
    assert explain_removed(path, TABLE) == explanation


UPSTREAMS = ("kind: simulated", "kind: openai, base_url: 'http://127.0.0.1:1'")
FULL = """\
upstreams: {{a: {{{upstream}}}}}
routes: {{m: {{upstreams: [a], prefix: {{models: {{x: {{}}}}}}}}}}
stores: {{disk: {{kind: sqlite, path: a.db}}}}
workers: 0
"""
NAMES = {"upstreams": "a", "routes": "m", "stores": "disk", "models": "x"}


def setting_at(pattern: tuple[str, ...]) -> tuple[str, ...]:
    """A path in FULL that the pattern matches."""
    return tuple(NAMES.get(before, "x") if step == ANY else step
                 for before, step in zip(("", *pattern), pattern, strict=False))


def problems_with(path: tuple[str, ...], upstream: str) -> list[str]:
    """The messages for one key of FULL, set to a text that no key takes."""
    text, key = FULL.format(upstream=upstream), path[-1]
    if "faults" in path:  # a position in a list, which an override cannot name
        lines = complaints(text.replace(upstream, f"{upstream}, faults: [{{{key}: '?'}}]"))
    else:
        lines = complaints(text, Override(path, "?", "--set"))
    return [line for line in lines if key in line]


@pytest.mark.parametrize("pattern", REMOVED_KEYS)
def test_removed_key_is_refused_with_its_explanation(pattern: tuple[str, ...]) -> None:
    """Each of them, wherever it stood."""
    lines = problems_with(setting_at(pattern), UPSTREAMS[0])
    assert any(line.endswith(f": {REMOVED_KEYS[pattern]}") for line in lines)


@pytest.mark.parametrize(("pattern", "new"), RENAMED_KEYS.items())
def test_new_name_of_renamed_key_is_a_setting(pattern: tuple[str, ...], new: str) -> None:
    """In the same section, at least for one kind of upstream."""
    path = (*setting_at(pattern)[:-1], new)
    messages = [problems_with(path, upstream) for upstream in UPSTREAMS]
    assert any(not any("unknown setting" in line for line in lines) for lines in messages)
