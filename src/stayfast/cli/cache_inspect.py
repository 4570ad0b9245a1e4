"""`stayfast cache inspect KEY`: what a running gateway knows of one kept answer, but for its words."""

import argparse
import sys
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from stayfast.cli import say
from stayfast.cli.admin_client import Unreachable, error_message, send


def run(arguments: argparse.Namespace) -> int:
    """Print it; 1 where nothing is kept under the key, 2 where no key is said or the gateway cannot be asked."""
    if not arguments.key:
        say("stayfast cache inspect: say which: `stayfast explain REQUEST-ID` prints the key of its answer")
        return 2
    try:
        status, body = send(arguments.url, "GET", f"/admin/cache/{quote(arguments.key, safe='')}",
                              key_env=arguments.key_env)
    except Unreachable as error:
        say(f"stayfast cache inspect: {arguments.url} cannot be asked: {error}")
        return 2
    if status != 200:
        say(f"stayfast cache inspect: {error_message(status, body)}")
        return 1 if status == 404 else 2
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return 0
    for name, value in msgspec.json.decode(body).items():
        if value is None or value == []:
            continue
        sys.stdout.write(f"{name:14}{_said(name, value)}\n")
    return 0


def _said(name: str, value: object) -> str:
    if name.endswith("_at") and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if isinstance(value, list):
        return ", ".join(value)
    return ", ".join(f"{n} {kind}" for kind, n in value.items() if n) if isinstance(value, dict) else str(value)
