"""`stayfast cache purge`: make a running gateway, with all its workers, forget kept answers."""

import argparse
import sys
from http.client import HTTPException
from urllib.parse import urlencode

import msgspec

from stayfast.cli import say
from stayfast.cli.asked import ask, reason


def run(arguments: argparse.Namespace) -> int:
    """Do it, and say how many are gone; 1 where it is refused or a store could not be asked, 2 where the gateway cannot."""
    wanted = {name: value for name in ("route", "tenant", "tag") if (value := getattr(arguments, name)) is not None}
    if bool(wanted) is arguments.all:
        say("stayfast cache purge: say what: --route, --tenant, --tag (all that is given must be true), or --all, alone")
        return 2
    query = urlencode(wanted or {"all": "true"})
    try:
        status, body, _ = ask(arguments.url, "DELETE", f"/admin/cache?{query}", key_env=arguments.key_env)
    except (OSError, HTTPException, ValueError) as error:
        say(f"stayfast cache purge: {arguments.url} cannot be asked: {error}")
        return 2
    if status != 200:
        say(f"stayfast cache purge: {reason(status, body)}")
        return 1
    told = msgspec.json.decode(body)
    n = told["forgotten"]
    sys.stdout.write(body.decode() + "\n" if arguments.json else f"{n} answer{'s are' if n != 1 else ' is'} forgotten\n")
    for gone in told["gone"]:
        say(f"stayfast cache purge: not all could be asked: {gone}")
    return 1 if told["gone"] else 0
