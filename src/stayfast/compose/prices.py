"""Which prices the upstreams have, and how old list prices are."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime

from msgspec.structs import replace

from stayfast.compose.routes import models_requested
from stayfast.core.snapshot import UpstreamRow
from stayfast.policy.admission.price import price_of
from stayfast.settings import Settings
from stayfast.settings.price_table import OLD_DAYS, price_age_days


def list_price_age_days(settings: Settings, upstream: str, today: date) -> int | None:
    """The age of the oldest list price of the models that routes request from an upstream; None: none has one."""
    return price_age_days(settings.prices_for(upstream), models_requested(settings, upstream), today)


def with_price_ages(rows: Iterable[UpstreamRow], settings: Settings | None, wall_s: float) -> tuple[UpstreamRow, ...]:
    """The rows with the age of their list prices. wall_s: seconds since the epoch."""
    if settings is None:
        return tuple(rows)
    today = datetime.fromtimestamp(wall_s, UTC).date()
    ages = {name: list_price_age_days(settings, name, today) for name in settings.upstreams}
    return tuple(row if (days := ages.get(row.name)) is None
                 else replace(row, price_age_days=float(days), is_from_table=True) for row in rows)


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
