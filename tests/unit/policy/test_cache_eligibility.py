"""The questions that a semantic cache may compare."""

from pathlib import Path
from time import process_time
from typing import Any

import pytest

from stayfast.policy.cache.eligibility import EligibleConfig, exclusion_reason
from stayfast.policy.cache.lexical import MOST_CHARS, parse_wording

HOUR_S = 3600.0


PAIRS = Path(__file__).with_name("pairs")


def read_questions(name: str) -> list[str]:
    """The questions of a file."""
    lines = (PAIRS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def why(text: str, **settings: Any) -> str:
    """With the usual settings otherwise."""
    return exclusion_reason(text, parse_wording(text), EligibleConfig(**settings), HOUR_S)


@pytest.mark.parametrize(("text", "reason"), [
    ("How do I export a table as CSV?", ""),
    ("", "short"),
    ("and then?", "short"),
    ("how much is it", "pointing"),
    ("what is there for you?", "short"),
    ("It prints the same line twice", "pointing"),
    ("And does that export whole tables too?", "pointing"),
    ("Is it free?", "pointing"),
    ("Is it legal to vape?", ""),
    ("the export button prints... something", "short"),
    ("latest stable release of Python", "volatile"),
    ("What is the price of bitcoin?", "volatile"),
    ("How many dollars for a euro at this rate?", "volatile"),
    ("What is the price of the premium plan?", ""),
    ("Can you restart my broken router", "personal"),
    ("How do I restart my broken router", ""),
    ("Where is my order?", "personal"),
    ("Why was I charged twice?", "personal"),
    ("What does my bank say about overdrafts?", ""),
    ("What happens when my card expires?", ""),
    ("Do I have to sign the form?", ""),
    ("How do I get a refund? Answer with one word.", "instruction"),
    ("write a letter to jane.doe@example.com about rent", "private"),
    ("why was the payment to 4111 1111 1111 1111 refused", "private"),
    ("Wie kann ich eine Tabelle exportieren", "language"),
    ("\u5982\u4f55\u5bfc\u51fa\u8868\u683c", "language"),
    ("x" * 3000, "long"),
])
def test_exclusion_reason_each_rule_excludes(text: str, reason: str) -> None:
    """With the usual settings."""
    assert why(text) == reason


def test_exclusion_reason_usual_settings_serve_everyday_questions() -> None:
    """At least nine in ten; the others refer to something, or are short."""
    questions = read_questions("faq")
    refused = [(text, why(text)) for text in questions if why(text)]
    assert len(questions) >= 100
    assert len(refused) <= len(questions) / 10
    assert {reason for _, reason in refused} <= {"pointing", "personal", "short"}


def test_exclusion_reason_usual_settings_refuse_own_data() -> None:
    """The data or state of one client, and what changes soon."""
    assert [text for text in read_questions("own_data") if not why(text)] == []


def test_exclusion_reason_route_settings_admit() -> None:
    """Texts with "My" at a help desk, and questions about today if answers are stored for as long as they are valid."""
    mine, today = "Can you restart my broken router", "latest stable release of Python"
    assert why(mine, allow_personal=True) == ""
    assert why(today, volatile_ttl_s=HOUR_S) == ""
    assert exclusion_reason(today, parse_wording(today), EligibleConfig(volatile_ttl_s=HOUR_S), HOUR_S + 1) == "volatile"
    assert (why("restart router"), why("restart router", min_content_words=3)) == ("", "short")


@pytest.mark.parametrize("text", ["a@" * 50_000, "@" * 100_000, "1 " * 50_000, "1-" * 50_000, "x" * 100_000, ". " * 50_000])
def test_exclusion_reason_any_text_is_fast(text: str) -> None:
    """For hostile input, too: milliseconds at the largest limit."""
    began_s = process_time()
    exclusion_reason(text[:MOST_CHARS], parse_wording(text), EligibleConfig(max_chars=MOST_CHARS), HOUR_S)
    assert process_time() - began_s < 0.5


@pytest.mark.parametrize("wrong", [{"language": "xx"}, {"min_content_words": 0}, {"volatile_ttl_s": -1.0}, {"max_chars": 0}])
def test_eligible_config_out_of_bounds_is_rejected(wrong: dict[str, Any]) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EligibleConfig(**wrong)
