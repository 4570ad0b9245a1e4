"""`stayfast version`."""

import argparse
import sys

from stayfast import __version__


def run(arguments: argparse.Namespace) -> int:
    """Print the version."""
    sys.stdout.write(f"stayfast {__version__}\n")
    return 0
