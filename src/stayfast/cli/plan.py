"""`stayfast plan`: what changes would bring, from the traffic of a gateway or its log."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from stayfast.cli import EXIT_NOTHING_TO_DO, Command, print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.cli.terminal import ProgressLine
from stayfast.core.units import make_printable
from stayfast.engine.model_file import read_shape
from stayfast.lab.plan.break_even import BreakEven, break_even_hosted, break_even_machines
from stayfast.lab.plan.changes import CHANGES, Change, default_changes, parse_changes
from stayfast.lab.plan.model_memory import MemoryPlan, plan_memory
from stayfast.lab.plan.predict import PlanResult, plan_route
from stayfast.lab.plan.quantised import QuantisedMemory, format_quantised, plan_quantised, use_measured_speed
from stayfast.lab.plan.report import format_break_even, format_memory, format_plan
from stayfast.lab.plan.traffic import RouteTraffic, TooLittleTraffic, pick_route, read_log, read_report
from stayfast.lab.plan.workload import KnownSettings, TrafficModel, build_model, known_settings
from stayfast.lab.quantise.report import find_reports
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.traffic_rows import TrafficLine
from stayfast.policy.engines.sizing import BYTES_OF
from stayfast.policy.slo import Latency
from stayfast.settings import Settings, SettingsError, load_settings, overrides_from, read_environment, read_settings_file

EXIT_USAGE = 2
EXIT_NOT_REPRODUCED = 1
EXIT_SETTINGS = 78
MOST_REPLAYED = 100_000
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "GiB": 2.0**30, "MiB": 2.0**20}
_LIVE_TOKENS = 2000.0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after `stayfast plan`."""
    command = Command(prog="stayfast plan", description="Predict what changes would bring, from a gateway's own traffic.",
                      epilog="changes: " + ", ".join(f"{change.name}={change.value:g}" for change in CHANGES))
    _add_options(command)
    arguments = command.parse_args(words)
    if arguments.source is not None and arguments.source.startswith(("http://", "https://")):  # as doctor and top take it
        arguments.url, arguments.source = arguments.source, None
    return arguments


class PlanOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of `--json`."""

    plan: PlanResult | None = None
    break_even: BreakEven | None = None
    memory: MemoryPlan | None = None
    quantised: Sequence[QuantisedMemory] = ()


def run(arguments: argparse.Namespace) -> int:
    """Print a plan. Status 1: the replay does not reproduce the log; 2: wrong usage; 5: too little traffic."""
    try:
        return _run(arguments)
    except TooLittleTraffic as error:
        print_message(f"stayfast plan: {error}")
        return EXIT_NOTHING_TO_DO
    except (GatewayUnreachable, AdminRequestFailed, OSError, ValueError) as error:
        print_message(f"stayfast plan: {error}")
        return EXIT_USAGE


def _run(arguments: argparse.Namespace) -> int:
    wanted = parse_changes(arguments.change or [])
    sizes = parse_bytes(arguments.memory), parse_bytes(arguments.bandwidth)
    if arguments.model is not None and arguments.source is None:
        memory, quantised = _plan_model(arguments, sizes, arguments.tokens or _LIVE_TOKENS)
        _print(PlanOutput(memory=memory, quantised=quantised), is_json=arguments.json)
        return 0
    traffic = _read_traffic(arguments)
    known = KnownSettings()
    if arguments.config is not None:
        try:
            known = known_settings(_load(arguments.config), traffic.route)
        except SettingsError as error:
            print_message(f"stayfast plan: {error}")
            return EXIT_SETTINGS
    model = build_model(traffic, known)
    if not model.scenario.fits:
        raise TooLittleTraffic("no upstream answered enough requests of this log")
    memory, quantised = _plan_model(arguments, sizes, arguments.tokens or live_tokens(traffic.rows))
    plan = _predict(model, wanted, quantised, arguments)
    even = compute_break_even(model, plan, arguments) if plan.is_reproduced else None
    _print(PlanOutput(plan, even, memory, quantised), is_json=arguments.json)
    return 0 if plan.is_reproduced else EXIT_NOT_REPRODUCED


def _plan_model(arguments: argparse.Namespace, sizes: tuple[float | None, float | None],
                n_live: float) -> tuple[MemoryPlan | None, list[QuantisedMemory]]:
    """The memory of the model, and what is known of it quantised. sizes: memory, bandwidth. Raises ValueError, OSError."""
    if arguments.model is None:
        return None, []
    memory_bytes, bandwidth = sizes
    path = Path(arguments.model)
    shape = read_shape(path)
    memory = plan_memory(shape, dtype=arguments.dtype, kv=arguments.kv, live_tokens=n_live, memory_bytes=memory_bytes,
                         bandwidth=bandwidth)
    return memory, plan_quantised(shape, find_reports(path), kv=arguments.kv, live_tokens=n_live, memory_bytes=memory_bytes,
                                  bandwidth=bandwidth)


def _load(path: str) -> Settings:
    """The settings of a file. Raises SettingsError."""
    variables = read_environment()
    return load_settings(read_settings_file(path, variables), variables, overrides_from(variables), kinds=KINDS)


def _read_traffic(arguments: argparse.Namespace) -> RouteTraffic:
    """The newest requests of the log, or of the gateway."""
    n_unreadable = 0
    if arguments.source is None:
        rows = read_report(send(arguments, "GET", "/admin/traffic"))
    elif arguments.source == "-":
        rows, n_unreadable = read_log(sys.stdin.buffer)
    else:
        with Path(arguments.source).open("rb") as file:
            rows, n_unreadable = read_log(file)
    if n_unreadable:
        print_message(f"stayfast plan: {n_unreadable} lines are not JSON and were skipped")
    traffic = pick_route(rows, arguments.route)
    return replace(traffic, rows=traffic.rows[-arguments.requests:])


def _predict(model: TrafficModel, wanted: Sequence[tuple[Change, float]], quantised: Sequence[QuantisedMemory],
             arguments: argparse.Namespace) -> PlanResult:
    candidates, left = default_changes(model)
    candidates, wanted = use_measured_speed(candidates, quantised), use_measured_speed(wanted, quantised)
    promise = model.scenario.route.slo.ttft or Latency()
    if arguments.promise_s is not None:
        promise = Latency(arguments.promise_s, promise.share)
    line = ProgressLine()
    n_steps = 1 + len(wanted or candidates)
    steps = iter(range(1_000_000))

    def show(step: str) -> None:
        if line.is_terminal:
            line.show([step], min(1.0, next(steps) / (n_steps + arguments.seeds)))

    try:
        return plan_route(model, wanted or candidates, [] if wanted else left, n_seeds=arguments.seeds, seed=arguments.seed,
                          promise=promise, report=show)
    finally:
        line.clear()


def compute_break_even(model: TrafficModel, plan: PlanResult, arguments: argparse.Namespace) -> BreakEven:
    """For own machines by the fitted engine; for a hosted API by the largest saving that is predicted."""
    fit = next(iter(model.scenario.fits.values()))
    rows = model.traffic.rows
    engine = fit.engine
    if engine is not None:
        n_input = sum(max(0, (row.n_input or 0) - row.n_cached) for row in rows) / len(rows)
        n_output = sum(row.n_output or 0 for row in rows) / len(rows)
        busy_s = n_input / engine.prefill_tokens_per_s + n_output * engine.decode_step_per_sequence_s
        return break_even_machines(
            plan.requests_per_day, busy_s, engineer_usd=arguments.engineer_usd_per_day,
            machine_usd_per_h=arguments.machine_usd_per_h, bigger_usd_per_h=arguments.bigger_usd_per_h)
    saved = max((-one.usd_change for one in plan.predictions if one.usd_change is not None and one.name != "tier"),
                default=0.0)
    usd = None if plan.usd_per_day is None else plan.usd_per_day / max(1.0, plan.requests_per_day)
    return break_even_hosted(plan.requests_per_day, usd, max(0.0, saved), engineer_usd=arguments.engineer_usd_per_day)


def live_tokens(rows: Sequence[TrafficLine]) -> float:
    """The mean tokens of a running request: its prompt and half of its answer."""
    known = [(row.n_input or 0) + (row.n_output or 0) / 2 for row in rows if row.n_input]
    return sum(known) / len(known) if known else _LIVE_TOKENS


def parse_bytes(text: str | None) -> float | None:
    """Read 80GB, 24GiB, 3350GB/s. Raises ValueError."""
    if text is None:
        return None
    bare = text.removesuffix("/s")
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if bare.endswith(unit)), None)
    try:
        if unit is None:
            raise ValueError
        return float(bare.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"{text!r} is no size; write it like 80GB, 24GiB or 3350GB/s") from None


def _print(output: PlanOutput, *, is_json: bool) -> None:
    if is_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(output), indent=2).decode() + "\n")
        return
    parts = [format_plan(output.plan)] if output.plan is not None else []
    parts += [format_break_even(output.break_even)] if output.break_even is not None else []
    parts += [format_memory(output.memory)] if output.memory is not None else []
    parts += [format_quantised(output.quantised)] if output.quantised else []
    lines = "\n".join(parts).split("\n")
    sys.stdout.write("\n".join(make_printable(line) for line in lines))  # names of a log of anywhere


def _add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("source", nargs="?", metavar="LOG", help="the gateway's JSON log lines; -: standard input; or its URL (default: the "
        "requests in the memory of the gateway at --url)")
    add("--url", default="http://127.0.0.1:8090", help="the gateway (default: %(default)s)")
    add("--key-env", metavar="NAME", help="the variable of the environment that holds a key")
    add("--json", action="store_true", help="print JSON")
    add("--route", metavar="NAME", help="(default: the one with the most requests)")
    add("--change", metavar="NAME[=VALUE]", action="append", help="predict this change; repeatable (default: all that are a "
        "question here)")
    add("--config", metavar="FILE", help="settings of the gateway (default: guessed from the traffic)")
    add("--promise-s", type=float, metavar="S", help="first token within S seconds (default: the route's)")
    add("--requests", type=_bounded(200, MOST_REPLAYED), default=3000, metavar="N",
        help="newest requests that are replayed (default: %(default)s)")
    add("--seeds", type=_bounded(2, 50), default=5, metavar="N", help="resamples (default: %(default)s)")
    add("--seed", type=_bounded(0, 2**31), default=1, help="of all draws (default: %(default)s)")
    add("--engineer-usd-per-day", type=float, default=800.0, metavar="USD", help="(default: %(default)s)")
    add("--machine-usd-per-h", type=float, default=1.8, metavar="USD", help="a machine (default: %(default)s, an A100)")
    add("--bigger-usd-per-h", type=float, default=2.69, metavar="USD", help="a bigger one (default: %(default)s, an H100)")
    add("--model", metavar="FILE", help="memory of a model: a GGUF file or a config.json")
    add("--memory", metavar="SIZE", help="of the accelerator, such as 80GB")
    add("--bandwidth", metavar="RATE", help="of its memory, such as 3350GB/s")
    add("--dtype", choices=sorted(BYTES_OF), help="of the weights (default: the file's, or f16)")
    add("--kv", choices=sorted(BYTES_OF), default="f16", help="of the KV cache (default: %(default)s)")
    add("--tokens", type=float, metavar="N", help="of a running request (default: the log's mean, or 2000)")


def _bounded(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read
