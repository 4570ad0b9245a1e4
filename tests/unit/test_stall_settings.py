"""Stalls in a settings file, and what they become."""

from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsError, SettingsText, load_settings
from stayfast.testing import SimLoop

UPSTREAMS = """
upstreams:
  plain: {kind: openai, base_url: "http://plain"}
  able: {kind: openai, base_url: "http://able", supports_continuation: true}
"""


def system(text: str) -> System:
    """The system of a text."""
    settings = load_settings(SettingsText("f.yaml", UPSTREAMS + text), {}, kinds=KINDS)
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1))
    finally:
        loop.close()


def test_on_stall_default_builds_no_guard() -> None:
    """No route asks for it: the caller is the plain one."""
    gateway = system("routes: {m: [plain, able]}").gateway
    assert gateway.router.routes["m"].on_stall == "wait"


def test_on_stall_rescue_marks_continuing_upstreams() -> None:
    """Its targets say who can go on, those of its fallback too."""
    gateway = system("routes: {m: {upstreams: [plain], on_stall: rescue, on_overrun: {fallback: [able]}}}").gateway
    route = gateway.router.routes["m"]
    assert route.on_stall == "rescue"
    assert [target.continues for target in route.targets] == [False]
    assert [target.continues for tier in route.fallback for target in tier] == [True]


@pytest.mark.parametrize(("route", "message"), [
    ("{upstreams: [plain], on_stall: rescue}", "rescue needs an upstream with supports_continuation: true"),
    ("{upstreams: [plain], on_stall: later}", "wait, end, rescue"),
])
def test_on_stall_invalid_setting_is_refused(route: str, message: str) -> None:
    """With the place of the setting."""
    with pytest.raises(SettingsError) as refused:
        system(f"routes: {{m: {route}}}")
    assert message in str(refused.value)
    assert "on_stall" in str(refused.value)


def test_supports_continuation_of_gemini_is_refused() -> None:
    """Its protocol cannot continue an answer."""
    text = UPSTREAMS + '  gem: {kind: gemini, key: sk-1, supports_continuation: true}\nroutes: {m: [gem]}\n'
    with pytest.raises(SettingsError, match=r"upstreams\.gem\.supports_continuation.*cannot continue an answer"):
        load_settings(SettingsText("f.yaml", text), {}, kinds=KINDS)


def test_supports_continuation_of_bedrock_is_taken() -> None:
    """Converse continues a last message of the assistant."""
    text = UPSTREAMS + ('  bed: {provider: bedrock, region: eu-west-1, key: k-1, supports_continuation: true}\n'
                        'routes: {m: {upstreams: [plain, bed], on_stall: rescue}}\n')
    load_settings(SettingsText("f.yaml", text), {}, kinds=KINDS)
