"""`stayfast check`: are the settings right, and if not, everything that is wrong with them."""

import argparse
import sys

from stayfast.cli import say
from stayfast.compose.caching import missing
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, environment, find, load, overrides, unusable


def run(arguments: argparse.Namespace) -> int:
    """Print `ok: ...` or the problems, one a line."""
    variables = environment()
    try:
        source = find(arguments.file, variables)
        settings = load(source, variables, overrides(variables), kinds=KINDS)
    except SettingsError as error:
        say(str(error))
        return 1
    if wrong := unusable(settings):
        say("\n".join(f"{source.name}: {one}" for one in wrong))
        return 1
    sys.stdout.write(summary(settings) + "\n")
    if why := missing(settings):
        say(why)
    return 0


def summary(settings: Settings) -> str:
    """ok: 2 upstreams, 3 routes."""
    return f"ok: {_counted(len(settings.upstreams), 'upstream')}, {_counted(len(settings.routes), 'route')}"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
