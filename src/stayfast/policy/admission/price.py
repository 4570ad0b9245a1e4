"""What an answer cost.

Problem: two attempts for one answer cost twice, a cached prefix a tenth, and a bill by the month names neither. Rule: each
attempt is charged by the token counts that its upstream reported:

    usd = (uncached - written) * input + cached_read * cached_read + written_5m * cache_write + written_1h * cache_write_1h
          + output * output          each price in USD per million tokens

A price that is not set is the one it is a variant of: reads and writes of the cache cost what input costs, one-hour writes
what five-minute writes cost. Reasoning is output.
Source: the providers' price lists (Anthropic's writes are 1.25 and 2 times input, its reads 0.1 times).
When wrong: a cut-off stream reports no usage, so its prompt is estimated (policy.prompt_tokens), as if nothing of
it were cached, and each event of content is taken for a token, which is too few where events hold several; batch rates,
tiers by length of context and volume discounts are unknown to it.
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
    """USD for a million tokens of each kind."""

    input_per_mtok: Annotated[float, _usd("USD per million input tokens.")] = 0.0
    # embeddings have none
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
    def dearest_input(self) -> float:
        """USD for a million tokens of a prompt, whatever the cache does with it."""
        variants = (self.cached_read_per_mtok, self.cache_write_per_mtok, self.cache_write_1h_per_mtok)
        return max([self.input_per_mtok, *[usd for usd in variants if usd is not None]])


Prices = Mapping[str, Price]  # by the upstream's own name for a model; ANY_MODEL: the rest


def price_of(prices: Prices, model: str) -> Price | None:
    """The price of a model; None: not set."""
    return prices.get(model) or prices.get(ANY_MODEL)


def dearest(candidates: Iterable[tuple[Prices, str | None]], name: str) -> Prices:
    """What requests to any of these upstreams may cost at most, by the model that a client names: this one, or, where it is
    ANY_MODEL, any. Of each upstream its prices, and its own name for the model (None: the client's). Empty: none is set.
    """
    all_of_them = tuple(candidates)
    names = {name}
    if name == ANY_MODEL:
        names.update(*[prices for prices, own in all_of_them if own is None])
    found: dict[str, Price] = {}
    for model in names:
        priced = [price for prices, own in all_of_them if (price := price_of(prices, own or model)) is not None]
        if priced:
            inputs, outputs = zip(*[(price.dearest_input, price.output_per_mtok) for price in priced], strict=True)
            found[model] = Price(max(inputs), max(outputs))
    return found
