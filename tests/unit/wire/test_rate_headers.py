"""What a provider says is left of its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.rate_headers import parse_headroom, parse_remaining

GROQ = {"x-ratelimit-limit-requests": "1000", "x-ratelimit-remaining-requests": "999", "x-ratelimit-limit-tokens": "8000",
        "x-ratelimit-remaining-tokens": "7890", "x-ratelimit-reset-requests": "1m26.4s", "x-ratelimit-reset-tokens": "825ms"}
CEREBRAS = {"x-ratelimit-limit-requests-day": "14400", "x-ratelimit-remaining-requests-day": "13693",
            "x-ratelimit-limit-tokens-minute": "60000", "x-ratelimit-remaining-tokens-minute": "30000"}
MISTRAL = {"x-ratelimit-limit-req-minute": "60", "x-ratelimit-remaining-req-minute": "59",
           "x-ratelimit-limit-tokens-minute": "50000", "x-ratelimit-remaining-tokens-minute": "47196"}
FIREWORKS = {"x-ratelimit-limit-tokens-prompt": "7200000", "x-ratelimit-remaining-tokens-prompt": "3600000",
             "x-ratelimit-limit-tokens-generated": "72000", "x-ratelimit-remaining-tokens-generated": "54000"}
TOGETHER = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "15", "x-ratelimit-reset": "1", "x-tokenlimit-limit": "3000",
            "x-tokenlimit-remaining": "1500"}


@pytest.mark.parametrize(("headers", "remaining"), [
    ({}, {}),
    ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "149984"},
     {"requests_per_minute": 59.0, "tokens_per_minute": 149984.0}),
    ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-tokens-remaining": " 12000 "},
     {"requests_per_minute": 0.0, "tokens_per_minute": 12000.0}),
    ({"x-ratelimit-remaining-requests": "-1", "x-ratelimit-remaining-tokens": "many"}, {}),
    ({"x-ratelimit-remaining-requests": "1e9", "x-ratelimit-remaining-tokens": "9" * 400}, {}),
    ({"x-ratelimit-remaining-tokens": "12.5"}, {"tokens_per_minute": 12.5}),
    (CEREBRAS, {"requests_per_day": 13693.0, "tokens_per_minute": 30000.0}),
    (MISTRAL, {"requests_per_minute": 59.0, "tokens_per_minute": 47196.0}),
    (FIREWORKS, {}), (TOGETHER, {}),
])
def test_parse_remaining_known_headers_are_amounts(headers: dict[str, str], remaining: dict[str, float]) -> None:
    assert parse_remaining(headers) == remaining


def test_parse_remaining_daily_requests_are_no_minute() -> None:
    """Groq counts a day's requests under OpenAI's name for a minute's."""
    assert parse_remaining(GROQ, are_requests_daily=True) == {"requests_per_day": 999.0, "tokens_per_minute": 7890.0}


@given(st.text(max_size=40))
def test_parse_remaining_any_text_is_an_amount_or_nothing(text: str) -> None:
    assert all(amount >= 0 for amount in parse_remaining({"x-ratelimit-remaining-requests": text}).values())


@pytest.mark.parametrize(("headers", "left"), [
    ({}, {}),
    ({"x-ratelimit-remaining-requests": "30", "x-ratelimit-limit-requests": "60"}, {"requests": 0.5}),
    ({"anthropic-ratelimit-output-tokens-remaining": "0", "anthropic-ratelimit-output-tokens-limit": "8000",
      "anthropic-ratelimit-requests-remaining": "10"}, {"output_tokens": 0.0}),
    ({"x-ratelimit-remaining-tokens": "70", "x-ratelimit-limit-tokens": "60"}, {"tokens": 1.0}),
    ({"x-ratelimit-remaining-tokens": "70", "x-ratelimit-limit-tokens": "0"}, {}),
    (MISTRAL, {"requests": 59 / 60, "tokens": 47196 / 50000}),
    ({**CEREBRAS, "x-ratelimit-limit-requests-day": "27386"}, {"requests_per_day": 0.5, "tokens": 0.5}),
    (FIREWORKS, {"input_tokens": 0.5, "output_tokens": 0.75}), (TOGETHER, {"requests": 0.25, "tokens": 0.5}),
])
def test_parse_headroom_pairs_of_headers_are_shares(headers: dict[str, str], left: dict[str, float]) -> None:
    assert parse_headroom(headers) == left
