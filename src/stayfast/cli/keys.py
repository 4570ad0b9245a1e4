"""`stayfast key`: `key NAME` prints a key for the settings file; `key create` and its like work on stored keys, at a running
gateway or (`--store`) in the store of the settings.

The words of ACTIONS cannot be the NAME of `key NAME`.
"""

import argparse
import getpass
import sys
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote, urlencode

import msgspec

from stayfast.cli import Command, add_gateway_options, print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.cli.files import make_key
from stayfast.cli.jobs import format_age, format_instant, format_table
from stayfast.cli.store_access import use_store
from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fanout
from stayfast.core.units import parse_duration
from stayfast.keys.service import DEFAULT_GRACE_S, KeyService, NewKey
from stayfast.policy.keys.quota_text import format_quota, parse_quota
from stayfast.policy.keys.scopes import FORM, normalize_scopes
from stayfast.server.config import is_tenant_name
from stayfast.server.jobs.admin_keys import describe_key
from stayfast.settings import SettingsError
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.keys import KeyStore

ACTIONS = ("create", "list", "show", "rotate", "revoke")
_HEAD = ("KEY", "TENANT", "NAME", "STATE", "SCOPES", "QUOTA", "EXPIRES", "LAST USED")
_ABOUT = "Stored keys: stayfast key create|list|show|rotate|revoke --help. They work at once, without a reload."


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after `stayfast key`."""
    if not words or words[0] not in ACTIONS:
        static = Command(prog="stayfast key", description="Make an API key for the settings file (server.keys).",
                         epilog=_ABOUT)
        static.add_argument("name", nargs="?", default="my-app", help="the client's name (default: %(default)s)")
        static.set_defaults(action="static")
        return static.parse_args(words)
    parser = Command(prog="stayfast key", description="Work on stored keys.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key, and show it once")
    create.add_argument("--tenant", required=True, help="whose requests it sends")
    create.add_argument("--name", default="default", help="unique among the tenant's keys (default: %(default)s)")
    create.add_argument("--scope", action="append", default=[], metavar="SCOPE",
                        help=f"{FORM}; may be repeated (default: routes:*)")
    create.add_argument("--quota", action="append", default=[], metavar="LIMITS", help="like `requests: 100/min`; may be "
                        "repeated; counts in addition to the tenant's")
    create.add_argument("--expires", metavar="TIME", help="like 90d (default: never)")
    listing = actions.add_parser("list", help="show the keys")
    listing.add_argument("--tenant", help="of one tenant")
    listing.add_argument("--after", metavar="ID", help="those after this one")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="most so many (default: %(default)s)")
    show = actions.add_parser("show", help="show one key")
    rotate = actions.add_parser("rotate", help="make a new key under the same id, and show it once")
    rotate.add_argument("--grace", default=f"{DEFAULT_GRACE_S:.0f}s", metavar="TIME",
                        help="how long the key before stays valid, like 1h or 0s (default: 1d)")
    revoke = actions.add_parser("revoke", help="end a key at once")
    for action in (show, rotate, revoke):
        action.add_argument("id", metavar="ID", help="as `key list` shows it")
    for action in (create, listing, show, rotate, revoke):
        add_gateway_options(action)
        action.add_argument("--store", action="store_true", help="work on the store of the settings, without a gateway")
        action.add_argument("--config", metavar="FILE", help="settings for --store (default: as for serve)")
    return parser.parse_args(words)


def run(arguments: argparse.Namespace) -> int:
    """Run one action. Exit status 1: refused or unknown; 2: wrong usage, or neither the gateway nor the store can be
    reached.
    """
    if arguments.action == "static":
        return make_key(arguments)
    try:
        result = _act_on_store(arguments) if arguments.store else _act_on_gateway(arguments)
    except (AdminRequestFailed, StayfastError) as error:
        print_message(f"stayfast key {arguments.action}: {error}")
        return 1
    except (GatewayUnreachable, StoreUnavailable, SettingsError, ValueError) as error:
        print_message(f"stayfast key {arguments.action}: {error}")
        return 2
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _print(arguments, result)
    return 0


def _act_on_gateway(arguments: argparse.Namespace) -> dict[str, Any]:
    """The gateway's answer. Raises GatewayUnreachable, AdminRequestFailed, ValueError."""
    if arguments.action == "list":
        wanted = {"tenant": arguments.tenant, "after": arguments.after, "limit": str(arguments.limit)}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        body = send(arguments, "GET", f"/admin/keys?{query}")
    elif arguments.action == "create":
        body = send(arguments, "POST", "/admin/keys", msgspec.json.encode(_read_new(arguments)))
    else:
        path = f"/admin/keys/{quote(arguments.id, safe='')}"
        if arguments.action == "rotate":
            grace = msgspec.json.encode({"grace_s": parse_duration(arguments.grace)})
            body = send(arguments, "POST", f"{path}/rotate", grace)
        else:
            body = send(arguments, "GET" if arguments.action == "show" else "DELETE", path)
    answer: dict[str, Any] = msgspec.json.decode(body)
    return answer


def _act_on_store(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same, without a gateway. Raises StoreUnavailable, SettingsError, StayfastError, ValueError."""
    now, actor = SystemClock().wall(), f"cli:{getpass.getuser()}"

    async def act(store: JobStore) -> dict[str, Any]:
        service = KeyService(store, cast("KeyStore", store), SystemClock(), Fanout(), is_tenant_name)
        match arguments.action:
            case "list":
                keys = await service.list(arguments.tenant, arguments.after, arguments.limit + 1)
                return {"object": "list", "data": [describe_key(key, now) for key in keys[:arguments.limit]],
                        "has_more": len(keys) > arguments.limit}
            case "create":
                stored, secret = await service.create(_read_new(arguments), actor)
                return describe_key(stored, now) | {"key": secret}
            case "rotate":
                stored, secret = await service.rotate(arguments.id, parse_duration(arguments.grace), actor)
                return describe_key(stored, now) | {"key": secret}
            case "revoke":
                return describe_key(await service.revoke(arguments.id, actor), now)
            case _:
                return describe_key(await service.find(arguments.id), now)

    return use_store(arguments, act)


def _read_new(arguments: argparse.Namespace) -> NewKey:
    """Raises ValueError."""
    expires_in_s = parse_duration(arguments.expires) if arguments.expires else None
    return NewKey(arguments.tenant, arguments.name, list(normalize_scopes(arguments.scope)),
                  parse_quota(arguments.quota) if arguments.quota else {}, expires_in_s)


def _print(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    now = SystemClock().wall()
    if arguments.action == "list":
        sys.stdout.write(format_keys(result, now))
    elif "key" in result:
        sys.stdout.write(f"{result['key']}\n")
        print_message(f"^ the key: give it to the client; it is not shown again. Its id: {result['id']}")
        if result["old_key_until"] is not None:
            print_message(f"The key before is valid until {format_instant(result['old_key_until'], now)}.")
    elif arguments.action == "revoke":
        sys.stdout.write(f"{result['id']} is {result['state']}\n")
    else:
        sys.stdout.write(format_key(result, now))


def format_keys(listing: dict[str, Any], now: float) -> str:
    """A table of keys."""
    if not listing["data"]:
        return "No keys.\n"
    rows = [(key["id"], key["tenant"], key["name"], key["state"], " ".join(key["scopes"]), format_quota(key["quota"]) or "-",
             "-" if key["expires_at"] is None else format_instant(key["expires_at"], now),
             format_age(key["last_used_at"], now))
            for key in listing["data"]]
    more = f"More: --after {listing['data'][-1]['id']}\n" if listing["has_more"] else ""
    return format_table([_HEAD, *rows]) + more


def format_key(key: dict[str, Any], now: float) -> str:
    """One key, a line for each field that has a value."""
    lines = []
    for name, value in key.items():
        if value in (None, "", [], {}) or name == "object":
            continue
        text = str(value)
        if name.endswith(("_at", "_until")):
            text = format_instant(value, now)
        elif name == "quota":
            text = format_quota(value)
        elif name == "scopes":
            text = " ".join(value)
        lines.append(f"{name:14}{text}\n")
    return "".join(lines)
