"""What settings say of providers' prefix caches, as objects."""

from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.pipeline.plan import Route
from stayfast.pipeline.prompt_cache.planner import PromptCachePlanner
from stayfast.settings import SettingsError, SettingsText, load_settings

TEXT = """
upstreams: {{a: {{kind: simulated}}, b: {{kind: simulated}}}}
routes:
  m: {{upstreams: [a, b], {more}}}
"""


def system(more: str, old: System | None = None) -> System:
    """The system of one route."""
    settings = load_settings(SettingsText("test", TEXT.format(more=more)), {}, kinds=KINDS)
    return build(settings, Observers(settings, SystemClock()), {}, SystemClock(), Random(1), old=old)


def route(of: System) -> Route:
    """Its one route."""
    return of.gateway.router.routes["m"]


def test_prompt_cache_off_has_no_planner() -> None:
    built = system("pick: balance")
    assert route(built).policy.prefix is None
    assert built.refresher is None


def test_prompt_cache_auto_adds_affinity_and_survives_a_reload() -> None:
    """Unless the route has its own affinity, or tries its upstreams in order."""
    built = system("prefix: {mode: auto, models: {'x-*': {breakpoints: anthropic, min_tokens: 9}}}")
    of = route(built)
    assert of.selector is not None
    assert of.selector.config.affinity.mode == "both"
    assert isinstance(of.policy.prefix, PromptCachePlanner)
    assert of.policy.prefix.config.models["x-*"].min_tokens == 9
    same = "prefix: {mode: auto, models: {'x-*': {breakpoints: anthropic, min_tokens: 9}}}, cache: {mode: exact}"
    assert route(system(same, built)).policy.prefix is of.policy.prefix
    assert route(system("prefix: {mode: auto}", built)).policy.prefix is not of.policy.prefix
    assert route(system("prefix: {mode: auto}, pick: order")).selector is None
    picking = route(system("prefix: {mode: auto}, affinity: {mode: sessions}")).selector
    assert picking is not None
    assert picking.config.affinity.mode == "sessions"


def test_prompt_cache_refresh_budget_adds_a_refresher() -> None:
    assert system("prefix: {mode: auto}").refresher is None
    assert system("prefix: {mode: auto, refresh_tokens_per_hour: 1000}").refresher is not None


@pytest.mark.parametrize(("said", "named"), [("mode: on", "mode"), ("ttl: 2h", "ttl"),
                                             ("leader_wait_s: 61", "leader_wait_s"),
                                             ("models: {x: {breakpoints: all}}", "breakpoints"),
                                             ("refresh_tokens_per_hour: -1", "refresh")])
def test_prompt_cache_settings_errors_name_the_setting(said: str, named: str) -> None:
    with pytest.raises(SettingsError) as told:
        system(f"prefix: {{{said}}}")
    assert "routes.m.prefix" in str(told.value)
    assert named in str(told.value)
