"""Commands that write or print a file, without a gateway: init, schema, key, alerts, dashboard."""

import argparse
import json
import secrets
import sys
from importlib.resources import files
from pathlib import Path

from stayfast.cli import print_message
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.alerts.files import prometheus, sloth
from stayfast.server.auth import new_key
from stayfast.server.config import ServerConfig
from stayfast.settings import SettingsError, environment, find, load, overrides, why_not_embedded
from stayfast.settings.schema import json_schema, markdown
from stayfast.settings.starter import starter

_N_KEY_BYTES = 32


def write_starter(arguments: argparse.Namespace) -> int:
    """Write the file; an existing one is overwritten only with --force."""
    path = Path(arguments.file)
    text = starter(is_embedded=why_not_embedded() is None)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print_message(f"stayfast init: {path} exists; --force overwrites it")
        return 1
    except OSError as error:
        print_message(f"stayfast init: {path} cannot be written: {error.strerror}")
        return 1
    print_message(f"wrote {path}; next:\n  stayfast check {path} && stayfast serve --config {path}")
    return 0


def print_schema(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema (draft 2020-12), or the reference page."""
    sys.stdout.write(markdown(KINDS) if arguments.markdown else json.dumps(json_schema(KINDS), indent=2) + "\n")
    return 0


def make_key(arguments: argparse.Namespace) -> int:
    """Print the key and its line for `server.keys`."""
    key, digest = new_key(secrets.token_bytes(_N_KEY_BYTES))
    try:
        ServerConfig(keys={arguments.name: digest})
    except ValueError as error:
        print_message(f"stayfast key: {error}")
        return 2
    sys.stdout.write(f"{key}\n")
    print_message("^ the key: give it to the client; it is not shown again. For the settings file:")
    sys.stdout.write(f"server:\n  keys:\n    {arguments.name}: {digest}\n")
    return 0


def print_alerts(arguments: argparse.Namespace) -> int:
    """Print or write rules for Prometheus, or a specification for sloth, from the SLOs and thresholds in the settings."""
    variables = environment()
    try:
        settings = load(find(arguments.config, variables), variables, overrides(variables), kinds=KINDS)
    except SettingsError as error:
        print_message(str(error))
        return 1
    slos = {name: route.slo for name, route in settings.routes.items()}
    return _write((sloth if arguments.format == "sloth" else prometheus)(slos, settings.alerts), arguments.out)


def print_dashboard(arguments: argparse.Namespace) -> int:
    return _write(files("stayfast.observe").joinpath("grafana.json").read_text(encoding="utf-8"), arguments.out)


def _write(text: str, path: str | None) -> int:
    """To a file if one is named, else to standard output."""
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        print_message(f"stayfast: {path} cannot be written: {error.strerror}")
        return 1
    return 0
