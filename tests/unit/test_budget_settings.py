"""Deadlines, budgets and overruns in a settings file, and what they become."""

from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.types import Stage
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.model import FallbackTier
from stayfast.testing import SimLoop

UPSTREAMS = """
upstreams:
  big: {kind: openai, base_url: "http://big", send_deadline: true}
  small: {kind: simulated, models: {chat: small-chat}}
"""
ROUTE = """
routes:
  chat:
    upstreams: [big]
    model: big-model
    deadline: 2.5
    budget: {admit: 0.3, cache: 5%, model: 1.8, post: "0.05"}
    on_overrun:
      fallback: {upstreams: [small], reserve: 0.6}
      template: We are busy.
      partial: true
"""


def loaded(text: str) -> Settings:
    """The settings of a text."""
    return load_settings(SettingsText("f.yaml", text), {}, kinds=KINDS)


def system(text: str) -> System:
    """The system of a text."""
    settings = loaded(text)
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1))
    finally:
        loop.close()


def test_route_with_budget_and_fallback_is_built() -> None:
    """The deadline stands before total_s, parts are seconds or shares, and the fallback has its own model."""
    terms = system(UPSTREAMS + ROUTE).gateway.router.policy_of("chat")
    assert terms.timeouts.total_s == terms.budget.total_s == 2.5
    assert dict(terms.budget.parts_s) == {Stage.ADMIT: 0.3, Stage.CACHE: 0.125, Stage.CALL: 1.8, Stage.SETTLE: 0.05}
    assert (terms.budget.reserve_s, terms.template, terms.ends_partial) == (0.6, "We are busy.", True)


def test_fallback_model_overrides_route_model() -> None:
    """Its own word, else what its upstreams call the route, else the route's."""
    settings = loaded(UPSTREAMS + ROUTE)
    own = FallbackTier(("small",))
    assert [settings.fallback_model_for("chat", own, name) for name in ("small", "big")] == ["small-chat", "big-model"]
    assert settings.fallback_model_for("chat", FallbackTier(("small",), "tiny"), "small") == "tiny"


def test_fallback_list_means_upstreams() -> None:
    """A list stands for its upstreams; 30 % of the model's time are its reserve."""
    text = UPSTREAMS + "routes: {m: {upstreams: [big], deadline: 10, on_overrun: {fallback: [small]}}}"
    assert system(text).gateway.router.policy_of("m").budget.reserve_s == pytest.approx(3.0)


def test_routes_inherit_budgets_and_overruns() -> None:
    """Key by key; a wildcard's requests have its terms, and a name without a route the defaults'."""
    terms = system(UPSTREAMS + """
defaults: {budget: {admit: 10%}, on_overrun: {template: Later., fallback: [small]}}
routes: {"m": {upstreams: [big], budget: {model: 20}, timeouts: {total_s: 100}}, "n": [big]}
""").gateway.router.policy_of
    assert dict(terms("m").budget.parts_s) == {Stage.ADMIT: 10.0, Stage.CALL: 20.0}
    assert dict(terms("n").budget.parts_s) == {Stage.ADMIT: 30.0}
    assert terms("m").template == terms("n").template == "Later."
    assert terms("nobody").template == ""


def test_upstream_used_only_as_fallback_is_probed() -> None:
    """It must stand ready as the others do; it is asked for the model that it would be asked for."""
    built = system(UPSTREAMS + ROUTE)
    assert [(member.upstream.name, model) for member, model in built.prober.targets] == [
        ("big", "big-model"), ("small", "small-chat")]


@pytest.mark.parametrize(("route", "complaint"), [
    ("deadline: 0", 'routes.m.deadline: must be a number more than 0 and at most 86400, not 0'),
    ("budget: {adimt: 1}", "routes.m.budget.adimt: unknown setting, did you mean admit?"),
    ("budget: {model: 3 s}", 'routes.m.budget.model: must be seconds, or a share of the deadline like 20%, not "3 s"'),
    ("budget: {model: 0}",
     "routes.m.budget.model: must be seconds, or a share of the deadline like 20%, more than 0, not '0'"),
    ("deadline: 2, budget: {admit: 1.5, post: 30%}",
     "routes.m.budget: comes to 2.1 s, which is more than the deadline of 2 s"),
    ("on_overrun: {fallback: [smal]}",
     'routes.m.on_overrun.fallback.upstreams[0]: there is no upstream "smal", did you mean small?'),
    ("on_overrun: {fallback: []}", "routes.m.on_overrun.fallback.upstreams: must name at least one upstream"),
    ("deadline: 2, on_overrun: {fallback: {upstreams: [small], reserve: 2}}",
     "routes.m.on_overrun: fallback.reserve of 2 s leaves no time for the first choice"),
    ("on_overrun: {retry: 3}", "routes.m.on_overrun.retry: unknown setting"),
])
def test_budget_contradiction_is_reported(route: str, complaint: str) -> None:
    """Each is named by its path, with what would be right."""
    with pytest.raises(SettingsError) as caught:
        loaded(f"{UPSTREAMS}routes: {{m: {{upstreams: [big], {route}}}}}")
    assert [line.split(": ", 1)[1] for line in str(caught.value).splitlines()] == [complaint]


def test_default_fallback_unknown_upstream_is_reported() -> None:
    """Found at its own place, beside whatever else is wrong."""
    with pytest.raises(SettingsError, match=r"defaults\.on_overrun\.fallback\.upstreams\[0\]: there is no upstream"):
        loaded(UPSTREAMS + "defaults: {on_overrun: {fallback: [x]}}\nroutes: {m: [big]}")
