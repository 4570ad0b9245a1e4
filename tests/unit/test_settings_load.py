"""Settings as they should be: the smallest file, inheritance, references, precedence, the built-in ones."""

import re
from pathlib import Path

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.types import Api
from stayfast.engine.config import EngineConfig
from stayfast.http.client.client import HttpConfig
from stayfast.lab.simulated.settings import KINDS, SimulatedUpstream
from stayfast.settings import (
    BUILT_IN,
    EmbeddedUpstream,
    HttpUpstream,
    Override,
    Secret,
    Settings,
    SettingsError,
    SettingsText,
    load_settings,
    overrides_from,
    read_settings_file,
)
from stayfast.settings.model import Fallback
from stayfast.settings.starter import STARTER

SMALLEST = """\
upstreams: {bench: {kind: openai, base_url: "http://127.0.0.1:9100/v1", key: "sk-x"}}
routes: {gpt-4o-mini: {upstreams: [bench]}}
"""


def runs(config: EngineConfig) -> None:
    """An engine that can run anything."""


def loaded(text: str, variables: dict[str, str] | None = None, *given: Override) -> Settings:
    """Settings from a text, on a machine with an engine."""
    return load_settings(SettingsText("stayfast.yaml", text), variables or {}, given, check_engine=runs, kinds=KINDS)


def http(settings: Settings, name: str) -> HttpUpstream:
    """One upstream, which must be of a network kind."""
    upstream = settings.upstreams[name]
    assert isinstance(upstream, HttpUpstream)
    return upstream


def test_smallest_file_is_enough() -> None:
    """One upstream and one route; everything else has its default."""
    settings = loaded(SMALLEST)
    bench = http(settings, "bench")
    assert (bench.kind, bench.base_url, bench.key) == ("openai", "http://127.0.0.1:9100/v1", Secret("sk-x"))
    assert bench.native_apis == {Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.RERANK}
    assert settings.routes["gpt-4o-mini"].upstreams == ("bench",)
    assert settings.routes["gpt-4o-mini"].timeouts == Timeouts()
    assert (settings.server.host, settings.server.port, settings.workers) == ("127.0.0.1", 8090, 1)


def test_route_may_be_a_list() -> None:
    """A list stands for the route's upstreams."""
    settings = loaded(SMALLEST.replace("{upstreams: [bench]}", "[bench]"))
    assert settings.routes["gpt-4o-mini"].upstreams == ("bench",)


def test_routes_inherit_unset_settings() -> None:
    """defaults.timeouts and defaults.retry fill in for a route, key by key."""
    settings = loaded(SMALLEST.replace("[bench]}", "[bench], timeouts: {idle_s: 7}}") + """
defaults:
  timeouts: {total_s: 30, first_token_s: 5}
  retry: {max_attempts: 1}
""")
    route = settings.routes["gpt-4o-mini"]
    assert route.timeouts == Timeouts(total_s=30, first_token_s=5, idle_s=7)
    assert route.retry.max_attempts == 1


def test_whole_sections_are_inherited_too() -> None:
    """A route that says nothing of time-outs has the defaults' ones."""
    assert loaded(SMALLEST + "defaults: {timeouts: {total_s: 9}}").routes["gpt-4o-mini"].timeouts.total_s == 9


@pytest.mark.parametrize(("text", "variables", "key"), [
    ("${KEY}", {"KEY": "k1"}, "k1"),
    ("${KEY:-none}", {}, "none"),
    ("${KEY:-none}", {"KEY": ""}, "none"),
    ("a-${A}-${B:-b}", {"A": "1"}, "a-1-b"),
    ("$${KEY}", {"KEY": "k1"}, "${KEY}"),
    ("a-$KEY", {"KEY": "k1"}, "a-$KEY"),
])
def test_references(text: str, variables: dict[str, str], key: str) -> None:
    """Values come from the environment, with a default, in part, or not at all when escaped."""
    assert http(loaded(SMALLEST.replace("sk-x", text), variables), "bench").key == Secret(key)


def test_empty_key_is_none() -> None:
    """A key that may be left out, for an engine that may or may not ask for one."""
    assert http(loaded(SMALLEST.replace("sk-x", "${KEY:-}")), "bench").key is None


def test_reference_may_be_a_number() -> None:
    """A reference in quotes may stand where a number is asked for."""
    assert loaded(SMALLEST + 'server: {port: "${MY_PORT:-9000}"}').server.port == 9000


@pytest.mark.parametrize(("variables", "flags", "port"), [
    ({}, [], 1), ({"PORT": "2"}, [], 2), ({"PORT": "2", "STAYFAST_PORT": "3"}, [], 3), ({"STAYFAST_PORT": ""}, [], 1),
    ({"PORT": "2", "STAYFAST_PORT": "3"}, ["4"], 4),
])
def test_override_precedence_is_flag_variable_file(variables: dict[str, str], flags: list[str], port: int) -> None:
    """A flag, then a variable, then the file."""
    given = [*overrides_from(variables), *(Override(("server", "port"), flag, "--port") for flag in flags)]
    assert loaded(SMALLEST + "server: {port: 1}", variables, *given).server.port == port


def test_variables_reach_their_settings() -> None:
    """Host, workers and the log's level come from the environment as well, where the file has no such section."""
    variables = {"STAYFAST_HOST": "127.0.0.2", "STAYFAST_WORKERS": "3", "STAYFAST_LOG": "debug"}
    settings = loaded(SMALLEST, variables, *overrides_from(variables))
    assert (settings.server.host, settings.workers, settings.log.level) == ("127.0.0.2", 3, "debug")


def test_built_in_settings() -> None:
    """Nothing at all serves the embedded model and the simulated provider."""
    settings = load_settings(SettingsText(BUILT_IN, ""), {}, check_engine=runs, kinds=KINDS)
    assert isinstance(settings.upstreams["tiny"], EmbeddedUpstream)
    assert isinstance(settings.upstreams["simulated"], SimulatedUpstream)
    assert {name: route.upstreams for name, route in settings.routes.items()} == {
        "stayfast-tiny": ("tiny",), "simulated": ("simulated",)}


def test_built_in_settings_without_an_engine() -> None:
    """Where the engine cannot run, the simulated provider is served alone."""
    def cannot_run(config: EngineConfig) -> None:
        raise ValueError("not installed")

    settings = load_settings(SettingsText(BUILT_IN, ""), {}, check_engine=cannot_run, kinds=KINDS)
    assert (list(settings.upstreams), list(settings.routes)) == (["simulated"], ["simulated"])


@pytest.mark.parametrize("text", [
    "", "# nothing yet\n", "{}", "null", "---\n", "server: {port: 1}", "upstreams:\nroutes:\n"])
def test_file_without_upstreams_and_routes_is_refused(text: str) -> None:
    """Where there is a file, nothing else counts: it must not fall back on the demo, and it says what is missing."""
    with pytest.raises(SettingsError, match="upstreams and routes are missing"):
        load_settings(SettingsText("x", text), {}, check_engine=runs, kinds=KINDS)


def test_mistyped_section_is_reported() -> None:
    """It is why the others are missing."""
    with pytest.raises(SettingsError, match="routs: unknown setting, did you mean routes"):
        load_settings(SettingsText("x", "routs: {}"), {}, check_engine=runs, kinds=KINDS)


def test_model_replaces_the_embedded_one() -> None:
    """--model goes to every embedded upstream, built in or not."""
    settings = load_settings(SettingsText("x", ""), {}, model="/m.gguf", check_engine=runs, kinds=KINDS)
    tiny = settings.upstreams["tiny"]
    assert isinstance(tiny, EmbeddedUpstream)
    assert tiny.engine.model == "/m.gguf"


def test_model_needs_an_embedded_upstream() -> None:
    """--model with settings that embed nothing is a mistake, not a no-op."""
    with pytest.raises(SettingsError, match="--model: no upstream of kind embedded"):
        load_settings(SettingsText("x", SMALLEST), {}, model="/m.gguf", check_engine=runs, kinds=KINDS)


def test_engine_settings_are_keys_of_the_upstream() -> None:
    """An embedded upstream takes the engine's settings directly."""
    settings = loaded("upstreams: {e: {kind: embedded, n_slots: 2, ctx_per_slot: 512}}\nroutes: {m: [e]}")
    embedded = settings.upstreams["e"]
    assert isinstance(embedded, EmbeddedUpstream)
    assert embedded.engine == EngineConfig(n_slots=2, ctx_per_slot=512)


@pytest.mark.parametrize(("given", "url"), [
    ("", "https://api.anthropic.com/v1"), ("https://host", "https://host/v1"), ("https://host/v1/", "https://host/v1"),
    ("https://host/anthropic", "https://host/anthropic/v1"),
])
def test_anthropic_urls(given: str, url: str) -> None:
    """Anthropic's base_url is taken with or without /v1, as SDKs and people write it."""
    settings = loaded(f'upstreams: {{a: {{kind: anthropic, base_url: "{given}", key: k}}}}\nroutes: {{m: [a]}}')
    assert http(settings, "a").base_url == url
    assert http(settings, "a").native_apis == {Api.MESSAGES, Api.COUNT_TOKENS}


def test_native_apis_follow_provider_or_setting() -> None:
    """OpenAI itself speaks the Responses API; an own list wins over the kind's."""
    text = "upstreams: {a: {kind: openai, key: k}, b: {kind: openai, base_url: 'http://h/v1', apis: [chat, responses]}}\n"
    settings = loaded(text + "routes: {m: [a, b]}")
    assert Api.RESPONSES in http(settings, "a").native_apis
    assert http(settings, "b").native_apis == {Api.CHAT, Api.RESPONSES}


def test_model_names_at_upstreams() -> None:
    """An upstream's own `models` wins over the route's `model`, and that over the client's name."""
    settings = loaded("""
upstreams:
  a: {kind: openai, base_url: 'http://h/v1', models: {m: own}}
  b: {kind: openai, base_url: 'http://h/v1'}
routes:
  m: {upstreams: [a, b], model: shared}
  n: [a]
  "*": [b]
""")
    assert [settings.model_for("m", "a"), settings.model_for("m", "b")] == ["own", "shared"]
    assert [settings.model_for("n", "a"), settings.model_for("*", "b")] == [None, None]


def test_scalars_keep_their_text() -> None:
    """`off` is no boolean, 1.1 is no float and 4.10 keeps its zero, where a word is asked for."""
    settings = loaded("""
server: {auth: off}
upstreams: {a: {kind: openai, base_url: 'http://h/v1', http: 1.1}}
routes: {4.10: {upstreams: [a], model: 0012}}
""")
    assert (settings.server.auth, http(settings, "a").http, settings.routes["4.10"].model) == ("off", "1.1", "0012")


def test_anchors_and_merges_work() -> None:
    """An alias repeats its anchor; << fills in what a mapping does not say."""
    settings = loaded("""
upstreams:
  a: &a {kind: openai, base_url: 'http://h/v1', max_connections: 7}
  b: {<<: *a, max_connections: 8}
  c: {<<: [*a], verify: false}
routes: {m: &list [a, b, c], n: *list}
""")
    assert [http(settings, name).max_connections for name in "abc"] == [7, 8, 7]
    assert settings.routes["n"].upstreams == ("a", "b", "c")


def test_empty_sections_have_defaults() -> None:
    """A key whose lines are all commented out says nothing."""
    settings = loaded(SMALLEST + "server:\ndefaults:\nlog: ~\n")
    assert settings.server.port == 8090


def test_starter_file_needs_one_key_only() -> None:
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        loaded(STARTER)
    settings = loaded(STARTER, {"OPENAI_API_KEY": "a"})
    route = settings.routes["assistant"]
    assert (route.upstreams, route.on_overrun.fallback) == (("vllm-0", "vllm-1"), Fallback(("openai",)))
    assert [settings.model_for("assistant", name) for name in ("vllm-0", "openai")] == [
        "meta-llama/Llama-3.1-8B-Instruct", "gpt-4o-mini"]


def test_starter_examples_are_valid() -> None:
    """Its examples hold when their # is taken away."""
    uncommented = re.sub(r"(?m)^( *)#(?=\S|  )", r"\1", STARTER)
    settings = loaded(uncommented, {"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b", "AZURE_OPENAI_API_KEY": "c"})
    assert set(settings.upstreams) == {"vllm-0", "vllm-1", "openai", "claude", "azure"}
    assert settings.routes["assistant"].cache.mode == "exact"
    assert (settings.routes["assistant"].preset, settings.server.host) == ("chat", "0.0.0.0")


def test_find_prefers_the_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's file, then STAYFAST_CONFIG, then ./stayfast.yaml, then nothing."""
    monkeypatch.chdir(tmp_path)
    assert read_settings_file(None, {}).text == ""
    for name in ("stayfast.yaml", "b.yaml", "a.yaml"):
        Path(name).write_text(name)
    assert read_settings_file(None, {}).text == "stayfast.yaml"
    assert read_settings_file(None, {"STAYFAST_CONFIG": "b.yaml"}).text == "b.yaml"
    assert read_settings_file("a.yaml", {"STAYFAST_CONFIG": "b.yaml"}).text == "a.yaml"


def test_defaults_are_those_of_the_code_they_configure() -> None:
    """What settings repeat of the HTTP client's configuration and of the scripts is the same there."""
    upstream = http(loaded(SMALLEST), "bench")
    config = HttpConfig(base_url=upstream.base_url)
    for name in ("http", "keepalive_s", "ca_file", "verify"):
        assert getattr(upstream, name) == getattr(config, name), name
    assert (upstream.max_connections, config.max_connections) == (None, 0)  # both: no bound of their own
    from stayfast.lab.simulated import NAMED_SCRIPTS

    for script in NAMED_SCRIPTS:
        loaded(f"upstreams: {{s: {{kind: simulated, script: {script}}}}}\nroutes: {{m: [s]}}")
