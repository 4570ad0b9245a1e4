"""The settings of tiers: what is accepted, and how each contradiction is reported."""

import pytest

from stayfast.settings.effective import effective_settings
from stayfast.settings.load import SettingsText, load_settings
from stayfast.settings.model import Settings
from stayfast.settings.problems import SettingsError

UPSTREAMS = "upstreams: {a: {kind: openai, base_url: 'http://a/v1'}, b: {kind: openai, base_url: 'http://b/v1'}}\n"
SMALL, LARGE = "{name: small, upstreams: [a], model: s}", "{name: large, upstreams: [b], model: l}"
FAST = "{name: fast, upstreams: [b], model: l, service_tier: fast}"


def load(route: str) -> Settings:
    return load_settings(SettingsText("f.yaml", f"{UPSTREAMS}routes:\n  m: {route}\n"), {})


def test_tiers_of_a_route_are_read_in_their_order() -> None:
    route = load(f"{{tiers: [{SMALL}, {LARGE}, {FAST}], tier: {{start: large, hedge_up: true}}}}").routes["m"]
    assert [(tier.name, tier.upstreams, tier.model, tier.service_tier) for tier in route.tiers] == [
        ("small", ("a",), "s", ""), ("large", ("b",), "l", ""), ("fast", ("b",), "l", "fast")]
    assert (route.tier.start, route.tier.hedge_up, route.tier.down) == ("large", True, True)
    assert (route.upstreams, route.own_upstreams) == ((), ("a", "b"))


def test_effective_settings_of_a_route_with_tiers_load_again() -> None:
    settings = load(f"{{tiers: [{SMALL}, {FAST}]}}")
    shown = effective_settings(settings)["routes"]["m"]
    assert [tier["name"] for tier in shown["tiers"]] == ["small", "fast"]
    assert load(f"{{tiers: {shown['tiers']}, tier: {shown['tier']}, upstreams: {shown['upstreams']}}}".replace("'", '"')
                .replace("None", "null").replace("True", "true").replace("False", "false")).routes == settings.routes


@pytest.mark.parametrize(("route", "complaint"), [
    (f"{{upstreams: [a], tiers: [{SMALL}]}}", ("routes.m.upstreams: must be left out where there are tiers: each tier names "
                                             "its own")),
    ("{}", "routes.m.upstreams: must name at least one upstream"),
    (f"{{tiers: [{SMALL}, {SMALL}]}}", "routes.m.tiers: must have different names, but two are named 'small'"),
    (f"{{tiers: [{SMALL}, {{name: other, upstreams: [a], model: s}}]}}",
     "routes.m.tiers: must differ in their upstreams, model or service_tier"),
    (f"{{tiers: [{SMALL}, {LARGE}], tier: {{start: tiny}}}}",
     "routes.m.tier.start: must be the name of a tier (small, large), not 'tiny'"),
    ("{upstreams: [a], tier: {hedge_up: true}}", "routes.m.tier: has no effect without tiers: add tiers, or remove it"),
    ("{tiers: [{name: small, upstreams: []}]}", "routes.m.tiers[0].upstreams: must name at least one upstream"),
    ("{tiers: [{name: small, upstreams: [c]}]}", "routes.m.tiers[0].upstreams[0]: there is no upstream \"c\""),
    ("{tiers: [{name: sm all, upstreams: [a]}]}",
     "routes.m.tiers[0].name: must be 1 to 40 letters, digits, dots, hyphens or underscores"),
    (f"{{tiers: [{SMALL}], tier: {{percentile: 1}}}}", "routes.m.tier.percentile: must be a number from 0.5 to 0.99"),
])
def test_tiers_contradiction_names_its_field(route: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(route)
    found = [str(problem) for problem in caught.value.problems]
    assert [line for line in found if complaint in line], found
