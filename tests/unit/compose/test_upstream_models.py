"""What upstreams are told of the routes that name them."""

from random import Random

from stayfast.compose.system import Observers, System, build
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsText, load_settings
from stayfast.testing import SimLoop

ONE = """
upstreams:
  a: {kind: simulated}
  b: {kind: simulated}
  c: {kind: simulated}
routes:
  x: {upstreams: [a], on_overrun: {fallback: [c]}}
  y: {upstreams: [a], model: x}
  z: [b]
"""


def system(text: str, old: System | None = None) -> System:
    """Of these settings."""
    settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
    loop = SimLoop()
    loop.close()
    return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)


def test_upstream_with_one_model_has_no_model_health() -> None:
    """However many routes use it; an upstream without alternatives has no backlog."""
    a, b, c = system(ONE).registry
    assert [member.models for member in (a, b, c)] == [None, None, None]
    assert [member.backlog for member in (a, b, c)] == [None, None, None]
    assert [len(member.retry_budget.routes) for member in (a, b, c)] == [2, 1, 1]


def test_upstream_with_several_models_has_health_by_model() -> None:
    """Two names, or any name; the health of a model survives a reload that still names it."""
    first = system(ONE.replace("model: x", "model: w").replace("z: [b]", '"*": [b, a]'))
    a, b, c = first.registry
    assert [[health.model for health in member.shared_healths] for member in (a, b, c)] == [["x", "w"], [], [None]]
    assert (a.backlog is not None, b.backlog is not None, c.backlog) == (True, True, None)
    known = a.health_of("w")
    second = system(ONE.replace("model: x", "model: w"), first)
    assert second.registry["a"] is a
    assert a.health_of("w") is known
    assert a.backlog is None
    assert b.models is None
