"""`stayfast alerts`: rules for Prometheus, or a specification for sloth, from the settings' promises and thresholds."""

import argparse
import sys
from pathlib import Path

from stayfast.cli import say
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.alerts.files import prometheus, sloth
from stayfast.settings import SettingsError, environment, find, load, overrides

_FORMATS = {"prometheus": prometheus, "sloth": sloth}


def run(arguments: argparse.Namespace) -> int:
    """Print or write the rules."""
    variables = environment()
    try:
        settings = load(find(arguments.config, variables), variables, overrides(variables), kinds=KINDS)
    except SettingsError as error:
        say(str(error))
        return 1
    slos = {name: route.slo for name, route in settings.routes.items()}
    return write(_FORMATS[arguments.format](slos, settings.alerts), arguments.out)


def write(text: str, path: str | None) -> int:
    """To a file if one is named, else to standard output."""
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        say(f"stayfast: {path} cannot be written: {error.strerror}")
        return 1
    return 0
