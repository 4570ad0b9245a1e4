"""`stayfast cache ACTION`: each action is a module, imported only when it is asked for."""

import argparse
from importlib import import_module

from stayfast.cli import say
from stayfast.stores.embedder import HOW_TO


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    try:
        action = import_module(f"stayfast.cli.cache_{arguments.action}")
    except ModuleNotFoundError as missing:
        say(f"stayfast cache {arguments.action}: there is no {missing.name} here; {HOW_TO}")
        return 1
    status: int = action.run(arguments)
    return status
