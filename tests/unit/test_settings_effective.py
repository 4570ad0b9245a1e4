"""settings.effective: all settings as a file, the source of each value, and no secret in either."""

from pathlib import Path

import pytest
import yaml

from stayfast.cli import main
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Override, Settings, SettingsText, load_settings
from stayfast.settings.effective import BY_DEFAULT, HIDDEN, SettingsReport, effective_settings, settings_as_yaml
from stayfast.settings.starter import STARTER

DIGEST = "sha256:" + "5ec4e7" * 10 + "aaaa"
SECRETS = {"KEY": "planted-key", "TOKEN": "planted-header", "REDIS": "redis://:planted-redis@h:1/0"}
WITH_SECRETS = f"""\
server: {{keys: {{app: "{DIGEST}"}}}}
upstreams:
  paid: {{kind: openai, base_url: "http://127.0.0.1:9/v1", key: "${{KEY}}", headers: {{x-token: "${{TOKEN}}"}}}}
  fake: {{kind: simulated, ttft: {{median_s: 0.5}}}}
routes: {{m: [paid, fake]}}
stores: {{near: {{kind: redis, url: "${{REDIS}}"}}}}
fleet: {{url: "redis://:planted-fleet@h:1/0"}}
tracing: {{endpoint: "http://h:4318/v1/traces?token=planted-query", headers: {{authorization: planted-trace}}}}
jobs:
  store: "postgres://user:planted-postgres@h/db"
  wake: "redis://:planted-wake@h:1/0"
  webhooks: [{{url: "https://hooks.test/planted-path", secret: "whsec_cGxhbnRlZC13ZWJob29rLXNlY3JldA=="}}]
"""


def loaded(text: str, variables: dict[str, str] | None = None, overrides: tuple[Override, ...] = ()) -> Settings:
    """Settings of a text, with the simulated kind."""
    return load_settings(SettingsText("s.yaml", text), variables or {}, overrides, kinds=KINDS)


def shown(settings: Settings) -> str:
    """All that leaves the process: settings and sources, as YAML and as text."""
    effective = SettingsReport(settings).read()
    return settings_as_yaml(effective) + repr(effective)


@pytest.mark.parametrize("text", [
    STARTER,
    "upstreams: {s: {kind: simulated, models: {m: 'a${b'}}}\nroutes: {m: [s], '4.10': {upstreams: [s], weights: {s: 2}}}\n"
    .replace("${", "$${"),
    """\
upstreams: {a: {kind: simulated}, b: {kind: simulated}}
defaults: {budget: {model: 60%}, slo: {ttft: {under_s: 1}}}
routes: {m: {upstreams: [a], deadline: 20, on_overrun: {fallback: {upstreams: [b], then: [[a]]}}, cache: {mode: exact}}}
tenants: {'*': {weight: 2}}
""",
])
def test_effective_settings_load_again_to_equal_settings(text: str) -> None:
    """Every value with its default is written in a form that the loader reads as the same value."""
    variables = {"OPENAI_API_KEY": "(hidden)"}  # as a hidden key is read again
    settings = loaded(text, variables)
    tree = effective_settings(settings)
    assert loaded(yaml.safe_dump(tree), variables) == settings
    assert loaded(settings_as_yaml(SettingsReport(settings).read()), variables) == settings
    assert tree["server"]["port"] == 8090
    assert "total_s" in next(iter(tree["routes"].values()))["timeouts"]


def test_effective_settings_hide_every_secret() -> None:
    """Keys, headers, digests, addresses of stores and webhooks; names and hosts remain."""
    text = shown(loaded(WITH_SECRETS, SECRETS))
    assert "planted" not in text
    assert "5ec4e7" not in text
    assert "cGxhbnRlZ" not in text
    tree = effective_settings(loaded(WITH_SECRETS, SECRETS))
    assert tree["upstreams"]["paid"]["headers"] == {"x-token": HIDDEN}
    assert tree["server"]["keys"] == {"app": HIDDEN}
    assert tree["jobs"]["webhooks"][0]["url"] == f"https://hooks.test/{HIDDEN}"
    assert tree["tracing"]["endpoint"] == f"http://h:4318/v1/traces?{HIDDEN}"
    assert tree["upstreams"]["fake"]["ttft"]["median_s"] == 0.5


def test_setting_sources_name_line_variable_and_flag() -> None:
    """A default has no source; an inherited value has the one in `defaults`; a list alone is the route's upstreams."""
    text = ("upstreams:\n  s:\n    kind: simulated\n    models: {m: '${MODEL}'}\n"
            "routes:\n  m: [s]\n  'gpt-4.1':\n    upstreams: [s]\n    timeouts: {idle_s: 7}\n"
            "defaults:\n  timeouts:\n    total_s: 9\n")
    given = (Override(("server", "port"), "81", "STAYFAST_PORT"), Override(("server", "host"), "localhost", "--host"))
    sources = loaded(text, {"MODEL": "x"}, given).sources
    assert sources == {
        "server.host": "command line --host", "server.port": "environment STAYFAST_PORT",
        "upstreams.s.kind": "s.yaml:3", "upstreams.s.models.m": "s.yaml:4, environment MODEL",
        "routes.m.upstreams": "s.yaml:6", "routes.m.timeouts.total_s": "s.yaml:12",
        'routes."gpt-4.1".upstreams': "s.yaml:8", 'routes."gpt-4.1".timeouts.total_s': "s.yaml:12",
        'routes."gpt-4.1".timeouts.idle_s': "s.yaml:9", "defaults.timeouts.total_s": "s.yaml:12"}


def test_setting_sources_of_workers_are_those_of_parent() -> None:
    """The parent gives its workers the port that it has reserved; its source stays the one that the user knows."""
    text = "upstreams: {s: {kind: simulated}}\nroutes: {m: [s]}\n"
    for source, shown_source in ((BY_DEFAULT, None), ("s.yaml:7", "s.yaml:7"), ("environment PORT", "environment PORT")):
        settings = loaded(text, overrides=(Override(("server", "port"), "81", source),))
        assert settings.sources.get("server.port") == shown_source


def test_settings_report_after_reload_marks_changes() -> None:
    """A changed value has the time of the reload; what needs a restart stays, and its source says so."""
    text = "server: {port: 81}\nupstreams: {s: {kind: simulated}}\nroutes: {m: {upstreams: [s], deadline: 5}}\n"
    first = SettingsReport(loaded(text))
    second = SettingsReport(loaded(text.replace("81", "82").replace("5}", "6}")), first, 1_700_000_000.0)
    effective = second.read()
    assert effective.settings["server"]["port"] == 81
    assert effective.sources["server.port"] == "s.yaml:1; s.yaml:1 applies after a restart"
    assert effective.settings["routes"]["m"]["deadline"] == 6
    assert effective.sources["routes.m.deadline"] == "s.yaml:3, reload at 2023-11-14T22:13:20Z"
    assert effective.sources["routes.m.upstreams"] == "s.yaml:3"
    third = SettingsReport(loaded(text.replace("5}", "6}")), second, 1_700_000_100.0).read()
    assert third.sources["routes.m.deadline"] == "s.yaml:3, reload at 2023-11-14T22:13:20Z"


def test_settings_as_yaml_comments_what_is_not_default() -> None:
    """One comment at each value that something set, none at defaults."""
    text = settings_as_yaml(SettingsReport(loaded("upstreams: {s: {kind: simulated}}\nroutes: {m: [s]}\n")).read())
    assert [line for line in text.splitlines() if "#" in line] == [
        "    kind: simulated  # s.yaml:1", "    upstreams: [s]  # s.yaml:2"]


def test_check_effective_prints_settings_that_load_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output only settings: it can be redirected into a file."""
    file = tmp_path / "a.yaml"
    file.write_text("server: {port: 81}\nupstreams: {s: {kind: simulated}}\nroutes: {m: [s]}\n", encoding="utf-8")
    assert main(["check", "--effective", str(file)]) == 0
    printed = capsys.readouterr().out
    assert f"  port: 81  # {file}:1\n" in printed
    assert loaded(printed) == loaded(file.read_text(encoding="utf-8"))


def test_support_bot_settings_load_again() -> None:
    """The example's file."""
    text = Path("examples/support_bot/stayfast.yaml").read_text(encoding="utf-8")
    settings = loaded(text)
    assert loaded(yaml.safe_dump(effective_settings(settings))) == settings
