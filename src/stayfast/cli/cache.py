"""`stayfast cache`: contents and savings of a running gateway's caches, metadata of one answer, purge, and evaluation."""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from stayfast.cli import EXIT_NOTHING_TO_DO, print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.stores.embedder import INSTALL_HINT

_NOTHING = "-"
_NO_COLUMN = ("coalesced", "stale", "bypass")
_STATES = {
    "off": "off: no embedder (`stayfast check` names the missing package)",
    "waiting": "waiting for its embedder (log event `semantic_off` if it fails to load)",
    "shadow": "in shadow, no hits served yet: {n} labels; a tenant needs {least}, of right and wrong answers, and a "
              "threshold within max_error",
    "live": "live with {n} labels",
    "fixed": "with a fixed threshold, without an error bound",
}
_HEAD = ("ROUTE", "KIND", "HITS", "HIT RATIO", "SAVED", "SAVED USD", "WRONG", "ANSWERS", "SIZE")


def run(arguments: argparse.Namespace) -> int:
    """Run one action. Exit status 1: refused; 2: the gateway is unreachable."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {"stats": _print_stats, "inspect": _inspect, "purge": _purge,
                                                               "eval": _evaluate}
    try:
        return actions[arguments.action](arguments)
    except (GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast cache {arguments.action}: {error}")
        if isinstance(error, GatewayUnreachable):
            return 2
        return 1 if arguments.action != "inspect" or error.status == 404 else 2


def _evaluate(arguments: argparse.Namespace) -> int:
    try:
        cache_eval = import_module("stayfast.cli.cache_eval")  # imported on use: it needs the packages of an extra
    except ModuleNotFoundError as missing:
        print_message(f"stayfast cache eval: {missing.name} is not installed; {INSTALL_HINT}")
        return 1
    status: int = cache_eval.run(arguments)
    return status


def _print_stats(arguments: argparse.Namespace) -> int:
    body = send(arguments, "GET", "/admin/cache")
    sys.stdout.write(body.decode() + "\n" if arguments.json else format_stats(msgspec.json.decode(body)["data"]))
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    """Print the metadata of one answer. Exit status 1: no answer with this key; 2: no key given."""
    if not arguments.key:
        print_message("stayfast cache inspect: a key is required; `stayfast explain REQUEST-ID` prints it")
        return 2
    body = send(arguments, "GET", f"/admin/cache/{quote(arguments.key, safe='')}")
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return 0
    for name, value in msgspec.json.decode(body).items():
        if value is None or value == []:
            continue
        if name.endswith("_at") and isinstance(value, float):
            text = datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        elif isinstance(value, list):
            text = ", ".join(value)
        else:
            text = ", ".join(f"{n} {kind}" for kind, n in value.items() if n) if isinstance(value, dict) else str(value)
        sys.stdout.write(f"{name:14}{text}\n")
    return 0


def _purge(arguments: argparse.Namespace) -> int:
    """Delete answers and print their number. Exit status 1: refused, or a store was unreachable; 5: no such answer."""
    wanted = {name: value for name in ("route", "tenant", "tag") if (value := getattr(arguments, name)) is not None}
    if [bool(wanted), arguments.key is not None, arguments.all].count(True) != 1:
        print_message("stayfast cache purge: give --route, --tenant, --tag (all must match), or only --key, or only --all")
        return 2
    where = f"/{quote(arguments.key, safe='')}" if arguments.key is not None else f"?{urlencode(wanted or {'all': 'true'})}"
    try:
        body = send(arguments, "DELETE", f"/admin/cache{where}")
        purged = msgspec.json.decode(body)
        is_nothing = not purged["forgotten"] and not purged["gone"]
        unknown = _unknown_route(arguments) if is_nothing and arguments.route is not None else ""
    except msgspec.DecodeError as error:
        raise GatewayUnreachable(f"cannot reach {arguments.url}: {error}") from error
    n = purged["forgotten"]
    sys.stdout.write(body.decode() + "\n" if arguments.json else f"{n} answer{'s' if n != 1 else ''} deleted\n")
    for gone in purged["gone"]:
        print_message(f"stayfast cache purge: incomplete: {gone}")
    if is_nothing:
        print_message(f"stayfast cache purge: {unknown or _explain_no_match(arguments.key, wanted)}")
        return EXIT_NOTHING_TO_DO
    return 1 if purged["gone"] else 0


def _explain_no_match(key: str | None, wanted: dict[str, str]) -> str:
    if key is not None:
        return "no answer with this key"
    if not wanted:
        return "no stored answers"
    return f"no stored answer of {' and '.join(f'{name} {value}' for name, value in wanted.items())}"


def _unknown_route(arguments: argparse.Namespace) -> str:
    """The error if the route has no cache; empty if it has one or this is unknown."""
    try:
        known = [route["route"] for route in msgspec.json.decode(send(arguments, "GET", "/admin/cache"))["data"]]
    except AdminRequestFailed:
        return ""
    if arguments.route in known:
        return ""
    return f"no route {arguments.route} with a cache; routes with one: {', '.join(known) or 'none'}"


def format_stats(routes: list[dict[str, Any]]) -> str:
    """One line per route and kind."""
    if not routes:
        return "No route has a cache (set routes.NAME.cache; docs/concepts/cache.md).\n"
    rows = [_HEAD, *(row for route in routes for row in _rows(route))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]),
                        *(cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))]) for row in rows]
    return "\n".join(line.rstrip() for line in (*lines, *_notes(routes))) + "\n"


def _rows(route: dict[str, Any]) -> list[tuple[str, ...]]:
    store, error = route["store"], route["error"]
    rows: list[tuple[str, ...]] = []
    for kind, counts in route["kinds"].items():
        if kind != "exact" and not counts["hits"] and route.get("semantic") is None:
            continue
        wrong = f"{error['likely']:.2%} ({error['low']:.2%} to {error['high']:.2%})" if (
            kind == "semantic" and error is not None and {"likely", "low", "high"} <= error.keys()) else _NOTHING
        size = _format_size(store["n_bytes"]) if kind == "exact" else ""
        n_answers = store["n_entries"] if kind == "exact" else ""
        rows.append((route["route"], kind, str(counts["hits"]),
                     _NOTHING if counts["hit_ratio"] is None else f"{counts['hit_ratio']:.1%}",
                     _format_time(counts["saved_s"]),
                     f"{counts['saved_usd']:.4f}", wrong, _NOTHING if n_answers is None else str(n_answers), size))
    return rows


def _notes(routes: list[dict[str, Any]]) -> list[str]:
    """Lines below the table: other results, semantic state, unreachable stores."""
    notes = []
    for route in routes:
        requests = route["requests"]
        parts = ", ".join(f"{requests[result]} {result}" for result in _NO_COLUMN if requests.get(result))
        if parts:
            notes.append(f"{route['route']}: {parts}")
        if route.get("semantic") is not None:
            semantic, audits = route["semantic"], route["semantic"]["audits"]
            phase = _STATES[semantic["state"]].format(n=semantic["labels"], least=semantic["min_labels"])
            workers = ", ".join(f"{n} {state}" for state, n in semantic["workers"].items())
            several = f" (workers: {workers})" if len(semantic["workers"]) > 1 else ""
            notes.append(f"{route['route']}: semantic {phase}{several}; {semantic['questions']} questions remembered; "
                         f"audits: {audits['right']} right, {audits['wrong']} wrong, of {audits['begun']} started")
        if route["store"]["why_not"]:
            notes.append(f"{route['route']}: store unreachable: {route['store']['why_not']}")
    return ["", *notes] if notes else []


def _format_size(n_bytes: float | None) -> str:
    if n_bytes is None:
        return _NOTHING
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def _format_time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.0f} h"
