"""Commands that print or write a file without a gateway: init, schema, key, alerts, dashboard."""

import argparse
import json
import secrets
import sys
from importlib.resources import files
from pathlib import Path

from stayfast.cli import print_message
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.alerts.files import prometheus_rules, sloth_specification
from stayfast.server.auth import new_key
from stayfast.server.config import ServerConfig
from stayfast.settings import (
    SettingsError,
    load_settings,
    overrides_from,
    read_environment,
    read_settings_file,
)
from stayfast.settings.schema import json_schema, reference_page
from stayfast.settings.starter import STARTER

_N_KEY_BYTES = 32


def write_starter(arguments: argparse.Namespace) -> int:
    """Write a starter settings file; overwrite an existing one only with --force."""
    path = Path(arguments.file)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(STARTER)
    except FileExistsError:
        print_message(f"stayfast init: {path} exists; --force overwrites it")
        return 1
    except OSError as error:
        print_message(f"stayfast init: {path} cannot be written: {error.strerror}")
        return 1
    print_message(f"wrote {path}. Put the addresses of your replicas and their model's name into it; then:\n"
                  f"  export OPENAI_API_KEY=...\n  stayfast check {path} && stayfast serve --config {path}")
    return 0


def print_schema(arguments: argparse.Namespace) -> int:
    """Print the settings as JSON Schema (draft 2020-12) or as the reference page."""
    sys.stdout.write(reference_page(KINDS) if arguments.markdown else json.dumps(json_schema(KINDS), indent=2) + "\n")
    return 0


def make_key(arguments: argparse.Namespace) -> int:
    """Print a new key and its line for `server.keys`."""
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
    """Print or write Prometheus rules, or a sloth specification, from the settings' SLOs and thresholds."""
    variables = read_environment()
    try:
        settings = load_settings(read_settings_file(arguments.config, variables), variables, overrides_from(variables),
                                 kinds=KINDS)
    except SettingsError as error:
        print_message(str(error))
        return 1
    slos = {name: route.slo for name, route in settings.routes.items()}
    return _write((sloth_specification if arguments.format == "sloth" else prometheus_rules)(slos, settings.alerts),
                  arguments.out)


def print_dashboard(arguments: argparse.Namespace) -> int:
    return _write(files("stayfast.observe").joinpath("grafana.json").read_text(encoding="utf-8"), arguments.out)


def _write(text: str, path: str | None) -> int:
    """Write to a file, or to standard output if `path` is None."""
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        print_message(f"stayfast: {path} cannot be written: {error.strerror}")
        return 1
    return 0
