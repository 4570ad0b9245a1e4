"""Settings as users of other gateways write them: each refusal names what to write here, and never more than was wrong."""

import re

import pytest
import yaml

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsError, SettingsText, find_warnings, load_settings
from stayfast.settings.migration_hints import KEY_HINTS, KIND_HINTS, number_hint

UPSTREAMS = "upstreams: {a: {kind: openai, base_url: 'http://h/v1'}}\n"
BASE = UPSTREAMS + "routes: {m: [a]}\n"


def complaints(text: str) -> list[str]:
    """The lines of the error that a text makes, without its places."""
    with pytest.raises(SettingsError) as caught:
        load_settings(SettingsText("f.yaml", text), {}, check_engine=lambda config: None, kinds=KINDS)
    return [line.partition(": ")[2] for line in str(caught.value).splitlines()]


def yaml_at(path: tuple[str, ...], value: object) -> str:
    """Settings that are whole but for `value` at a path; `*` is the upstream or the route that is there."""
    tree = yaml.safe_load(BASE)
    if path[0] == "routes":
        tree["routes"]["m"] = {"upstreams": ["a"]}
    node, names = tree, [{"upstreams": "a", "routes": "m"}[path[0]] if name == "*" else name for name in path]
    for name in names[:-1]:
        node = node.setdefault(name, {})
    node[names[-1]] = value
    return yaml.safe_dump(tree)


@pytest.mark.parametrize("path", KEY_HINTS)
def test_foreign_key_is_unknown_and_has_a_hint(path: tuple[str, ...]) -> None:
    """A name that became a setting of ours would leave a hint that nobody sees."""
    [line] = complaints(yaml_at(path, "x"))
    assert line.endswith(f"{path[-1]}: unknown setting: {KEY_HINTS[path]}")


@pytest.mark.parametrize("path", [path for path, text in KEY_HINTS.items() if text.startswith("write `") and path[:-1]])
def test_key_hint_suggests_an_existing_setting(path: tuple[str, ...]) -> None:
    """The words between the first backticks of `write ...`, put in place of the unknown setting, are known."""
    [(name, value)] = yaml.safe_load(re.findall("`([^`]+)`", KEY_HINTS[path])[0].replace("[NAME]", "[a]")).items()
    text = yaml_at((*path[:-1], name), value)
    settings = load_settings(SettingsText("f.yaml", text), {"OPENAI_API_KEY": "k"}, check_engine=lambda config: None,
                             kinds=KINDS)
    assert settings.routes["m"].upstreams == ("a",)


@pytest.mark.parametrize(("route", "complaint"), [
    ("{upstreams: [a], deadline: 30s}", "must be a number more than 0 and at most 86400, not 30s: write 30, in seconds"),
    ("{upstreams: [a], timeouts: {total_s: 2 min}}", 'not "2 min": write 120, in seconds'),
    ("{upstreams: [a], timeouts: 30}", "must be a mapping (total_s, first_token_s, idle_s, ...)"),
    ("{upstreams: [a], first_token_s: 3}", "unknown setting, did you mean timeouts.first_token_s?"),
    ("a", "must be a list of upstreams, or a mapping (upstreams, pick, weights, ...)"),
])
def test_route_foreign_key_has_a_hint(route: str, complaint: str) -> None:
    """Quantities with units, scalars where a mapping is, settings one level too high."""
    [line] = complaints(f"{UPSTREAMS}routes: {{m: {route}}}")
    assert line.endswith(complaint)


@pytest.mark.parametrize(("path", "text", "maximum", "hint"), [
    (("connect_s",), "500ms", None, "write 0.5, in seconds"), (("after_ms",), "2s", None, "write 2000, in milliseconds"),
    (("x_s",), "1.5 minutes", None, "write 90, in seconds"), (("max_bytes",), "64MiB", None, "write 67108864, in bytes"),
    (("max_bytes",), "1k", None, "write 1024, in bytes"), (("sample",), "10%", 1, "write 0.1, a share of 1"),
    (("sample",), "10%", 100, None), (("n",), "30s", None, None), (("port",), "eighty", None, None),
])
def test_number_with_unit_has_a_hint(path: tuple[str, ...], text: str, maximum: float | None, hint: str | None) -> None:
    """A hint only where the setting's name tells what is counted."""
    assert number_hint(path, text, maximum) == hint


@pytest.mark.parametrize("kind", KIND_HINTS)
def test_unknown_kind_of_known_provider_has_a_hint(kind: str) -> None:
    """`kind` is a protocol here, and a provider's name elsewhere."""
    [line] = complaints(f"upstreams: {{a: {{kind: {kind}, base_url: 'http://h/v1'}}}}\nroutes: {{m: [a]}}")
    assert line == (f"upstreams.a.kind: must be one of openai, anthropic, gemini, bedrock, embedded, turn, encoder, "
                    f'simulated, not "{kind}"; '
                    f"{KIND_HINTS[kind]}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/", "/v1/messages", "/v1/responses",
                                  "/v1/embeddings", "/v1/completions", "/messages"])
def test_base_url_with_endpoint_is_refused(path: str) -> None:
    """Each request would ask for /chat/completions/chat/completions, and get 404."""
    [line] = complaints(f"upstreams: {{a: {{kind: openai, base_url: 'http://h{path}'}}}}\nroutes: {{m: [a]}}")
    assert line.startswith("upstreams.a.base_url: must end before /")


@pytest.mark.parametrize("key", ["os.environ/OPENAI_API_KEY", "$OPENAI_API_KEY", "env.OPENAI_API_KEY",
                                 "'{{ OPENAI_API_KEY }}'"])
def test_foreign_variable_reference_is_refused(key: str) -> None:
    """It would be sent as the key, and the provider's 401 would be all that is seen of it."""
    [line] = complaints(f"upstreams: {{a: {{kind: openai, key: {key}}}}}\nroutes: {{m: [a]}}")
    assert line == ("upstreams.a.key: would be sent literally; write an environment variable as "
                    "${OPENAI_API_KEY}")


@pytest.mark.parametrize("route", ["b*", "openai/*"])
def test_route_name_with_pattern_is_refused(route: str) -> None:
    """Only `*` by itself takes other names; such a route would never be asked for."""
    [line] = complaints(f'{UPSTREAMS}routes: {{"{route}": [a]}}')
    assert line.partition(": ")[2].startswith("no patterns: ")


def test_unused_upstream_is_a_warning() -> None:
    """Those of fallbacks are reached, too, those that `defaults` give to routes included."""
    text = ("upstreams: {a: {kind: simulated}, b: {kind: simulated}, c: {kind: simulated}, d: {kind: simulated}}\n"
            "defaults: {on_overrun: {fallback: [b]}}\n"
            "routes: {m: [a], n: {upstreams: [a], on_overrun: {fallback: {upstreams: [a], then: [[c]]}}}}\n")
    settings = load_settings(SettingsText("f.yaml", text), {}, kinds=KINDS)
    assert find_warnings(settings) == ["upstreams.d: no route uses it: add it to a route's `upstreams`, or remove it"]
