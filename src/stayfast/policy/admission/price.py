"""The cost of an answer in USD.

Problem: a second attempt doubles the cost, a cached prompt costs a tenth, and a monthly bill shows neither. Rule: each
attempt is charged by the token counts that its upstream reported:

    usd = (uncached - written) * input + cached_read * cached_read + written_5m * cache_write + written_1h * cache_write_1h
          + output * output          each price in USD per million tokens

A price that is not set takes that of the more general kind: cache reads and writes cost as input, one-hour writes as
five-minute writes. Reasoning is output. Prompts above a length cost input_factor and output_factor times as much, on every
token. An answer at the tier `batch` or `flex` costs batch_factor of all that; tier_factors has the factors of all tiers that
a provider may have served, and wins. Where the price is of the table of list prices
and none is known for the tier (priority), the answer has no cost: a wrong figure is worse than none.
Source: the providers' price lists (Anthropic: writes 1.25 and 2 times the input price, reads 0.1 times; batch 0.5).
When wrong: a cancelled stream reports no usage. Its prompt is then estimated (policy.context.token_estimate) as uncached,
and each content event counts as one token. Discounts, and prices by time of day, are not known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Usage
from stayfast.policy.tiers.config import SPEEDS, read_served

ANY_MODEL = "*"
OWN_PRICE, TABLE_PRICE, REPORTED_PRICE = "own", "table", "reported"  # where a cost comes from; reported: by the upstream
TOKENS_PER_PRICE = 1_000_000
STANDARD_TIERS = frozenset(("", "default", "standard", "auto", "on_demand"))  # names of plain tiers in usage objects
BATCH_TIERS = frozenset(("batch", "flex"))


def _usd(doc: str) -> SettingDoc:
    return SettingDoc(doc, minimum=0, maximum=TOKENS_PER_PRICE)


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """Prices of requests whose whole prompt, cached parts included, is longer than `above_tokens`."""

    above_tokens: Annotated[int, SettingDoc(
        "Longest prompt at the plain prices.", minimum=1, maximum=1_000_000_000)] = 200_000
    input_factor: Annotated[float, SettingDoc("Factor of all input prices beyond it.", minimum=0, maximum=100)] = 1.0
    output_factor: Annotated[float, SettingDoc("Factor of the output price beyond it.", minimum=0, maximum=100)] = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Price:
    input_per_mtok: Annotated[float, _usd("USD per million input tokens.")] = 0.0
    # embeddings have no output
    output_per_mtok: Annotated[float, _usd("USD per million output tokens, reasoning included.")] = 0.0
    cached_read_per_mtok: Annotated[float | None, _usd(
        "USD per million tokens read from the provider's cache; null: as input.")] = None
    cache_write_per_mtok: Annotated[float | None, _usd(
        "USD per million tokens written to the cache (for 5 minutes); null: as input.")] = None
    cache_write_1h_per_mtok: Annotated[float | None, _usd(
        "USD per million tokens written for an hour; null: as any write.")] = None
    batch_factor: Annotated[float | None, SettingDoc(
        "Factor of all prices for answers that the provider reports at its batch or flex tier; null: 1.",
        minimum=0, maximum=1)] = None
    tier_factors: Annotated[Mapping[str, float], SettingDoc(
        "Factors of all prices by the service tier that was served: flex, standard, fast, ultrafast. Others cost 1.",
        minimum=0, maximum=100)] = field(default_factory=dict)
    long_prompt: Annotated[LongPrompt | None, SettingDoc("Other prices of long prompts.")] = None
    table: Annotated[str, SettingDoc(
        "Row of the table of list prices, such as azure/o3, whose figures apply. Only alone.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        unknown = next((tier for tier in self.tier_factors if tier not in SPEEDS), None)
        if unknown is not None:
            raise ValueError(f"tier_factors must be among {', '.join(SPEEDS)}, not {unknown}")
        if self.table and any(getattr(self, known.name) not in (known.default, {}) for known in fields(self)
                              if known.name != "table"):
            raise ValueError("table must be alone: its row has the figures")

    @property
    def source(self) -> str:
        """own: from the settings; table: from the table of list prices."""
        return OWN_PRICE

    def has_tier(self, tier: str) -> bool:
        """Whether these are the prices of this service tier."""
        return True

    def cost_usd(self, usage: Usage) -> float:
        factor = self._tier_factor(usage.tier)
        inputs = self.input_per_mtok
        read = inputs if self.cached_read_per_mtok is None else self.cached_read_per_mtok
        write = inputs if self.cache_write_per_mtok is None else self.cache_write_per_mtok
        write_1h = write if self.cache_write_1h_per_mtok is None else self.cache_write_1h_per_mtok
        n_plain = max(0, usage.uncached - usage.cache_write_5m - usage.cache_write_1h)
        input_usd = (n_plain * inputs + usage.cached_read * read + usage.cache_write_5m * write
                     + usage.cache_write_1h * write_1h)
        output_usd = usage.output * self.output_per_mtok
        long = self.long_prompt
        if long is not None and usage.input_total > long.above_tokens:
            input_usd, output_usd = input_usd * long.input_factor, output_usd * long.output_factor
        return factor * (input_usd + output_usd) / TOKENS_PER_PRICE

    def _tier_factor(self, tier: str) -> float:
        own = self.tier_factors.get(read_served(tier)) if self.tier_factors else None
        if own is not None:
            return own
        return self.batch_factor if self.batch_factor is not None and tier in BATCH_TIERS else 1.0

    @property
    def highest_input_per_mtok(self) -> float:
        """The highest price of a million input tokens, whatever the cache does."""
        variants = (self.cached_read_per_mtok, self.cache_write_per_mtok, self.cache_write_1h_per_mtok)
        factor = max(1.0, self.long_prompt.input_factor) if self.long_prompt is not None else 1.0
        return self._highest_tier_factor * factor * max([self.input_per_mtok, *[usd for usd in variants if usd is not None]])

    @property
    def highest_output_per_mtok(self) -> float:
        """The highest price of a million output tokens, however long the prompt is."""
        factor = max(1.0, self.long_prompt.output_factor) if self.long_prompt is not None else 1.0
        return self._highest_tier_factor * factor * self.output_per_mtok

    @property
    def _highest_tier_factor(self) -> float:
        return max([1.0, *self.tier_factors.values()])


@dataclass(frozen=True, slots=True)
class ListPrice(Price):
    """A price of the table of list prices. checked: days since 0001-01-01 when it was last compared."""

    checked: int = 0

    @property
    def source(self) -> str:
        return TABLE_PRICE

    def has_tier(self, tier: str) -> bool:
        if read_served(tier) in self.tier_factors:
            return True
        return tier in STANDARD_TIERS or (tier in BATCH_TIERS and self.batch_factor is not None)


Prices = Mapping[str, Price]  # by the upstream's own name for a model; ANY_MODEL: all others


def price_of(prices: Prices, model: str) -> Price | None:
    return prices.get(model) or prices.get(ANY_MODEL)


def highest_prices(candidates: Iterable[tuple[Prices, str | None]], name: str) -> Prices:
    """An upper bound of the price at these upstreams, by the model name that a client sends: `name`, or, if that is
    ANY_MODEL, any. `candidates`: each upstream's prices and its own name for the model (None: the client's). Empty if no
    price is set.
    """
    upstreams = tuple(candidates)
    names = {name}
    if name == ANY_MODEL:
        names.update(*[prices for prices, own in upstreams if own is None])
    found: dict[str, Price] = {}
    for model in names:
        priced = [price for prices, own in upstreams if (price := price_of(prices, own or model)) is not None]
        if priced:
            found[model] = Price(max(price.highest_input_per_mtok for price in priced),
                                 max(price.highest_output_per_mtok for price in priced))
    return found
