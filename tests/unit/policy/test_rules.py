"""policy.prompt_cache.rules: the rules of each family of models."""

import pytest

from stayfast.policy.prompt_cache.rules import ModelRules, rules_of


@pytest.mark.parametrize(("model", "marks", "min_tokens"), [
    ("claude-opus-5", "anthropic", 512), ("claude-fable-5", "anthropic", 512), ("claude-opus-4-8", "anthropic", 1024),
    ("claude-sonnet-4-6-20260601", "anthropic", 1024), ("claude-opus-4-7", "anthropic", 2048),
    ("claude-haiku-4-5-20251001", "anthropic", 4096), ("claude-3-5-haiku-latest", "anthropic", 2048),
    ("us.anthropic.claude-opus-4-5-20251101-v1:0", "anthropic", 4096), ("anthropic/claude-opus-4.8", "anthropic", 1024),
    ("gpt-5.6", "openai", 1024), ("gpt-5.10-mini", "openai", 1024), ("gpt-6", "openai", 1024), ("gpt-5.5", "none", 1024),
    ("gpt-5-2025-08-07", "none", 1024), ("openai/gpt-5-mini-2025-08-07", "none", 1024),
    ("gpt-5.6-2026-05-01", "openai", 1024), ("gpt-5.1-2025-11-13", "none", 1024), ("gpt-4.1-mini", "none", 1024),
    ("o4-mini", "none", 1024), ("gemini-2.5-flash", "none", 2048),
    ("google/gemini-3.6-flash", "none", 4096), ("deepseek-chat", "none", 64)])
def test_rules_of_each_family(model: str, marks: str, min_tokens: int) -> None:
    """By the model's name, at any provider."""
    rules = rules_of(model, {})
    assert rules is not None
    assert (rules.marks, rules.min_tokens) == (marks, min_tokens)


def test_rules_of_settings_replace_the_table() -> None:
    """The first pattern that fits; what it does not say stays."""
    own = {"claude-sonnet-*": ModelRules(min_tokens=2048), "*": ModelRules(breakpoints="anthropic")}
    sonnet, other = rules_of("claude-sonnet-4-6", own), rules_of("mistral-large", own)
    assert sonnet is not None
    assert other is not None
    assert (sonnet.marks, sonnet.min_tokens, sonnet.marks_end) == ("anthropic", 2048, True)
    assert (other.marks, other.most_marks, other.write_factor) == ("anthropic", 4, 1.25)
    assert rules_of("mistral-large", {}) is None
    assert rules_of("gpt-60b-chat", {}) is None
    assert rules_of("gpt-oss-120b", {}) is None
    assert (str(sonnet), str(other)) == ("prefix.models, claude-sonnet-*: anthropic marks from 2048 tokens on",
                                         "prefix.models, *: anthropic marks from 1024 tokens on")


def test_rules_of_unknown_name_depends_on_protocol() -> None:
    """Anthropic's: as its family, from the highest floor on; a known name and the settings stand before it."""
    rules = rules_of("our-assistant", {}, is_anthropic=True)
    assert rules is not None
    assert (rules.marks, rules.min_tokens, rules.most_marks, rules.marks_end) == ("anthropic", 4096, 4, True)
    assert rules_of("our-assistant", {}) is None
    assert rules_of("claude-opus-4-8", {}, is_anthropic=True) == rules_of("claude-opus-4-8", {})
    own = rules_of("our-assistant", {"our-*": ModelRules(min_tokens=512)}, is_anthropic=True)
    assert own is not None
    assert (own.marks, own.min_tokens) == ("anthropic", 512)
