"""The tiers of routes, from their settings."""

from stayfast.compose.tiers import tier_lines
from stayfast.settings.load import SettingsText, load_settings

UPSTREAMS = "upstreams: {a: {kind: openai, base_url: 'http://a/v1'}, b: {kind: openai, base_url: 'http://b/v1'}}\n"
TIERS = ("{name: small, upstreams: [a], model: s}", "{name: large, upstreams: [b], model: l}",
         "{name: fast, upstreams: [b], model: l, service_tier: fast}")


def lines(more: str) -> list[str]:
    text = f"{UPSTREAMS}routes: {{m: {{tiers: [{', '.join(TIERS)}]{more}}}, n: [a]}}\n"
    return list(tier_lines(load_settings(SettingsText("f.yaml", text), {})))


def test_check_line_has_the_tiers_by_preference() -> None:
    assert lines("") == ["route m: tiers by preference: large (start), fast (faster), small (smaller); the first that answers "
                         "in time is called"]
    assert "small (start), large (larger), fast (larger)" in lines(", tier: {start: small}")[0]
    assert "large (start), fast (faster); " in lines(", tier: {down: false}")[0]
