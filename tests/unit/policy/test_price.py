"""policy.price: what an answer cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Usage
from stayfast.policy.admission.price import Price, highest_prices, price_of

COUNTS = st.integers(0, 10_000_000)


def test_price_cost_by_kind_of_token() -> None:
    """A worked example: of 1000 input tokens 600 were read from the cache and 200 written to it, in two ways; 50 output."""
    price = Price(3.0, 15.0, cached_read_per_mtok=0.3, cache_write_per_mtok=3.75, cache_write_1h_per_mtok=6.0)
    usage = Usage(1000, 50, cached_read=600, cache_write_5m=150, cache_write_1h=50, reasoning=40)
    assert price.cost_usd(usage) == pytest.approx((200 * 3 + 600 * 0.3 + 150 * 3.75 + 50 * 6 + 50 * 15) / 1e6)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_price_without_cache_prices_uses_input_price(plain: int, read: int, short: int, long: int, output: int) -> None:
    """What is not set costs what plain input does; reasoning is not charged twice."""
    usage = Usage(plain + read + short + long, output, read, short, long, reasoning=output)
    assert Price(2.0, 8.0).cost_usd(usage) == pytest.approx((usage.input_total * 2 + output * 8) / 1e6)


def test_price_inconsistent_usage_is_not_negative() -> None:
    """An upstream that counts cached tokens in addition to its input."""
    assert Price(2.0, 8.0, cached_read_per_mtok=0.0).cost_usd(Usage(10, 0, cached_read=100, cache_write_5m=5)) >= 0


def test_price_of_model_or_any_model() -> None:
    """By name, else by `*`, else none."""
    one, rest = Price(1, 1), Price(2, 2)
    assert price_of({"a": one, "*": rest}, "a") is one
    assert price_of({"a": one, "*": rest}, "b") is rest
    assert price_of({"a": one}, "b") is None


@pytest.mark.parametrize("bad", [{"input_per_mtok": -1}, {"output_per_mtok": float("nan")}, {"cached_read_per_mtok": 2e6}])
def test_price_out_of_bounds_is_rejected(bad: dict[str, float]) -> None:
    """The field is named."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        Price(**{"input_per_mtok": 1.0, "output_per_mtok": 1.0, **bad})


def test_dearest_takes_highest_of_all_upstreams() -> None:
    """By kind of token, of all upstreams; a target's own name for the model counts, if it has one."""
    cheap, dear = Price(1.0, 20.0, cached_read_per_mtok=0.1), Price(4.0, 8.0, cache_write_per_mtok=5.0)
    assert highest_prices([({"a": cheap}, None), ({"b": dear}, "b")], "a") == {"a": Price(5.0, 20.0)}
    assert highest_prices([({"a": cheap}, None), ({"b": dear}, "c"), ({}, None)], "a") == {"a": Price(1.0, 20.0)}
    assert highest_prices([({}, None)], "a") == {}


def test_dearest_any_model_lists_each_price() -> None:
    """Names with a price of their own have theirs; all others what `*` costs."""
    found = highest_prices([({"a": Price(1, 1), "*": Price(2, 2)}, None), ({"b": Price(9, 9)}, None)], "*")
    assert found == {"a": Price(1, 1), "b": Price(9, 9), "*": Price(2, 2)}
