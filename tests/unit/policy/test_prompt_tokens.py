"""Tokens of prompts by their bytes, learned from what was reported."""

from random import Random

import pytest

from stayfast.policy.prompt_tokens import HALVE_AT, MAX_CLASSES, PromptTokens


def test_prompt_tokens_without_samples_uses_four_bytes() -> None:
    """Four bytes a token, by the rule of thumb."""
    assert PromptTokens().estimate("m", 400) == 100


def test_prompt_tokens_ratio_by_model_and_size() -> None:
    """Short prompts are mostly JSON, long ones mostly text; what a size has not shown comes from the model's others."""
    known = PromptTokens()
    for _ in range(10):
        known.learn("m", 100, 9)
        known.learn("m", 100_000, 25_000)
    assert known.estimate("m", 110) == 10
    assert known.estimate("m", 80_000) == 20_000
    assert known.estimate("m", 1_000) == 250  # by all of the model's bytes
    assert known.estimate("other", 1_000) == 250


def test_prompt_tokens_follow_new_traffic() -> None:
    """Another tokenizer behind the same name is known after some hundred prompts."""
    known = PromptTokens()
    for _ in range(10 * HALVE_AT):
        known.learn("m", 1000, 400)
    for _ in range(4 * HALVE_AT):
        known.learn("m", 1000, 200)
    assert known.estimate("m", 1000) == pytest.approx(200, rel=0.1)


def test_prompt_tokens_too_many_models_forgets_the_oldest() -> None:
    """Clients choose models, so the classes are bounded."""
    known, rng = PromptTokens(), Random(1)
    for n in range(3 * MAX_CLASSES):
        known.learn(f"m{n}", rng.randrange(1, 100_000), 10)
    assert known.estimate("m0", 4000) == 1000
    assert known.estimate(f"m{3 * MAX_CLASSES - 1}", 4000) < 1000
