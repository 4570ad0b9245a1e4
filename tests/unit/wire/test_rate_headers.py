"""What a provider says is left of its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.rate_headers import parse_remaining


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
