"""`stayfast classify`: the actions, or how to install what they need."""

import argparse
from importlib import import_module

from stayfast.cli import print_message
from stayfast.stores.embedder import STATIC_INSTALL_HINT


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 unreadable file or no embedder, 2 wrong options."""
    try:
        status: int = import_module("stayfast.cli.classify_files").run(arguments)
    except ModuleNotFoundError as missing:
        print_message(f"stayfast classify {arguments.action}: {missing.name} is not installed; {STATIC_INSTALL_HINT}")
        return 1
    return status
