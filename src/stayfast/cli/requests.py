"""`stayfast requests`: the last or the slowest requests of a running gateway."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.cli.terminal import style_of_output
from stayfast.core.clock import SystemClock
from stayfast.core.units import format_seconds, make_printable, parse_duration
from stayfast.lab.report.table import TerminalStyle
from stayfast.observe.waterfall import RequestSummary

FILTERS = ("route", "upstream", "status", "outcome")
_BAD = frozenset(("failed", "degraded"))


class RequestListing(msgspec.Struct):
    """The gateway's answer; unknown fields are ignored."""

    data: list[RequestSummary]


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each request. Exit status 1: no request matches; 2: no gateway answers, or a wrong option."""
    try:
        body = list_requests(arguments)
    except (GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast requests: {error}")
        return 2
    except ValueError as error:
        print_message(f"stayfast requests: --since: {error}")
        return 2
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return 0
    found = msgspec.json.decode(body, type=RequestListing).data
    if not found:
        print_message("No request matches. The gateway remembers the last 1,000 requests (`recent.size`), and as many slow "
                      "or failed ones.")
        return 1
    sys.stdout.write(format_requests(found, style_of_output()))
    return 0


def list_requests(arguments: argparse.Namespace) -> bytes:
    """The gateway's listing as JSON. Raises GatewayUnreachable, AdminRequestFailed; ValueError for a wrong duration."""
    wanted = {"n": str(arguments.n), "which": arguments.which}
    wanted |= {name: value for name in FILTERS if (value := getattr(arguments, name, None)) is not None}
    if getattr(arguments, "since", None) is not None:
        wanted["since"] = f"{SystemClock().wall() - parse_duration(arguments.since):.3f}"
    return send(arguments, "GET", f"/admin/requests?{urlencode(wanted)}")


def format_requests(found: Sequence[RequestSummary], ink: TerminalStyle) -> str:
    """A table of 80 columns, if names and ids are not longer than usual; an id is never cut, as it is copied."""
    width = max(len(one.request_id) for one in found)
    lines = [ink.dim(f"{'ENDED':9}{'REQUEST':{width + 1}}{'ROUTE':9}{'RESULT':11}{'FIRST':>7}{'WHOLE':>8} CALLS")]
    for one in found:
        ended = datetime.fromtimestamp(one.ended_at, UTC).astimezone().strftime("%H:%M:%S")
        first = "-" if one.ttft_ms is None else format_seconds(one.ttft_ms / 1e3)
        result = one.cache if one.cache in ("hit", "semantic", "stale") else one.outcome
        result = f"{one.outcome} {one.status}" if one.status >= 400 else result
        route = make_printable(one.route or one.model or "-")
        line = (f"{ended:9}{make_printable(one.request_id):{width + 1}}{_cut(route, 8):9}{_cut(result, 10):11}"
                f"{first:>7}{format_seconds(one.ms / 1e3):>8} {_calls(one)}")
        lines.append(ink.red(line) if one.outcome in _BAD else line)
    lines.append(ink.dim("h: with a hedge. Where the time went: stayfast explain REQUEST"))
    return "\n".join([*lines, ""])


def _calls(one: RequestSummary) -> str:
    return f"{one.n_attempts}{'h' * one.is_hedged}"


def _cut(text: str, n: int) -> str:
    return text if len(text) <= n else f"{text[:n - 1]}~"
