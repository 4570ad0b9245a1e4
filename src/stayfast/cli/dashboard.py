"""`stayfast dashboard`: the board for Grafana, to be imported or provisioned."""

import argparse
from importlib.resources import files

from stayfast.cli.alerts import write


def run(arguments: argparse.Namespace) -> int:
    """Print or write it."""
    return write(files("stayfast.observe").joinpath("grafana.json").read_text(encoding="utf-8"), arguments.out)
