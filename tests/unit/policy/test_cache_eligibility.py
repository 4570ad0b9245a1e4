"""The questions that a semantic cache may compare."""

from time import process_time
from typing import Any

import pytest

from stayfast.policy.cache.eligibility import EligibleConfig, exclusion_reason
from stayfast.policy.cache.lexical import MOST_CHARS, parse_wording

HOUR_S = 3600.0


@pytest.mark.parametrize(("text", "why"), [
    ("How do I export a table as CSV?", ""),
    ("", "short"),
    ("and then?", "short"),
    ("how much is it", "short"),
    ("It prints the same line twice", "pointing"),
    ("And does that export whole tables too?", "pointing"),
    ("the export button prints... something", "short"),
    ("latest stable release of Python", "volatile"),
    ("Can you restart my broken router", "personal"),
    ("write a letter to jane.doe@example.com about rent", "private"),
    ("why was the payment to 4111 1111 1111 1111 refused", "private"),
    ("Wie kann ich eine Tabelle exportieren", "language"),
    ("\u5982\u4f55\u5bfc\u51fa\u8868\u683c", "language"),
    ("x" * 3000, "long"),
])
def test_exclusion_reason_each_rule_excludes(text: str, why: str) -> None:
    """With the usual settings."""
    assert exclusion_reason(text, parse_wording(text), EligibleConfig(), HOUR_S) == why


def test_exclusion_reason_route_settings_admit() -> None:
    """Texts with "My" at a help desk, and questions about today if answers are stored for as long as they are valid."""
    mine, today = "Can you restart my broken router", "latest stable release of Python"
    assert exclusion_reason(mine, parse_wording(mine), EligibleConfig(allow_personal=True), HOUR_S) == ""
    assert exclusion_reason(today, parse_wording(today), EligibleConfig(volatile_ttl_s=HOUR_S), HOUR_S) == ""
    assert exclusion_reason(today, parse_wording(today), EligibleConfig(volatile_ttl_s=HOUR_S), HOUR_S + 1) == "volatile"
    assert exclusion_reason("restart router", parse_wording("restart router"), EligibleConfig(min_content_words=2),
                            HOUR_S) == ""


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
