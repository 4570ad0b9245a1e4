"""The tiers of routes, from their settings."""

from stayfast.compose.routes import models_requested
from stayfast.compose.tiers import members_of, tier_lines
from stayfast.settings.load import SettingsText, load_settings
from stayfast.settings.model import Settings

UPSTREAMS = "upstreams: {a: {kind: openai, base_url: 'http://a/v1'}, b: {kind: openai, base_url: 'http://b/v1'}}\n"
TIERS = ("{name: small, upstreams: [a], model: s}", "{name: large, upstreams: [b], model: l}",
         "{name: fast, upstreams: [b], model: l, service_tier: fast}")


def load(more: str) -> Settings:
    text = f"{UPSTREAMS}routes: {{m: {{tiers: [{', '.join(TIERS)}]{more}}}, n: [a]}}\n"
    return load_settings(SettingsText("f.yaml", text), {})


def lines(more: str) -> list[str]:
    return list(tier_lines(load(more)))


def test_check_line_has_the_tiers_by_preference() -> None:
    expected = "large (start), fast (faster), small (smaller); the first that answers in time is called"
    assert lines("") == [f"route m: tiers by preference: {expected}"]
    assert "small (start), large (larger), fast (larger)" in lines(", tier: {start: small}")[0]
    assert "large (start), fast (faster); " in lines(", tier: {down: false}")[0]


def test_models_of_tiers_are_those_that_are_requested_and_probed() -> None:
    settings = load("")
    assert list(models_requested(settings, "a")) == ["s", "n"]
    assert list(models_requested(settings, "b")) == ["l"]
    assert list(members_of("m", settings)) == [("a", "s"), ("b", "l"), ("b:fast", "l")]
    assert list(members_of("n", settings)) == [("a", None)]
