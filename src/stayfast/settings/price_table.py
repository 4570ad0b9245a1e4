"""The table of list prices (price_table.json): for upstreams at a provider's own address whose settings have no prices.

A row is found by the provider, which the address names (providers.json: addresses with plain list prices; regional ones of
OpenAI and Vertex cost more), and the exact name of the model: another name has no price, as a deployment of Azure. Each
provider's rows have the address of its price list and the day on which they were compared; scripts/price_table.py writes
them anew.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from stayfast.policy.admission.price import ListPrice, LongPrompt, Prices
from stayfast.settings.providers import find_price_list

OLD_DAYS = 90  # prices this old are reported by `stayfast check`
_ALIAS_PREFIXES: Final = {"google": "models/", "vertex": "google/"}  # of the providers' OpenAI-compatible endpoints


class PriceList(msgspec.Struct, frozen=True):
    """The rows of one provider. source: its price list; checked: when both packages agreed on these rows."""

    source: str
    checked: date
    models: dict[str, dict[str, Any]]


class PriceTable(msgspec.Struct, frozen=True):
    """compared: the packages, with their versions, that agree on every row."""

    compared: dict[str, str]
    providers: dict[str, PriceList]


@cache
def read_price_table() -> PriceTable:
    return msgspec.json.decode(files("stayfast.settings").joinpath("price_table.json").read_bytes(), type=PriceTable)


@cache
def list_prices(provider: str) -> Prices:
    """The prices of one provider by model, aliases included."""
    listed = read_price_table().providers[provider]
    rows = {name: _to_price(row, listed.checked) for name, row in listed.models.items()}
    prefix = _ALIAS_PREFIXES.get(provider)
    if prefix is not None:
        rows.update({prefix + name: price for name, price in rows.items()})
    return MappingProxyType(rows)


def list_prices_at(base_url: str) -> Prices:
    """The list prices at an upstream's address; empty for one that is not a provider's own."""
    provider = find_price_list(urlsplit(base_url).hostname or "")
    return list_prices(provider) if provider is not None else {}


def find_row(row: str) -> ListPrice | None:
    """The price of a row such as azure/o3; None if there is none."""
    provider, _, model = row.partition("/")
    found = list_prices(provider).get(model) if provider in read_price_table().providers else None
    return found if isinstance(found, ListPrice) else None


def all_rows() -> Iterable[str]:
    """All names of rows."""
    return (f"{provider}/{model}" for provider, listed in read_price_table().providers.items() for model in listed.models)


def merge_prices(own: Prices, base_url: str, *, uses_table: bool) -> Prices:
    """The prices of an upstream. Own prices take precedence; one of all models ("*") replaces the table. A price that names
    a row has that row's figures.
    """
    named = {model: (find_row(price.table) or price) if price.table else price for model, price in own.items()}
    listed: Mapping[str, Any] = list_prices_at(base_url) if uses_table and "*" not in own else {}
    return {**listed, **named}


def price_age_days(prices: Prices, models: Iterable[str], today: date) -> int | None:
    """The age of the oldest list price that these models of an upstream have; None: none has one."""
    found = (prices.get(model) for model in models)
    ages = [today.toordinal() - price.checked for price in found if isinstance(price, ListPrice)]
    return max(ages, default=None)


def _to_price(row: dict[str, Any], checked: date) -> ListPrice:
    figures = dict(row)
    long = figures.pop("long_prompt", None)
    return ListPrice(**figures, long_prompt=LongPrompt(**long) if long is not None else None, checked=checked.toordinal())
