"""`stayfast bench faults`: the same bad times for several gateways, one table."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from stayfast.cli import say
from stayfast.cli.bench_options import DEFAULT_TARGET, Misused, subjects
from stayfast.core.clock import SystemClock
from stayfast.core.units import said, seconds_in
from stayfast.lab.load.faults import SCENARIOS, Control, FaultsConfig, NoSimulator, Row, Scenario, Table, compare
from stayfast.settings import environment

EXIT_BAD = 1
EXIT_INTERRUPTED = 130


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    """The options of `stayfast bench faults`."""
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("--target", action="append", metavar="[NAME=]URL",
                        help=f"base URL of a gateway in front of the simulator; again for more (default: {DEFAULT_TARGET})")
    parser.add_argument("--simulator", metavar="URL", default="http://127.0.0.1:8100",
                        help="where `stayfast sim` listens (default: %(default)s)")
    parser.add_argument("--simulator-key-env", metavar="VAR", help="the environment variable with the simulator's key")
    parser.add_argument("--model", action="append", metavar="[NAME=]MODEL", help="what to ask for")
    parser.add_argument("--key-env", action="append", metavar="[NAME=]VAR", help="the environment variable with the API key")
    parser.add_argument("--only", metavar="NAMES", help=f"of {names} (default: all)")
    parser.add_argument("--rate", metavar="R", default="20", help="requests a second (default: %(default)s)")
    parser.add_argument("--duration", metavar="TIME", default="30s", help="measured part of each run (default: %(default)s)")
    parser.add_argument("--warmup", metavar="TIME", default="10s", help="before it, with the faults (default: %(default)s)")
    parser.add_argument("--timeout", metavar="TIME", default="30s", help="from the intended start (default: %(default)s)")
    parser.add_argument("--seed", metavar="N", default="0", help="same seed, same requests (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(dialect=None, header=[], body=None, whole=False, allow_empty=False, ca_file=None, insecure=False)


def run_faults(given: argparse.Namespace, ready: Callable[[], None]) -> int:
    """Carry it out; returns the exit status. `ready` is called before the first socket. Raises Misused."""
    variables = environment()
    key, clock = None, SystemClock()
    if given.simulator_key_env is not None and not (key := variables.get(given.simulator_key_env)):
        raise Misused(f"the environment variable {given.simulator_key_env} of --simulator-key-env is not set")
    try:
        config = FaultsConfig(given.simulator, float(given.rate), seconds_in(given.duration), seconds_in(given.warmup),
                              seconds_in(given.timeout), int(given.seed))
        targets = subjects(given, variables)
        control = Control(given.simulator, clock, key)
    except ValueError as why:
        raise Misused(str(why)) from None
    if given.json is not None and not Path(given.json).absolute().parent.is_dir():
        raise Misused(f"{given.json} cannot be written: its folder does not exist")
    scenarios = _chosen(given.only)
    tell: Callable[[str], None] = (lambda _: None) if given.quiet else say
    tell(f"all of it takes {_about(config.about_s(scenarios, len(targets)))}")
    ready()
    shown = Table(scenarios, [subject.name for subject, _ in targets])
    rows: list[Row] = []
    status = 0

    def show(row: Row) -> None:
        sys.stdout.write(shown.head() * (not rows) + shown.row(row))
        sys.stdout.flush()
        rows.append(row)

    try:
        uvloop.run(compare(config, scenarios, targets, control, clock, say=tell, on_row=show))
    except NoSimulator as why:
        say(f"stayfast bench: {why}")
        status = EXIT_BAD
    except KeyboardInterrupt:
        say("stayfast bench: interrupted")
        status = EXIT_INTERRUPTED
    sys.stdout.write(shown.foot(rows) * bool(rows))
    if given.json is not None and rows:
        _write(given.json, rows)
    return status or (EXIT_BAD if any(row.invalid for row in rows) else 0)


def _about(seconds: float) -> str:
    return f"about {said(round(seconds / 60) * 60 if seconds >= 120 else round(seconds))}"


def _chosen(only: str | None) -> tuple[Scenario, ...]:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    names = list(by_name) if only is None else only.split(",")
    for name in names:
        if name not in by_name:
            raise Misused(f"--only {name}: there are {', '.join(by_name)}")
    return tuple(by_name[name] for name in names)


def _write(path: str, rows: list[Row]) -> None:
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode({"rows": rows}), indent=1) + b"\n")
    except OSError as why:
        raise Misused(f"{path} cannot be written: {why.strerror}") from None
