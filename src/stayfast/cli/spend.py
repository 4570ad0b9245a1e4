"""`stayfast spend`: what requests cost, from a running gateway or its store."""

import argparse
import math
import sys
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.cli.jobs import format_table
from stayfast.cli.store_access import use_store
from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.keys import DAY_S
from stayfast.core.units import format_count, parse_duration
from stayfast.server.jobs.admin_spend import sum_spend
from stayfast.settings import SettingsError
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.keys import KEEP_SPEND_DAYS, KeyStore

_COUNTS = ("REQUESTS", "INPUT", "CACHED", "OUTPUT", "USD", "AT LIST PRICES", "UNPRICED CALLS")


def run(arguments: argparse.Namespace) -> int:
    """Print the sums. Exit status 1: refused; 2: wrong usage, or neither the gateway nor the store can be reached."""
    try:
        body = _read(arguments)
    except (AdminRequestFailed, StayfastError) as error:
        print_message(f"stayfast spend: {error}")
        return 1
    except (GatewayUnreachable, StoreUnavailable, SettingsError, ValueError) as error:
        print_message(f"stayfast spend: {error}")
        return 2
    sys.stdout.write(body.decode() + "\n" if arguments.json else format_spend(msgspec.json.decode(body)))
    return 0


def _read(arguments: argparse.Namespace) -> bytes:
    days = max(1, math.ceil(parse_duration(arguments.since) / DAY_S))
    if days > KEEP_SPEND_DAYS:
        raise ValueError(f"--since may be {KEEP_SPEND_DAYS}d at most: older sums are not stored")
    if not arguments.store:
        query = {"by": arguments.by, "days": str(days)} | ({"tenant": arguments.tenant} if arguments.tenant else {})
        return send(arguments, "GET", f"/admin/spend?{urlencode(query)}")

    async def read(store: JobStore) -> dict[str, Any]:
        keys, now = cast("KeyStore", store), SystemClock().wall()
        return await sum_spend(keys, arguments.by.split(","), days, arguments.tenant, now)

    return msgspec.json.encode(use_store(arguments, read))


def format_spend(spend: dict[str, Any]) -> str:
    """A table, the highest cost first, and a line for the sum."""
    groups: list[str] = spend["by"]
    if not spend["data"]:
        return (f"No requests from {spend['from']} to {spend['to']}. Sums are stored where the store of jobs exists "
                "(setting spend).\n")
    rows = [tuple(row[group] or "-" for group in groups) + _format_counts(row) for row in spend["data"]]
    total = ("total", *("" for _ in groups[1:]), *_format_counts(spend["total"]))
    table = format_table([(*(group.upper() for group in groups), *_COUNTS), *rows, total])
    return f"{table}From {spend['from']} to {spend['to']}, days in UTC; the last {spend['delay_s']:g} s may be missing.\n"


def _format_counts(row: dict[str, Any]) -> tuple[str, ...]:
    return (format_count(row["requests"]), format_count(row["input_tokens"]), format_count(row["cached_tokens"]),
            format_count(row["output_tokens"]), f"{row['usd']:.4f}", f"{row['usd_at_list_prices']:.4f}",
            format_count(row["unpriced_calls"]))
