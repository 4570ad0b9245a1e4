"""policy.price: what an answer cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from stayfast.core.types import Usage
from stayfast.policy.admission.price import ListPrice, LongPrompt, Price, highest_prices, price_of

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
        convert({"input_per_mtok": 1.0, "output_per_mtok": 1.0, **bad}, Price)


@pytest.mark.parametrize(("tier", "usd"), [("", 24.0), ("standard", 24.0), ("auto", 24.0), ("batch", 12.0), ("flex", 12.0)])
def test_price_of_a_batch_tier_is_its_share(tier: str, usd: float) -> None:
    """2 million tokens in, half of them cached, 1 million out."""
    price = Price(2.0, 21.0, cached_read_per_mtok=1.0, batch_factor=0.5)
    assert price.cost_usd(Usage(2_000_000, 1_000_000, cached_read=1_000_000, tier=tier)) == usd


def test_list_price_of_an_unknown_tier_is_none() -> None:
    """An own price covers every tier; a list price only those whose price it has."""
    assert all(Price(1.0, 1.0).has_tier(tier) for tier in ("", "batch", "priority"))
    assert [ListPrice(1.0, 1.0).has_tier(tier) for tier in ("default", "batch", "priority")] == [True, False, False]
    assert [ListPrice(1.0, 1.0, batch_factor=0.5).has_tier(tier) for tier in ("batch", "priority")] == [True, False]


def test_price_of_a_long_prompt_applies_to_all_tokens() -> None:
    """Beyond the bound, not at it; cached tokens count for the length."""
    price = Price(1.0, 10.0, cached_read_per_mtok=0.1, long_prompt=LongPrompt(1000, 2.0, 1.5))
    assert price.cost_usd(Usage(1000, 100, cached_read=500)) == pytest.approx((500 + 50 + 1000) / 1e6)
    assert price.cost_usd(Usage(1001, 100, cached_read=501)) == pytest.approx((1000 + 100.2 + 1500) / 1e6)
    assert highest_prices([({"a": price}, None)], "a") == {"a": Price(2.0, 15.0)}


def test_price_of_a_row_has_no_figures_of_its_own() -> None:
    with pytest.raises(ValueError, match="table must be alone"):
        Price(1.0, table="azure/o3")


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


def test_tier_factor_of_the_served_tier_multiplies_all_prices() -> None:
    price = Price(1.0, 2.0, batch_factor=0.5, tier_factors={"fast": 2.0, "flex": 0.4})
    usages = {tier: Usage(1_000_000, 1_000_000, tier=tier) for tier in ("", "default", "priority", "flex", "batch")}
    assert {tier: price.cost_usd(usage) for tier, usage in usages.items()} == pytest.approx(
        {"": 3.0, "default": 3.0, "priority": 6.0, "flex": 1.2, "batch": 1.2})
    assert (price.highest_input_per_mtok, price.highest_output_per_mtok) == (2.0, 4.0)
    with pytest.raises(ValueError, match=r"^tier_factors "):
        Price(1.0, 2.0, tier_factors={"rapid": 2.0})
