"""F9: the command line. Each command is a module with `run(arguments) -> exit status`, imported only when asked for."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from stayfast import __version__

EXIT_STATUSES = """\
exit status:
  0    done; after `serve`: every answer got to its end
  1    `serve` had to cut answers off when it stopped; a check found something
  2    wrong usage
  3    the address to listen on is taken or not ours
  4    the workers cannot be started
  78   the settings are wrong
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    status: int = import_module(f"stayfast.cli.{parsed.command}").run(parsed)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stayfast", description="An LLM gateway that keeps applications fast at p99.",
        epilog=EXIT_STATUSES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"stayfast {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("--config", metavar="FILE", help="settings (default: $STAYFAST_CONFIG, ./stayfast.yaml, built-in)")
    serve.add_argument("--host", help="address to listen on")
    serve.add_argument("--port", help="TCP port; 0 takes a free one")
    serve.add_argument("--workers", metavar="N", help="processes that share the port")
    serve.add_argument("--model", metavar="PATH", help="a GGUF file for the embedded engine")
    serve.add_argument("--check", action="store_true", help="check the settings and exit")
    serve.add_argument("--worker", help=argparse.SUPPRESS)  # n/N: one of a parent's workers

    check = commands.add_parser("check", help="check a settings file")
    check.add_argument("file", nargs="?", help="settings (default: as for serve)")

    init = commands.add_parser("init", help="write a settings file to begin with")
    init.add_argument("file", nargs="?", default="stayfast.yaml", help="where (default: %(default)s)")
    init.add_argument("--force", action="store_true", help="overwrite the file if it exists")

    schema = commands.add_parser("schema", help="print the JSON Schema of the settings")
    schema.add_argument("--markdown", action="store_true", help="print the reference page instead")

    key = commands.add_parser("key", help="make an API key for a client")
    key.add_argument("name", nargs="?", default="my-app", help="the client's name (default: %(default)s)")

    commands.add_parser("version", help="print the version")
    return parser


def say(text: str) -> None:
    """A line for the person at the terminal; standard output belongs to logs and to what a command was asked for."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
