"""The checks of a small tier's answer, and their look-alikes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.tiers.answer_checks import PHRASES, AnswerChecks, AnswerFacts, read_json
from stayfast.policy.tiers.enough import ChecksConfig


def failure(text: str, checks: ChecksConfig | None = None, **facts: Any) -> str:
    return AnswerChecks(checks or ChecksConfig()).find_failure(AnswerFacts(text, **{"finish_reason": "stop", **facts}))


@pytest.mark.parametrize(("text", "facts", "reason"), [
    ("", {}, "empty"), (" \n", {}, "empty"), ("", {"has_tool_calls": True}, ""), ("Paris", {}, ""),
    ("The answer is", {"finish_reason": "length"}, "cut at a length limit"),
    ("The answer is", {"finish_reason": "max_output_tokens"}, "cut at a length limit"),
    ("Fine", {"finish_reason": "content_filter"}, "refused"), ("Fine", {"has_refusal": True}, "refused"),
    ("I\u2019m sorry, but I can\u2019t help with that.", {}, "refused"),
    ("You can't help but love it.", {}, "")])
def test_content_and_refusals_are_found(text: str, facts: dict[str, Any], reason: str) -> None:
    assert failure(text, **facts) == reason


def test_refusal_after_the_opening_is_none() -> None:
    assert failure("The clerk wrote back. " * 12 + "I cannot help you, the letter ended.") == ""


def test_own_phrase_counts_in_any_case() -> None:
    assert failure("Das kann ich LEIDER nicht.", ChecksConfig(refusal_phrases=("Kann ich leider nicht",))) == "refused"


def test_checks_that_are_off_find_nothing() -> None:
    off = ChecksConfig(not_empty=False, not_refused=False)
    assert failure("", off, finish_reason="length") == ""
    assert failure("I cannot help", off, has_refusal=True) == ""


@pytest.mark.parametrize(("text", "wants", "reason"), [
    ('{"a": 1}', True, ""), ("null", True, ""), ('{"a": 1', True, "not JSON"), ("```json\n{}\n```", True, "not JSON"),
    ("no JSON", False, "")])
def test_json_is_read_where_it_is_wanted(text: str, wants: bool, reason: str) -> None:
    assert failure(text, ChecksConfig(json="valid"), wants_json=wants) == reason


def test_pattern_must_occur() -> None:
    checks = ChecksConfig(pattern=r"\b\d{4}\b")
    assert failure("In 1969.", checks) == ""
    assert failure("Long ago.", checks) == "the pattern does not occur"


def test_logprobs_below_the_bounds_fail_with_their_figure() -> None:
    mean, least = ChecksConfig(min_logprob=-0.5), ChecksConfig(min_token_logprob=-2)
    assert failure("a", mean, logprobs=(-0.1, -0.2)) == ""
    assert failure("a", mean, logprobs=(-0.1, -1.5)) == "mean log-probability -0.80"
    assert failure("a", least, logprobs=(-0.1, -1.5)) == ""
    assert failure("a", least, logprobs=(-0.1, -3.0)) == "log-probability of a token -3.00"
    assert failure("a", least) == "no log-probabilities"


@given(st.text(max_size=300), st.booleans(), st.lists(st.floats(-50, 0), max_size=5))
def test_checks_never_raise_and_never_quote_the_answer(text: str, has_tool_calls: bool, logprobs: list[float]) -> None:
    checks = ChecksConfig(json="valid", pattern="x", min_logprob=-1, min_token_logprob=-2)
    found = failure(text, checks, has_tool_calls=has_tool_calls, logprobs=tuple(logprobs), wants_json=True)
    assert len(found) < 60
    assert len(text) < 12 or text not in found


def test_deeply_nested_text_is_no_json() -> None:
    assert read_json("[" * 200_000) is None
    assert all(phrase == phrase.lower() for phrase in PHRASES)
