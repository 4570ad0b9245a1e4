"""`stayfast dashboard`: the board for Grafana, to be imported or provisioned."""

import argparse

from stayfast.cli.alerts import write
from stayfast.observe.grafana import text


def run(arguments: argparse.Namespace) -> int:
    """Print or write it."""
    return write(text(), arguments.out)
