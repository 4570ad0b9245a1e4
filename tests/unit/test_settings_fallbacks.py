"""`fallback:` on a route, the short form of `on_overrun.fallback`."""

import pytest

from stayfast.settings.load import SettingsText, load_settings
from stayfast.settings.model import Fallback, FallbackTier, Settings
from stayfast.settings.problems import SettingsError

UPSTREAMS = "upstreams: {a: {kind: openai, base_url: 'http://a/v1'}, b: {kind: openai, base_url: 'http://b/v1'}}\n"


def load(route: str, more: str = "") -> Settings:
    return load_settings(SettingsText("f.yaml", f"{UPSTREAMS}{more}routes:\n  m: {route}\n"), {})


def problems(route: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(route)
    return [f"{problem.location.line} {problem}" for problem in caught.value.problems]


@pytest.mark.parametrize(("short", "meant"), [
    ("[b]", Fallback(("b",))),
    ("{upstreams: [b], model: small, reserve: 2, then: [[a]]}", Fallback(("b",), "small", "2", (FallbackTier(("a",)),))),
])
def test_route_fallback_is_that_of_on_overrun(short: str, meant: Fallback) -> None:
    route = load(f"{{upstreams: [a], fallback: {short}}}").routes["m"]
    assert route.on_overrun.fallback == meant
    assert route == load(f"{{upstreams: [a], on_overrun: {{fallback: {short}}}}}").routes["m"]


def test_route_fallback_leaves_the_rest_of_on_overrun() -> None:
    route = load("{upstreams: [a], fallback: [b], on_overrun: {template: Later.}}").routes["m"]
    assert (route.on_overrun.fallback, route.on_overrun.template) == (Fallback(("b",)), "Later.")


def test_route_fallback_overrides_only_that_of_defaults() -> None:
    defaults = "defaults: {on_overrun: {fallback: [a], partial: true}}\n"
    route = load("{upstreams: [a], fallback: [b]}", defaults).routes["m"]
    assert (route.on_overrun.fallback, route.on_overrun.partial) == (Fallback(("b",)), True)


def test_route_fallback_null_takes_that_of_defaults_away() -> None:
    route = load("{upstreams: [a], fallback: null}", "defaults: {on_overrun: {fallback: [b]}}\n").routes["m"]
    assert route.on_overrun.fallback is None


def test_route_fallback_twice_is_an_error() -> None:
    found = problems("{upstreams: [a], fallback: [b], on_overrun: {fallback: [b]}}")
    assert len(found) == 1
    assert "routes.m.fallback" in found[0]
    assert "also set in on_overrun.fallback" in found[0]


def test_route_fallback_unknown_upstream_has_its_line() -> None:
    found = problems("{upstreams: [a], fallback: [c]}")
    assert len(found) == 1
    assert found[0].startswith("3 ")
    assert "there is no upstream c" in found[0] or 'there is no upstream "c"' in found[0]
