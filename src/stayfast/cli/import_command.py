"""`stayfast import litellm`: a settings file from another gateway's configuration."""

import argparse
import os
import sys
from pathlib import Path

from stayfast.cli import print_message
from stayfast.core.units import make_printable
from stayfast.settings import SettingsError, SettingsText, read_settings_file
from stayfast.settings.litellm_import.importer import ImportedFile, import_litellm
from stayfast.settings.litellm_import.ledger import ImportVerdict
from stayfast.settings.litellm_import.report import count_verdicts, format_lists, format_values, format_variables

EXIT_NOT_ALL_TAKEN = 2


def run(arguments: argparse.Namespace) -> int:
    """Import a file. Status 1: it cannot be read, or nothing of it can be served; 2: --strict, and not all was taken."""
    try:
        found = import_litellm(read_settings_file(arguments.file, {}), read_included)
    except SettingsError as error:
        print_message(str(error))
        return 1
    if arguments.report:
        _print(format_values(found.ledger))
    elif not _write(found, arguments):
        return 1
    if not found.n_routes:
        print_message(f"stayfast import: {arguments.file}: no model of it was taken: there is nothing to serve")
        return 1
    is_strict_failure = arguments.strict and count_verdicts(found.ledger)[ImportVerdict.NOT_TAKEN] > 0
    return EXIT_NOT_ALL_TAKEN if is_strict_failure else 0


def read_included(name: str, including: str) -> SettingsText:
    """An included file, relative to the one that names it. Raises SettingsError."""
    return read_settings_file(os.path.normpath(Path(including).parent / name), {})


def _write(found: ImportedFile, arguments: argparse.Namespace) -> bool:
    """Write the settings file and print the lists. Without --output the file is standard output."""
    lists = format_lists(found.ledger) + format_variables(found.text)
    if arguments.output is None:
        sys.stdout.write(found.text)
        sys.stderr.write(_printable(lists))
        return True
    path = Path(arguments.output)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(found.text)
    except FileExistsError:
        print_message(f"stayfast import: {path} exists; --force overwrites it")
        return False
    except OSError as error:
        print_message(f"stayfast import: {path} cannot be written: {error.strerror}")
        return False
    _print(lists)
    if found.n_routes:
        first = " set the variables above, then" if format_variables(found.text) else ""
        print_message(f"wrote {path}; next:{first}\n  stayfast check {path} && stayfast serve --config {path}")
    return True


def _print(text: str) -> None:
    sys.stdout.write(_printable(text))


def _printable(text: str) -> str:
    return "\n".join(make_printable(line) for line in text.split("\n"))
