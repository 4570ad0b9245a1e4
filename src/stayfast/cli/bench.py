"""`stayfast bench`: load, a report, and whether the figures can be trusted; `bench faults`: the same bad times for several
gateways, one table.
"""

import argparse
import os
import platform
import resource
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from random import Random

import msgspec
import uvloop

from stayfast import __version__
from stayfast.cli import Command, print_message
from stayfast.cli.bench_options import DEFAULT_TARGET, RUN_EXAMPLES, Misused, add_run_options, job_of, subjects
from stayfast.cli.bench_session import Session, SocketSession, VirtualSession
from stayfast.cli.terminal import ProgressLine, ink_of_output, time_left
from stayfast.core.clock import SystemClock
from stayfast.core.units import seconds_in
from stayfast.lab.load import faults, selftest
from stayfast.lab.load.faults import SCENARIOS, FaultRow, FaultsConfig, FaultTable, NoSimulator, Scenario, SimulatorControl
from stayfast.lab.load.measure import LoadOrigin
from stayfast.lab.load.stats import Measured
from stayfast.lab.load.sweep import as_text
from stayfast.lab.report import files, table
from stayfast.lab.report.assertions import Checked, check
from stayfast.lab.report.compare import CompareConfig, Comparison, compare
from stayfast.lab.report.html.page import page
from stayfast.lab.report.table import Ink
from stayfast.settings import environment

EXIT_BAD = 1
EXIT_MISUSED = 2
EXIT_SIGNAL = 128  # and the signal's number, as a shell says it
COMMANDS = ("run", "compare", "report", "faults", "selftest")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options after `stayfast bench`; without a command they are those of `run`."""
    words = list(words)
    if not words or (words[0] not in COMMANDS and words[0] not in ("-h", "--help")):
        words.insert(0, "run")
    given = _parser().parse_args(words)
    given.words = words
    return given


def run(arguments: argparse.Namespace) -> int:
    """Carry out what was parsed; returns the exit status."""
    command: Callable[[argparse.Namespace], int] = arguments.perform
    try:
        return command(arguments)
    except Misused as why:
        print_message(f"stayfast bench: {why}")
        return EXIT_MISUSED


def _parser() -> argparse.ArgumentParser:
    parser = Command(prog="stayfast bench", epilog=RUN_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Measure a gateway or a provider under load.\n`stayfast bench run --help` has the options.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="measure (may be left out: `stayfast bench --rate ...`)", epilog=RUN_EXAMPLES,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(running)
    running.set_defaults(perform=_run)
    comparing = commands.add_parser("compare", help="set a result against another; exit 1 where it is worse")
    comparing.add_argument("files", nargs="*", metavar="FILE[:LABEL]", help="two results of --json, or one with both")
    comparing.add_argument("--threshold", default="0.05", metavar="SHARE", help="a change must exceed it (default: 0.05)")
    comparing.add_argument("--level", default="0.95", metavar="SHARE", help="of the intervals (default: 0.95)")
    comparing.add_argument("--seed", default="0", metavar="N", help="same seed, same intervals (default: 0)")
    comparing.add_argument("--html", metavar="FILE", help="write a report with both")
    comparing.set_defaults(perform=_compare)
    again = commands.add_parser("report", help="show results of --json again")
    again.add_argument("files", nargs="*", metavar="FILE[:LABEL]")
    again.add_argument("--html", metavar="FILE", help="write a report that needs no network")
    again.add_argument("--csv", metavar="FILE", help="write a row a request")
    again.set_defaults(perform=_report)
    add_fault_options(commands.add_parser("faults", help="bad times of upstreams, the same for several gateways"))
    testing = commands.add_parser("selftest", help="how wrong this instrument is, on this machine, now")
    testing.add_argument("--rate", default="200", metavar="R", help="requests a second (default: 200)")
    testing.add_argument("--duration", default="3", metavar="SECONDS", help="(default: 3)")
    testing.set_defaults(perform=_selftest)
    return parser


def _run(given: argparse.Namespace) -> int:
    variables = environment()
    job = job_of(given, variables)
    for assertion in job.assertions:
        if assertion.is_doubtful:
            print_message(f"--assert {assertion.text}: read as {assertion.bound:g} seconds; write ms for milliseconds")
    ink = ink_of_output()
    origin = LoadOrigin(command_line(given.words), machine())
    session: Session
    if given.virtual:
        session = VirtualSession(job, given.config, origin, is_quiet=given.quiet)
        session.perform()
    else:
        allow_sockets()
        session = SocketSession(job, origin, is_quiet=given.quiet)
        uvloop.run(session.perform())
    runs = [Measured(result) for result in session.results]
    sys.stdout.write(table.report(runs, ink) + session.cost)
    compared = None
    if job.sweep is not None:
        sys.stdout.write(_fitting(as_text(job.sweep, session.steps).splitlines(), ink))
    elif len(runs) == 2:
        compared = compare(runs[0], runs[1], Random(job.plan.seed))
        sys.stdout.write(table.comparison(compared, ink))
    checks: list[Checked] = []
    for run in runs if job.assertions and not session.interrupted_by else ():
        found = check(job.assertions, run)
        sys.stdout.write(f"{run.result.label}:\n" * (len(runs) > 1) + table.assertions(found, ink))
        checks += found
    _write_plain(runs, given.json, given.csv)
    _write_html(runs, given.html, compared, checks)
    if session.interrupted_by:
        sys.stdout.write("interrupted" + ": assertions were not judged" * bool(job.assertions) + "\n")
        return EXIT_SIGNAL + session.interrupted_by
    is_bad = not runs or any(not run.result.health.is_valid or run.error_share == 1 for run in runs)
    return EXIT_BAD if is_bad or not all(checked.holds for checked in checks) else 0


def _compare(given: argparse.Namespace) -> int:
    runs = _loaded(given.files)
    if len(runs) != 2:
        raise Misused(f"compare takes two results, not {len(runs)}: choose by FILE:LABEL "
                      f"(there are {', '.join(run.result.label for run in runs)})")
    if runs[0].result.label == runs[1].result.label:
        for run, name in zip(runs, given.files, strict=False):
            run.result.label = _file_and_label(name)[0]
    try:
        config = CompareConfig(float(given.level), float(given.threshold))
        found = compare(runs[0], runs[1], Random(int(given.seed)), config)
    except ValueError as why:
        raise Misused(str(why)) from None
    sys.stdout.write(table.comparison(found, ink_of_output()))
    _write_html(runs, given.html, found)
    return found.exit_status


def _report(given: argparse.Namespace) -> int:
    runs = _loaded(given.files)
    sys.stdout.write(table.report(runs, ink_of_output()))
    _write_plain(runs, None, given.csv)
    _write_html(runs, given.html)
    return 0


def _selftest(given: argparse.Namespace) -> int:
    try:
        rate_rps, seconds = float(given.rate), float(given.duration)
    except ValueError:
        raise Misused("selftest takes numbers") from None
    if not (0 < rate_rps <= 1e5 and 0 < seconds <= 3600):
        raise Misused("selftest takes a rate of at most 100000 and at most 3600 seconds")
    allow_sockets()
    found = uvloop.run(selftest.selftest(SystemClock(), rate_rps=rate_rps, seconds=seconds))
    sys.stdout.write(_fitting(selftest.lines(found), ink_of_output(), hanging=13))
    return 0 if found.result.health.is_valid else EXIT_BAD


def _fitting(lines: Iterable[str], ink: Ink, hanging: int = 2) -> str:
    return "".join(f"{part}\n" for line in lines for part in ink.wrap(line, hanging))


def _loaded(names: Sequence[str]) -> list[Measured]:
    if not names:
        raise Misused("name a file that --json wrote")
    found = []
    for name in names:
        path, label = _file_and_label(name)
        try:
            results = files.from_json(Path(path).read_bytes())
        except (OSError, ValueError) as why:
            raise Misused(f"{path}: {why.strerror if isinstance(why, OSError) else why}") from None
        chosen = [result for result in results if label in ("", result.label)]
        if not chosen:
            raise Misused(f"{path} has no result {label!r}; there are {', '.join(result.label for result in results)}")
        found += [Measured(result) for result in chosen]
    return found


def _file_and_label(name: str) -> tuple[str, str]:
    """FILE or FILE:LABEL; the label may have colons, as one that is a host and its port has."""
    splits = [(name, ""), *((name[:at], name[at + 1:]) for at, char in enumerate(name) if char == ":")]
    return next((split for split in splits if Path(split[0]).is_file()), (name, ""))


def _write_plain(runs: Sequence[Measured], json: str | None, csv: str | None) -> None:
    if json is not None:
        _write(json, [files.to_json(runs)])
    if csv is not None:
        _write(csv, (line.encode() for line in files.csv_lines(runs)))


def _write_html(runs: Sequence[Measured], html: str | None, compared: Comparison | None = None,
                checks: Sequence[Checked] = ()) -> None:
    if html is not None and runs:
        _write(html, [page(runs, compared, checks).encode()])


def add_fault_options(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(dialect=None, header=[], body=None, whole=False, allow_empty=False, ca_file=None, insecure=False,
                        perform=_faults)


def _faults(given: argparse.Namespace) -> int:
    variables = environment()
    key, clock = None, SystemClock()
    if given.simulator_key_env is not None and not (key := variables.get(given.simulator_key_env)):
        raise Misused(f"the environment variable {given.simulator_key_env} of --simulator-key-env is not set")
    try:
        config = FaultsConfig(given.simulator, float(given.rate), seconds_in(given.duration), seconds_in(given.warmup),
                              seconds_in(given.timeout), int(given.seed))
        targets = subjects(given, variables)
        control = SimulatorControl(given.simulator, clock, key)
    except ValueError as why:
        raise Misused(str(why)) from None
    if given.json is not None and not Path(given.json).absolute().parent.is_dir():
        raise Misused(f"{given.json} cannot be written: its folder does not exist")
    scenarios = _chosen_scenarios(given.only)
    about_s, n_runs = config.about_s(scenarios, len(targets)), len(scenarios) * len(targets)
    line = ProgressLine(is_quiet=given.quiet)
    allow_sockets()
    shown = FaultTable(scenarios, [subject.name for subject, _ in targets])
    rows: list[FaultRow] = []
    status = 0

    def begin(what: str) -> None:
        share = len(rows) / n_runs
        line.show([f"run {len(rows) + 1} of {n_runs}", what, f"about {time_left(about_s * (1 - share))} left"], share)

    def show(row: FaultRow) -> None:
        line.clear()
        sys.stdout.write(shown.head() * (not rows) + shown.row(row))
        sys.stdout.flush()
        rows.append(row)

    try:
        uvloop.run(faults.compare(config, scenarios, targets, control, clock, report_progress=begin, on_row=show))
    except NoSimulator as why:
        line.note(f"stayfast bench: {why}")
        status = EXIT_BAD
    except KeyboardInterrupt:
        line.note("stayfast bench: interrupted")
        status = EXIT_SIGNAL + signal.SIGINT
    sys.stdout.write(_fitting(shown.foot(rows).splitlines(), ink_of_output()) * bool(rows))
    if given.json is not None and rows:
        _write(given.json, [msgspec.json.format(msgspec.json.encode({"rows": rows}), indent=1), b"\n"])
    return status or (EXIT_BAD if any(row.invalid for row in rows) else 0)


def _chosen_scenarios(only: str | None) -> tuple[Scenario, ...]:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    names = list(by_name) if only is None else only.split(",")
    for name in names:
        if name not in by_name:
            raise Misused(f"--only {name}: there are {', '.join(by_name)}")
    return tuple(by_name[name] for name in names)


def _write(path: str, parts: Iterable[bytes]) -> None:
    try:
        with Path(path).open("wb") as file:
            file.writelines(parts)
    except OSError as why:
        raise Misused(f"{path} cannot be written: {why.strerror}") from None


def machine() -> dict[str, str]:
    """What this ran on, for the report."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"CPU": f"{model or platform.machine()}, {os.cpu_count()} cores", "memory": f"{pages / 2**30:.1f} GiB",
            "system": f"{platform.system()} {platform.release()}", "Python": platform.python_version(),
            "event loop": f"uvloop {version('uvloop')}", "Stayfast": __version__}


def command_line(words: Sequence[str]) -> str:
    """What to type to run it again. Values of headers, which may be keys, are left out."""
    shown = []
    for before, word in zip(("", *words), words, strict=False):
        name, colon, _ = (word.removeprefix("--header=") if word.startswith("--header=") else word).partition(":")
        is_header = before == "--header" or word.startswith("--header=")
        shown.append(("--header=" * word.startswith("--header=") + f"{name}:...") if is_header and colon else word)
    return shlex.join(["stayfast", "bench", *(shown[1:] if shown[:1] == ["run"] else shown)])


def allow_sockets() -> None:
    """An open loop needs a socket for each answer on its way: as many as the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a lower limit than it says; what is short shows as unsent
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
