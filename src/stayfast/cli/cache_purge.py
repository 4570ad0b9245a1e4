"""`stayfast cache purge`: make a running gateway, with all its workers, forget kept answers."""

import argparse
import sys
from urllib.parse import quote, urlencode

import msgspec

from stayfast.cli import EXIT_NOTHING_TO_DO, say
from stayfast.cli.admin_client import Unreachable, error_message, send


def run(arguments: argparse.Namespace) -> int:
    """Do it, and say how many are gone; 1 where it is refused or a store could not be asked, 2 where the gateway cannot, 5
    where no answer is of what was said.
    """
    wanted = {name: value for name in ("route", "tenant", "tag") if (value := getattr(arguments, name)) is not None}
    if [bool(wanted), arguments.key is not None, arguments.all].count(True) != 1:
        say("stayfast cache purge: say what: --route, --tenant, --tag (all that is given must be true), or --key, alone, or "
            "--all, alone")
        return 2
    where = f"/{quote(arguments.key, safe='')}" if arguments.key is not None else f"?{urlencode(wanted or {'all': 'true'})}"
    try:
        status, body = send(arguments.url, "DELETE", f"/admin/cache{where}", key_env=arguments.key_env)
        told = msgspec.json.decode(body) if status == 200 else {}
        is_nothing = status == 200 and not told["forgotten"] and not told["gone"]
        unknown = _unknown_route(arguments) if is_nothing and arguments.route is not None else ""
    except (Unreachable, msgspec.DecodeError) as error:
        say(f"stayfast cache purge: {arguments.url} cannot be asked: {error}")
        return 2
    if status != 200:
        say(f"stayfast cache purge: {error_message(status, body)}")
        return 1
    n = told["forgotten"]
    sys.stdout.write(body.decode() + "\n" if arguments.json else f"{n} answer{'s are' if n != 1 else ' is'} forgotten\n")
    for gone in told["gone"]:
        say(f"stayfast cache purge: not all could be asked: {gone}")
    if is_nothing:
        say(f"stayfast cache purge: {unknown or _why_nothing(arguments.key, wanted)}")
        return EXIT_NOTHING_TO_DO
    return 1 if told["gone"] else 0


def _why_nothing(key: str | None, wanted: dict[str, str]) -> str:
    if key is not None:
        return "no answer is kept under this key (any more)"
    if not wanted:
        return "no answer is kept at all"
    return f"no kept answer is of {' and '.join(f'{name} {value}' for name, value in wanted.items())}"


def _unknown_route(arguments: argparse.Namespace) -> str:
    """What to say where the route has no cache; empty where it has, or nobody says so."""
    status, body = send(arguments.url, "GET", "/admin/cache", key_env=arguments.key_env)
    known = [route["route"] for route in msgspec.json.decode(body)["data"]] if status == 200 else [arguments.route]
    if arguments.route in known:
        return ""
    return f"no route {arguments.route} has a cache; those that have one: {', '.join(known) or 'none'}"
