"""compose.system: what a set of settings becomes, and what a reload keeps."""

from random import Random

import pytest

from stayfast.compose.caching import prefix_rules
from stayfast.compose.system import Observers, System, build
from stayfast.core.types import CLIENT_APIS, Api
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsText, load_settings
from stayfast.testing import SimLoop

TEXT = """
upstreams:
  near: {{kind: openai, base_url: "{near}"}}
  far: {{kind: anthropic, base_url: "http://far", key: secret-of-far}}
  played: {{kind: simulated}}
routes:
  chat: {{upstreams: [near, far], model: gpt-x}}
  vectors: {{upstreams: [near]}}
  "*": [played]
"""


def system(near: str = "http://near/v1", old: System | None = None) -> System:
    """A system of three upstreams."""
    settings = load_settings(SettingsText("test", TEXT.format(near=near)), {}, kinds=KINDS)
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)
    finally:
        loop.close()


def test_system_models_exclude_the_wildcard() -> None:
    assert system().models() == ["chat", "vectors"]


def test_system_probes_upstreams_by_their_first_named_route() -> None:
    """The wildcard names no model to probe: upstreams of it alone are proven by traffic."""
    probed = [(member.upstream.name, model) for member, model in system().prober.targets]
    assert probed == [("near", "gpt-x"), ("far", "gpt-x")]


def test_system_is_ready_after_one_answer() -> None:
    built = system()
    assert built.unready() is not None
    built.registry["far"].record_success()
    assert built.unready() is None


def test_system_without_probes_is_ready() -> None:
    settings = load_settings(SettingsText("test", "upstreams: {p: {kind: simulated, probe: false}}\nroutes: {m: [p]}"), {},
                    kinds=KINDS)
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1))
    loop.close()
    assert built.unready() is None


@pytest.mark.parametrize(("near", "is_ready"), [("http://near/v1", True), ("http://elsewhere/v1", False)])
def test_system_reload_keeps_unchanged_upstreams(near: str, is_ready: bool) -> None:
    """With connections and proof; a changed one starts anew."""
    old = system()
    old.registry["near"].record_success()
    new = system(near, old)
    assert (new.unready() is None) == is_ready
    assert (new.registry["near"] is old.registry["near"]) == is_ready
    assert new.registry["far"] is old.registry["far"]


def test_system_secrets_are_in_no_repr() -> None:
    built = system()
    assert "secret-of-far" not in f"{built!r} {[repr(member) + repr(member.upstream) for member in built.registry]}"


def test_system_apis_by_kind_of_upstream() -> None:
    """Natively or by translation."""
    built = system()
    assert {api for api in Api if built.registry["near"].upstream.can_serve(api)} == CLIENT_APIS
    assert Api.EMBEDDINGS not in {api for api in Api if built.registry["far"].upstream.can_serve(api)}


def test_system_builds_from_default_settings() -> None:
    settings = Settings()
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1))
    loop.close()
    assert built.models() == []


def test_prefix_rules_of_converse_mark_nothing() -> None:
    text = """
upstreams: {bed: {provider: bedrock, region: us-east-1, key: bedrock-key-0123456789}}
routes: {chat: {upstreams: [bed], model: us.anthropic.claude-sonnet-4-5, prefix: {mode: auto}}}
"""
    (line,) = prefix_rules(load_settings(SettingsText("test", text), {}, kinds=KINDS))
    assert line.startswith("route chat: prompts of us.anthropic.claude-sonnet-4-5 at bed are not marked")


def test_system_bedrock_serves_conversations_and_estimates_tokens() -> None:
    text = ("upstreams: {bed: {provider: bedrock, region: us-east-1, key: k-0123456789}}\n"
            "routes: {m: {upstreams: [bed], model: n}}")
    settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
    loop = SimLoop()
    built = build(settings, Observers(settings, loop), {}, loop, Random(1))
    loop.close()
    assert {api for api in CLIENT_APIS if built.registry["bed"].upstream.can_serve(api)} == (
        CLIENT_APIS - {Api.EMBEDDINGS, Api.RERANK})
