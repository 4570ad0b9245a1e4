"""GET /admin/spend: what requests cost, by day, tenant, key, route or model."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.keys import DAY_S, NANO, SpendRow
from stayfast.keys.service import keys_store_error
from stayfast.keys.spend import FLUSH_S
from stayfast.server.jobs.admin_keys import read_query
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.server.jobs.query import parse_whole
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.keys import KEEP_SPEND_DAYS, KeyStore

DEFAULT_DAYS = 30
GROUPS = {"day": "day", "tenant": "tenant", "key": "key_id", "route": "route", "model": "model"}
_PARAMETERS = ("by", "days", "tenant")


class SpendEndpoints:
    """The sums of the store. What ended in the last FLUSH_S may be missing."""

    def __init__(self, store: KeyStore, now: Callable[[], float]) -> None:
        """now: Unix seconds."""
        self._store = store
        self._now = now

    def endpoints(self) -> tuple[Endpoint, ...]:
        """For the server's table."""
        return (Endpoint("GET", "/admin/spend", self.read),)

    async def read(self, request: EndpointRequest) -> EndpointReply:
        """`by` (repeated by commas), `days` (with today, UTC), `tenant`."""
        request.require_admin()
        query = read_query(request, _PARAMETERS)
        by = tuple(query.get("by", "tenant").split(","))
        days = parse_whole(query, "days", DEFAULT_DAYS, KEEP_SPEND_DAYS)
        return EndpointReply(body=msgspec.json.encode(
            await sum_spend(self._store, by, days, query.get("tenant"), self._now())))


async def sum_spend(store: KeyStore, by: Sequence[str], days: int, tenant: str | None, now: float) -> dict[str, Any]:
    """The sums of the last days, with today, as JSON. Raises Rejected for an unknown group, Shed (503)."""
    for word in by:
        if word not in GROUPS:
            raise Rejected(f"by must be one or several of {', '.join(GROUPS)}, separated by commas.", param="by")
    by = list(dict.fromkeys(by))
    last_day = int(now // DAY_S)
    first_day = last_day - days + 1
    try:
        rows = await store.read_spend([GROUPS[word] for word in by], first_day, last_day, tenant)
        total = await store.read_spend((), first_day, last_day, tenant)
    except StoreUnavailable as error:
        raise keys_store_error(error) from None
    return {"object": "spend", "from": format_day(first_day), "to": format_day(last_day), "by": by,
            "data": [{word: _group_of(row, word) for word in by} | describe_counts(row) for row in rows],
            "total": describe_counts(total[0] if total else SpendRow(0)), "delay_s": FLUSH_S}


def _group_of(row: SpendRow, word: str) -> str:
    value = getattr(row, GROUPS[word])
    return format_day(value) if word == "day" else str(value)


def describe_counts(row: SpendRow) -> dict[str, Any]:
    """The sums of a row. usd: at most 15 digits; `nano_usd` is exact."""
    return {"requests": row.n_requests, "input_tokens": row.n_input, "cached_tokens": row.n_cached,
            "output_tokens": row.n_output, "usd": row.nano_usd / NANO, "usd_at_list_prices": row.nano_usd_list / NANO,
            "nano_usd": row.nano_usd, "unpriced_calls": row.n_unpriced}


def format_day(day: int) -> str:
    """2026-11-23."""
    return datetime.fromtimestamp(day * DAY_S, UTC).strftime("%Y-%m-%d")
