"""`stayfast cache stats`: what the caches of a running gateway hold and saved, by route and kind."""

import argparse
import sys
from typing import Any

import msgspec

from stayfast.cli import say
from stayfast.cli.admin_client import Unreachable, error_message, send

NOTHING = "-"
NO_COLUMN = ("coalesced", "stale", "bypass")
STATES = {
    "off": "off: there is nothing to embed with (`stayfast check` says what is missing)",
    "waiting": "waits for its embedder (the log says `semantic_off` where it does not load)",
    "shadow": "in shadow, gives nothing yet: {n} labels, and a tenant needs {least}, of right answers and of wrong ones, "
              "and a threshold that holds max_error",
    "live": "live by {n} labels",
    "fixed": "by a fixed threshold, whose error nobody bounds",
}
HEAD = ("ROUTE", "KIND", "HITS", "OF ASKED", "SAVED", "SAVED USD", "WRONG", "ANSWERS", "SIZE")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 1 where it is refused, 2 where the gateway cannot be asked."""
    try:
        status, body = send(arguments.url, "GET", "/admin/cache", key_env=arguments.key_env)
    except Unreachable as error:
        say(f"stayfast cache stats: {arguments.url} cannot be asked: {error}")
        return 2
    if status != 200:
        say(f"stayfast cache stats: {error_message(status, body)}")
        return 1
    sys.stdout.write(body.decode() + "\n" if arguments.json else table(msgspec.json.decode(body)["data"]))
    return 0


def table(routes: list[dict[str, Any]]) -> str:
    """One line for each route and kind."""
    if not routes:
        return "No route has a cache: routes.NAME.cache (docs/concepts/cache.md).\n"
    rows = [HEAD, *(row for route in routes for row in _rows(route))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]),
                        *(cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))]) for row in rows]
    return "\n".join(line.rstrip() for line in (*lines, *_notes(routes))) + "\n"


def _rows(route: dict[str, Any]) -> list[tuple[str, ...]]:
    store, error = route["store"], route["error"]
    rows: list[tuple[str, ...]] = []
    for kind, told in route["kinds"].items():
        if kind != "exact" and not told["hits"] and route.get("semantic") is None:
            continue
        wrong = f"{error['likely']:.2%} ({error['low']:.2%} to {error['high']:.2%})" if (
            kind == "semantic" and error is not None and {"likely", "low", "high"} <= error.keys()) else NOTHING
        size = _size(store["n_bytes"]) if kind == "exact" else ""
        n_answers = _or_nothing(store["n_entries"]) if kind == "exact" else ""
        rows.append((route["route"], kind, str(told["hits"]),
                     NOTHING if told["hit_ratio"] is None else f"{told['hit_ratio']:.1%}", _time(told["saved_s"]),
                     f"{told['saved_usd']:.4f}", wrong, n_answers, size))
    return rows


def _notes(routes: list[dict[str, Any]]) -> list[str]:
    """What is no column: shared calls, and stores that are gone."""
    notes = []
    for route in routes:
        requests = route["requests"]
        said = ", ".join(f"{requests[result]} {result}" for result in NO_COLUMN if requests.get(result))
        if said:
            notes.append(f"{route['route']}: {said}")
        if route.get("semantic") is not None:
            notes.append(f"{route['route']}: {_state(route['semantic'])}")
        if route["store"]["why_not"]:
            notes.append(f"{route['route']}: its store cannot be asked: {route['store']['why_not']}")
    return ["", *notes] if notes else []


def _state(semantic: dict[str, Any]) -> str:
    """How far a semantic cache has come."""
    audits, n, least = semantic["audits"], semantic["labels"], semantic["min_labels"]
    word = STATES[semantic["state"]].format(n=n, least=least)
    workers = ", ".join(f"{n} {state}" for state, n in semantic["workers"].items())
    several = f" (workers: {workers})" if len(semantic["workers"]) > 1 else ""
    return (f"semantic {word}{several}; {semantic['questions']} questions remembered; audits: {audits['right']} right, "
            f"{audits['wrong']} wrong, of {audits['begun']} begun")


def _or_nothing(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def _size(n_bytes: float | None) -> str:
    if n_bytes is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.0f} h"
