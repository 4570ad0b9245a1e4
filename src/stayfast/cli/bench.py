"""`stayfast bench`: measures a gateway or a provider under load, and says whether the figures are valid. `bench faults` runs
the same faults against several gateways.
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
from stayfast.cli.bench_options import add_run_options, make_job
from stayfast.cli.bench_session import Session, SocketSession, VirtualSession
from stayfast.cli.bench_targets import Misused, add_target_options, read_key, read_targets
from stayfast.cli.terminal import ProgressLine, format_time_left, style_of_output
from stayfast.core.clock import SystemClock
from stayfast.lab.load import faults, selftest
from stayfast.lab.load.faults import SCENARIOS, FaultRow, FaultsConfig, FaultTable, NoSimulator, Scenario, SimulatorControl
from stayfast.lab.load.measure import LoadOrigin
from stayfast.lab.load.options import add_options, read_options
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.load.sweep import format_sweep
from stayfast.lab.report import files, table
from stayfast.lab.report.assertions import AssertionResult, check_assertions
from stayfast.lab.report.compare import CompareConfig, Comparison, compare_runs
from stayfast.lab.report.html.page import render_page
from stayfast.settings import read_environment

EXIT_BAD = 1
EXIT_MISUSED = 2
EXIT_SIGNAL = 128  # plus the signal's number, as in a shell
COMMANDS = ("run", "compare", "report", "faults", "selftest")
EXAMPLES = """\
examples:
  stayfast bench --model simulated --rate 50 --duration 30s \\
    --slo "ttft:500ms e2e:5s"
  stayfast bench --model m --arrivals gamma:0.25 --rate 20 \\
    --input-tokens conv --output-tokens conv --html report.html
  stayfast bench --model m --sweep 1,2,4,8,16
  stayfast bench --model m --rate 20 --target gateway=http://127.0.0.1:8090/v1 \\
    --target direct=http://127.0.0.1:8100/v1
  stayfast bench --virtual --config stayfast.yaml --model m --rate 200 \\
    --requests 1000000
  stayfast bench compare before.json after.json
exit status:
  0    done
  1    the run is invalid, nothing was answered or an assertion fails
  2    wrong usage
  130  interrupted
"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after `stayfast bench`; the default command is `run`."""
    words = list(words)
    if not words or (words[0] not in COMMANDS and words[0] not in ("-h", "--help")):
        words.insert(0, "run")
    given = _make_parser().parse_args(words)
    given.words = words
    return given


def run(arguments: argparse.Namespace) -> int:
    """Run the parsed command; returns the exit status."""
    command: Callable[[argparse.Namespace], int] = arguments.perform
    try:
        return command(arguments)
    except Misused as why:
        print_message(f"stayfast bench: {why}")
        return EXIT_MISUSED


def _make_parser() -> argparse.ArgumentParser:
    parser = Command(prog="stayfast bench", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Measure a gateway or a provider under load.\n`stayfast bench run --help` has the options.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("run", help="measure (default command: `stayfast bench --rate ...`)", epilog=EXAMPLES,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(command)
    command.set_defaults(perform=_run_load)
    command = commands.add_parser("compare", help="compare two results; exit 1 if the second is worse")
    command.add_argument("files", nargs="*", metavar="FILE[:LABEL]", help="two results of --json, or one file with both")
    command.add_argument("--threshold", default="0.05", metavar="SHARE", help="minimum change (default: %(default)s)")
    command.add_argument("--level", default="0.95", metavar="SHARE", help="of the intervals (default: %(default)s)")
    command.add_argument("--seed", default="0", metavar="N", help="same seed, same intervals (default: %(default)s)")
    command.add_argument("--html", metavar="FILE", help="write a report of both")
    command.set_defaults(perform=_compare_files)
    command = commands.add_parser("report", help="show results of --json")
    command.add_argument("files", nargs="*", metavar="FILE[:LABEL]")
    command.add_argument("--html", metavar="FILE", help="write a report that needs no network")
    command.add_argument("--csv", metavar="FILE", help="write one row a request")
    command.set_defaults(perform=_show_files)
    add_fault_options(commands.add_parser("faults", help="the same upstream faults for several gateways"))
    command = commands.add_parser("selftest", help="measure the error of the bench itself on this machine")
    command.add_argument("--rate", default="200", metavar="R", help="requests a second (default: %(default)s)")
    command.add_argument("--duration", default="3", metavar="SECONDS", help="(default: %(default)s)")
    command.set_defaults(perform=_run_selftest)
    return parser


def _run_load(given: argparse.Namespace) -> int:
    job = make_job(given, read_environment())
    for assertion in job.assertions:
        if assertion.is_doubtful:
            print_message(f"--assert {assertion.text}: read as {assertion.bound:g} seconds; write ms for milliseconds")
    origin = LoadOrigin(format_command_line(given.words), describe_machine())
    session: Session
    if given.virtual:
        session = VirtualSession(job, given.config, origin, is_quiet=given.quiet)
        session.run()
    else:
        raise_socket_limit()
        session = SocketSession(job, origin, is_quiet=given.quiet)
        uvloop.run(session.run())
    ink, runs = style_of_output(), [MeasuredRun(result) for result in session.results]
    sys.stdout.write(table.format_report(runs, ink) + session.cost)
    compared = None
    if job.sweep is not None:
        _print_wrapped(format_sweep(job.sweep, session.steps).splitlines())
    elif len(runs) == 2:
        compared = compare_runs(runs[0], runs[1], Random(job.plan.seed))
        sys.stdout.write(table.format_comparison(compared, ink))
    checks: list[AssertionResult] = []
    for run in runs if job.assertions and not session.interrupted_by else ():
        found = check_assertions(job.assertions, run)
        sys.stdout.write(f"{run.result.label}:\n" * (len(runs) > 1) + table.format_assertions(found, ink))
        checks += found
    if given.json is not None:
        _write(given.json, [files.to_json(runs)])
    _write_csv(runs, given.csv)
    _write_html(runs, given.html, compared, checks)
    if session.interrupted_by:
        sys.stdout.write("interrupted" + ": assertions were not judged" * bool(job.assertions) + "\n")
        return EXIT_SIGNAL + session.interrupted_by
    is_bad = not runs or any(not run.result.health.is_valid or run.error_share == 1 for run in runs)
    return EXIT_BAD if is_bad or not all(checked.holds for checked in checks) else 0


def _compare_files(given: argparse.Namespace) -> int:
    runs = _load_runs(given.files)
    if len(runs) != 2:
        raise Misused(f"compare takes two results, not {len(runs)}: choose by FILE:LABEL "
                      f"(there are {', '.join(run.result.label for run in runs)})")
    if runs[0].result.label == runs[1].result.label:
        for run, name in zip(runs, given.files, strict=False):
            run.result.label = _split_label(name)[0]
    try:
        config = CompareConfig(float(given.level), float(given.threshold))
        found = compare_runs(runs[0], runs[1], Random(int(given.seed)), config)
    except ValueError as why:
        raise Misused(str(why)) from None
    sys.stdout.write(table.format_comparison(found, style_of_output()))
    _write_html(runs, given.html, found)
    return found.exit_status


def _show_files(given: argparse.Namespace) -> int:
    runs = _load_runs(given.files)
    sys.stdout.write(table.format_report(runs, style_of_output()))
    _write_csv(runs, given.csv)
    _write_html(runs, given.html)
    return 0


def _run_selftest(given: argparse.Namespace) -> int:
    try:
        rate_rps, seconds = float(given.rate), float(given.duration)
    except ValueError:
        raise Misused("selftest takes numbers") from None
    if not (0 < rate_rps <= 1e5 and 0 < seconds <= 3600):
        raise Misused("selftest takes a rate of at most 100000 and at most 3600 seconds")
    raise_socket_limit()
    found = uvloop.run(selftest.run_selftest(SystemClock(), rate_rps=rate_rps, seconds=seconds))
    _print_wrapped(selftest.format_lines(found), hanging=13)
    return 0 if found.result.health.is_valid else EXIT_BAD


def _print_wrapped(lines: Iterable[str], hanging: int = 2) -> None:
    ink = style_of_output()
    sys.stdout.writelines(f"{part}\n" for line in lines for part in ink.wrap(line, hanging))


def _load_runs(names: Sequence[str]) -> list[MeasuredRun]:
    if not names:
        raise Misused("name a file written by --json")
    found = []
    for name in names:
        path, label = _split_label(name)
        try:
            results = files.from_json(Path(path).read_bytes())
        except (OSError, ValueError) as why:
            raise Misused(f"{path}: {why.strerror if isinstance(why, OSError) else why}") from None
        chosen = [result for result in results if label in ("", result.label)]
        if not chosen:
            raise Misused(f"{path} has no result {label!r}; there are {', '.join(result.label for result in results)}")
        found += [MeasuredRun(result) for result in chosen]
    return found


def _split_label(name: str) -> tuple[str, str]:
    """FILE or FILE:LABEL. The label may contain colons, as in host:port."""
    splits = [(name, ""), *((name[:at], name[at + 1:]) for at, char in enumerate(name) if char == ":")]
    return next((split for split in splits if Path(split[0]).is_file()), (name, ""))


def _write_csv(runs: Sequence[MeasuredRun], path: str | None) -> None:
    if path is not None:
        _write(path, (line.encode() for line in files.csv_lines(runs)))


def _write_html(runs: Sequence[MeasuredRun], path: str | None, compared: Comparison | None = None,
                checks: Sequence[AssertionResult] = ()) -> None:
    if path is not None and runs:
        _write(path, [render_page(runs, compared, checks).encode()])


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    add_target_options(parser, "base URL of a gateway in front of the simulator; may be repeated")
    parser.add_argument("--simulator", metavar="URL", default="http://127.0.0.1:8100",
                        help="address of `stayfast sim` (default: %(default)s)")
    parser.add_argument("--simulator-key-env", metavar="VAR", help="the environment variable with the simulator's key")
    parser.add_argument("--only", metavar="NAMES", help=f"of {names} (default: all)")
    add_options(parser, FaultsConfig)
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(dialect=None, header=[], body=None, whole=False, allow_empty=False, ca_file=None, insecure=False,
                        perform=_run_faults)


def _run_faults(given: argparse.Namespace) -> int:
    variables = read_environment()
    clock, key_env = SystemClock(), given.simulator_key_env
    key = read_key(key_env, variables, "--simulator-key-env") if key_env is not None else None
    try:
        config = FaultsConfig(given.simulator, **read_options(FaultsConfig, given))
        targets = read_targets(given, variables)
        control = SimulatorControl(given.simulator, clock, key)
    except ValueError as why:
        raise Misused(str(why)) from None
    if given.json is not None and not Path(given.json).absolute().parent.is_dir():
        raise Misused(f"{given.json} cannot be written: its folder does not exist")
    scenarios = _choose_scenarios(given.only)
    estimate_s, n_runs = config.estimate_s(scenarios, len(targets)), len(scenarios) * len(targets)
    line = ProgressLine(is_quiet=given.quiet)
    raise_socket_limit()
    report = FaultTable(scenarios, [subject.name for subject, _ in targets])
    rows: list[FaultRow] = []
    status = 0

    def show_run(what: str) -> None:
        share = len(rows) / n_runs
        line.show([f"run {len(rows) + 1} of {n_runs}", what, f"about {format_time_left(estimate_s * (1 - share))} left"],
                  share)

    def show_row(row: FaultRow) -> None:
        line.clear()
        sys.stdout.write(report.format_head() * (not rows) + report.format_row(row))
        sys.stdout.flush()
        rows.append(row)

    try:
        uvloop.run(faults.run_scenarios(config, scenarios, targets, control, clock, report_progress=show_run,
                                        on_row=show_row))
    except NoSimulator as why:
        line.note(f"stayfast bench: {why}")
        status = EXIT_BAD
    except KeyboardInterrupt:
        line.note("stayfast bench: interrupted")
        status = EXIT_SIGNAL + signal.SIGINT
    if rows:
        _print_wrapped(report.format_foot(rows).splitlines())
    if given.json is not None and rows:
        _write(given.json, [msgspec.json.format(msgspec.json.encode({"rows": rows}), indent=1), b"\n"])
    return status or (EXIT_BAD if any(row.invalid for row in rows) else 0)


def _choose_scenarios(only: str | None) -> tuple[Scenario, ...]:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    names = list(by_name) if only is None else only.split(",")
    for name in names:
        if name not in by_name:
            raise Misused(f"--only {name}: unknown; known are {', '.join(by_name)}")
    return tuple(by_name[name] for name in names)


def _write(path: str, parts: Iterable[bytes]) -> None:
    try:
        with Path(path).open("wb") as file:
            file.writelines(parts)
    except OSError as why:
        raise Misused(f"{path} cannot be written: {why.strerror}") from None


def describe_machine() -> dict[str, str]:
    """This machine, for the report."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"CPU": f"{model or platform.machine()}, {os.cpu_count()} cores", "memory": f"{pages / 2**30:.1f} GiB",
            "system": f"{platform.system()} {platform.release()}", "Python": platform.python_version(),
            "event loop": f"uvloop {version('uvloop')}", "Stayfast": __version__}


def format_command_line(words: Sequence[str]) -> str:
    """The command line, for the report. Values of headers are left out, since they may be keys."""
    shown = []
    for before, word in zip(("", *words), words, strict=False):
        option = "--header=" * word.startswith("--header=")
        name, colon, _ = word.removeprefix(option).partition(":")
        shown.append(f"{option}{name}:..." if colon and (option or before == "--header") else word)
    return shlex.join(["stayfast", "bench", *(shown[1:] if shown[:1] == ["run"] else shown)])


def raise_socket_limit() -> None:
    """Raise the limit of open files to the hard limit: an open loop needs a socket for each request in flight."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS accepts less than its hard limit; missing sockets show as unsent
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
