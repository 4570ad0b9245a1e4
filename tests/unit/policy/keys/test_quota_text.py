"""Quotas of keys as people type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.keys.quota_text import LIMITS, check_quota, format_quota, make_quota, parse_quota


@pytest.mark.parametrize(("text", "limits"), [
    ("requests: 100/min", {"requests_per_minute": 100.0}), ("tokens:1.5M/day", {"tokens_per_day": 1.5e6}),
    ("cost: 5/day, requests: 10 / minute", {"cost_per_day": 5.0, "requests_per_minute": 10.0}),
    ("tokens = 20k/min", {"tokens_per_minute": 20_000.0})])
def test_parse_quota_reads_limits(text: str, limits: dict[str, float]) -> None:
    assert parse_quota([text]) == limits


@pytest.mark.parametrize("text", ["", "requests", "requests: 100", "requests: 100/hour", "calls: 1/min", "requests: -1/min",
                                  "requests: 0/min", "requests: 1/min, requests: 2/min"])
def test_parse_quota_refuses_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"limit|twice|requests_per_minute"):
        parse_quota([text])


@given(st.dictionaries(st.sampled_from(LIMITS), st.integers(1, 100_000).map(float)))
def test_format_quota_is_read_back(limits: dict[str, float]) -> None:
    assert (parse_quota([format_quota(limits)]) if limits else {}) == check_quota(limits)
    assert {name: capacity for name, capacity, _ in make_quota(limits).limits()} == limits


def test_check_quota_names_an_unknown_limit() -> None:
    with pytest.raises(ValueError, match="requests_per_hour"):
        check_quota({"requests_per_hour": 1.0})
    assert make_quota({"requests_per_hour": 1.0, "tokens_per_day": 5.0}).tokens_per_day == 5.0
