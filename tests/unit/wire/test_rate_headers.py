"""What a provider says is left of its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.rate_headers import parse_headroom, parse_remaining


@pytest.mark.parametrize(("headers", "remaining"), [
    ({}, (None, None)),
    ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "149984"}, (59.0, 149984.0)),
    ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-tokens-remaining": " 12000 "}, (0.0, 12000.0)),
    ({"x-ratelimit-remaining-requests": "-1", "x-ratelimit-remaining-tokens": "many"}, (None, None)),
    ({"x-ratelimit-remaining-requests": "1e9", "x-ratelimit-remaining-tokens": "9" * 400}, (None, None)),
    ({"x-ratelimit-remaining-tokens": "12.5"}, (None, 12.5)),
])
def test_parse_remaining_known_headers_are_amounts(headers: dict[str, str], remaining: tuple[object, object]) -> None:
    assert parse_remaining(headers) == remaining


@given(st.text(max_size=40))
def test_parse_remaining_any_text_is_an_amount_or_nothing(text: str) -> None:
    found = parse_remaining({"x-ratelimit-remaining-requests": text}).requests
    assert found is None or found >= 0


@pytest.mark.parametrize(("headers", "left"), [
    ({}, {}),
    ({"x-ratelimit-remaining-requests": "30", "x-ratelimit-limit-requests": "60"}, {"requests": 0.5}),
    ({"anthropic-ratelimit-output-tokens-remaining": "0", "anthropic-ratelimit-output-tokens-limit": "8000",
      "anthropic-ratelimit-requests-remaining": "10"}, {"output_tokens": 0.0}),
    ({"x-ratelimit-remaining-tokens": "70", "x-ratelimit-limit-tokens": "60"}, {"tokens": 1.0}),
    ({"x-ratelimit-remaining-tokens": "70", "x-ratelimit-limit-tokens": "0"}, {}),
])
def test_parse_headroom_pairs_of_headers_are_shares(headers: dict[str, str], left: dict[str, float]) -> None:
    assert parse_headroom(headers) == left
