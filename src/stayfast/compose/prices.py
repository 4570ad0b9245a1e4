"""Which prices the upstreams have, and how old list prices are."""

from collections.abc import Iterator
from datetime import date

from stayfast.compose.routes import models_requested
from stayfast.policy.admission.price import price_of
from stayfast.settings import Settings
from stayfast.settings.price_table import OLD_DAYS, price_age_days


def list_price_age_days(settings: Settings, upstream: str, today: date) -> int | None:
    """The age of the oldest list price of the models that routes request from an upstream; None: none has one."""
    return price_age_days(settings.prices_for(upstream), models_requested(settings, upstream), today)


def price_lines(settings: Settings, today: date) -> Iterator[str]:
    """Readable lines for `stayfast check`: models with list prices, old ones, and models without a price."""
    for upstream in settings.upstreams:
        prices = settings.prices_for(upstream)
        models = list(dict.fromkeys(models_requested(settings, upstream)))
        listed = [model for model in models if price_age_days(prices, [model], today) is not None]
        if listed:
            days = price_age_days(prices, listed, today)
            age = f"{days} days old" + (": check them, or set `prices`" if days is not None and days > OLD_DAYS else "")
            yield f"upstream {upstream}: list prices for {', '.join(listed)}, {age}"
        unpriced = [model for model in models if prices and price_of(prices, model) is None]
        if unpriced:
            yield f"upstream {upstream}: no price for {', '.join(unpriced)}; its costs are unpriced"
