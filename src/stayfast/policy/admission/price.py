"""The cost of an answer in USD.

Problem: a second attempt doubles the cost, a cached prompt costs a tenth, and a monthly bill shows neither. Rule: each
attempt is charged by the token counts that its upstream reported:

    usd = (uncached - written) * input + cached_read * cached_read + written_5m * cache_write + written_1h * cache_write_1h
          + output * output          each price in USD per million tokens

A price that is not set takes that of the more general kind: cache reads and writes cost as input, one-hour writes as
five-minute writes. Reasoning is output.
Source: the providers' price lists (Anthropic: writes 1.25 and 2 times the input price, reads 0.1 times).
When wrong: a cancelled stream reports no usage. Its prompt is then estimated (policy.prompt_tokens) as uncached, and each
content event counts as one token. Batch prices, tiers by context length and discounts are not known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Usage

ANY_MODEL = "*"
TOKENS_PER_PRICE = 1_000_000


def _usd(doc: str) -> SettingDoc:
    return SettingDoc(doc, minimum=0, maximum=TOKENS_PER_PRICE)


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

    def __post_init__(self) -> None:
        check_bounds(self)

    def cost_usd(self, usage: Usage) -> float:
        inputs = self.input_per_mtok
        read = inputs if self.cached_read_per_mtok is None else self.cached_read_per_mtok
        write = inputs if self.cache_write_per_mtok is None else self.cache_write_per_mtok
        write_1h = write if self.cache_write_1h_per_mtok is None else self.cache_write_1h_per_mtok
        n_plain = max(0, usage.uncached - usage.cache_write_5m - usage.cache_write_1h)
        usd = (n_plain * inputs + usage.cached_read * read + usage.cache_write_5m * write + usage.cache_write_1h * write_1h
               + usage.output * self.output_per_mtok)
        return usd / TOKENS_PER_PRICE

    @property
    def highest_input_per_mtok(self) -> float:
        """The highest price of a million input tokens, whatever the cache does."""
        variants = (self.cached_read_per_mtok, self.cache_write_per_mtok, self.cache_write_1h_per_mtok)
        return max([self.input_per_mtok, *[usd for usd in variants if usd is not None]])


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
                                 max(price.output_per_mtok for price in priced))
    return found
