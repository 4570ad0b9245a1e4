"""`stayfast key`: a key for a client, shown once, and the digest that the settings keep."""

import argparse
import secrets
import sys

from stayfast.cli import say
from stayfast.server.auth import new_key
from stayfast.server.config import ServerConfig

_N_BYTES = 32


def run(arguments: argparse.Namespace) -> int:
    """Print the key and its line for `server.keys`."""
    key, digest = new_key(secrets.token_bytes(_N_BYTES))
    try:
        ServerConfig(keys={arguments.name: digest})
    except ValueError as error:
        say(f"stayfast key: {error}")
        return 2
    sys.stdout.write(f"{key}\n")
    say("^ the key: give it to the client; it is not shown again. For the settings file:")
    sys.stdout.write(f"server:\n  keys:\n    {arguments.name}: {digest}\n")
    return 0
