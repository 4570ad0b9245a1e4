"""The time to wait before a retry, from every vendor's headers."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.errors import MAX_PARSED_WAIT_S, parse_retry_after_s

NOW = 784111770.0  # 1994-11-06T08:49:30Z


@pytest.mark.parametrize(("headers", "expected"), [
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2s"}, 2.0),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s",
      "x-ratelimit-remaining-tokens": "800", "x-ratelimit-reset-tokens": "1h30m0s"}, 360.0),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "12ms"}, 0.012),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m2.5s"}, 62.5),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "17"}, 17.0),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "-1"}, None),
    ({"x-ratelimit-remaining-tokens": "12", "x-ratelimit-reset-tokens": "9s"}, None),
    ({"x-ratelimit-reset-requests": "3s", "x-ratelimit-reset-tokens": "9s"}, 9.0),
    ({"anthropic-ratelimit-input-tokens-remaining": "0",
      "anthropic-ratelimit-input-tokens-reset": "1994-11-06T08:50:00Z"}, 30.0),
    ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "1994-11-06T08:00:00Z"}, 0.0),
    ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "1994-11-06T08:50:00"}, None),
    ({"x-ratelimit-reset": "1800000000"}, MAX_PARSED_WAIT_S),
    ({"ratelimit-remaining": "0", "ratelimit-reset": "4"}, 4.0),
    ({"x-ratelimit-remaining-requests": "999", "x-ratelimit-reset-requests": "1m26.4s", "x-ratelimit-remaining-tokens": "0",
      "x-ratelimit-reset-tokens": "825ms"}, 0.825),  # Groq
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m26.4s"}, 86.4),
    ({"x-ratelimit-remaining-requests-day": "13693", "x-ratelimit-reset-requests-day": "11726.28",
      "x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "26.284"}, 26.284),  # Cerebras
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1", "x-tokenlimit-remaining": "9", "x-tokenlimit-reset": "5"},
     1.0),  # Together
    ({"x-ratelimit-remaining-req-minute": "0", "x-ratelimit-remaining-tokens-minute": "0"}, None),  # Mistral
    ({"retry-after": "7", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2s"}, 7.0),
    ({"retry-after": "9999999"}, MAX_PARSED_WAIT_S),
])
def test_retry_after_header_formats(headers: Mapping[str, str], expected: float | None) -> None:
    """Retry-After first; then the limit of which nothing is left, as a duration, a number, an instant or a date."""
    assert parse_retry_after_s(429, headers, b"", NOW) == (None if expected is None else pytest.approx(expected))


def test_retry_after_epoch_in_milliseconds() -> None:
    """OpenRouter's header inside its error; None for a body without it."""
    now = 1_800_000_000.0
    body = json.dumps({"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": "1800000005000"}}}}).encode()
    assert parse_retry_after_s(429, {}, body, now) == 5.0
    assert parse_retry_after_s(429, {}, b'{"error": {"metadata": "X-RateLimit-Reset"}}', now) is None
    assert parse_retry_after_s(429, {}, b"X-RateLimit-Reset", now) is None


def test_retry_after_limits_count_only_for_quota_and_load() -> None:
    """A 500 with an exhausted limit only uses its Retry-After."""
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2s"}
    assert parse_retry_after_s(500, headers, b"", NOW) is None
    assert parse_retry_after_s(500, {**headers, "retry-after-ms": "1500"}, b"", NOW) == 1.5


def test_retry_after_instants_need_a_clock() -> None:
    """Dates and instants say nothing then."""
    assert parse_retry_after_s(429, {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, b"", None) is None
    assert parse_retry_after_s(429, {"x-ratelimit-reset": "1800000000"}, b"", None) is None
    assert parse_retry_after_s(429, {"x-ratelimit-reset": "3"}, b"", None) == 3.0


NAMES = ("retry-after", "retry-after-ms", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
         "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset", "x-ratelimit-reset")
WORDS = st.one_of(st.text(max_size=30), st.from_regex(r"(\d{1,9}(\.\d{1,4})?(h|ms|m|s|us|ns))+", fullmatch=True),
                  st.floats().map(str), st.datetimes().map(lambda at: f"{at.isoformat()}Z"))


@given(st.dictionaries(st.sampled_from(NAMES), WORDS), st.binary(max_size=50), st.sampled_from([None, NOW]),
       st.sampled_from([429, 500, 503, 529]))
def test_retry_after_any_value_is_bounded(headers: dict[str, str], body: bytes, now: float | None, status: int) -> None:
    """Nothing, or a time from none to a day; never an error."""
    found = parse_retry_after_s(status, headers, body + b"X-RateLimit-Reset", now)
    assert found is None or 0 <= found <= MAX_PARSED_WAIT_S


@given(st.integers(0, 20), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_retry_after_durations_are_summed(hours: int, minutes: int, seconds: int, ms: int) -> None:
    """A Go duration has several parts."""
    said = f"{hours}h{minutes}m{seconds}s{ms}ms"
    assert parse_retry_after_s(429, {"x-ratelimit-reset-tokens": said}, b"", None) == pytest.approx(
        hours * 3600 + minutes * 60 + seconds + ms / 1e3)
