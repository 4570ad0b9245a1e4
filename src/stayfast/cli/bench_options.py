"""The options of `stayfast bench run`. Those that set one field of a config are declared beside it (`lab.load.options`)."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stayfast.cli.bench_targets import Misused, add_request_options, add_target_options, read_targets
from stayfast.lab.load.arrivals import Ramp, TraceRequest, parse_arrivals, read_trace
from stayfast.lab.load.client import LoadTargetConfig
from stayfast.lab.load.lengths import parse_length
from stayfast.lab.load.measure import MeasurePlan
from stayfast.lab.load.options import Option, add_options, read_options
from stayfast.lab.load.result import LoadSlo, Subject, parse_slo
from stayfast.lab.load.schedule import PoolConfig, ScheduleLimit, TurnsConfig, Workload
from stayfast.lab.load.sweep import DEFAULT_STEP_S, Sweep, parse_sweep
from stayfast.lab.report.assertions import Assertion, parse_assertion

DEFAULT_S = 30.0
_EXCLUSIVE = (
    ("rate", "concurrency", "an open loop has a rate, a closed loop a concurrency: give one of --rate and --concurrency"),
    ("arrivals", "concurrency", "--arrivals has no meaning in a closed loop (--concurrency): answers set its pace"),
    ("sweep", "rate", "--sweep sets the rates: leave out --rate"),
    ("sweep", "concurrency", "--sweep sets the concurrencies: leave out --concurrency"),
    ("insecure", "ca_file", "--insecure trusts any certificate: leave out --ca-file"),
    ("virtual", "target", "--virtual uses no sockets: leave out --target"),
)
_NEEDS = (("zipf", "pool"), ("pool_share", "pool"), ("paraphrase", "pool"), ("think", "turns"))
_NOT_WITH_TRACE = ("rate", "input_tokens", "output_tokens", "pool", "turns", "sweep")


@dataclass(frozen=True, slots=True)
class BenchJob:
    """What to measure. `sweep` replaces the load of the plan step by step."""

    plan: MeasurePlan
    subjects: tuple[tuple[Subject, LoadTargetConfig], ...]
    sweep: Sweep | None
    has_length: bool  # the length of the run, or of a step, was given
    assertions: tuple[Assertion, ...]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("target")
    add_target_options(target, "base URL as SDKs take it; repeat for an interleaved A/B")
    add_request_options(target)
    load = parser.add_argument_group("load")
    load.add_argument("--rate", metavar="R", help="open loop: requests (with --turns: conversations) a second")
    load.add_argument("--arrivals", metavar="PROCESS", help="poisson, constant, gamma:SHAPE, ramp:FROM..TO:TIME,RATE:TIME, "
                      "mmpp:RATE:TIME,RATE:TIME or trace:FILE (default: poisson)")
    load.add_argument("--time-scale", metavar="F", help="multiply a trace's times: 0.1 is ten times as fast")
    load.add_argument("--sweep", metavar="LOADS", help="[concurrency=|rate=]1,2,4,... or auto: find the knee")
    add_options(load, ScheduleLimit, MeasurePlan)
    load.add_argument("--virtual", action="store_true", help="virtual time: this process's pipeline, simulated upstreams")
    load.add_argument("--config", metavar="FILE",
                      help="with --virtual: the gateway's settings (default: one simulated provider for every model)")
    requests = parser.add_argument_group("requests")
    requests.add_argument("--input-tokens", metavar="LENGTH", help="N, uniform:LOW-HIGH, normal:MEAN,DEVIATION, "
                          "lognormal:MEDIAN,SIGMA, conv or code (default: 256)")
    requests.add_argument("--output-tokens", metavar="LENGTH", help="the maximum, in the same form (default: 128)")
    add_options(requests, Workload, PoolConfig, TurnsConfig)
    report = parser.add_argument_group("report")
    report.add_argument("--slo", metavar="BOUNDS", help='bounds of a good answer: "ttft:500ms e2e:5s"')
    report.add_argument("--assert", action="append", default=[], dest="assertions", metavar="BOUND",
                        help='exit 1 unless it holds: "ttft.p99<0.5", "goodput>0.99"; may be repeated')
    report.add_argument("--json", metavar="FILE", help="write the result, for `bench compare`")
    report.add_argument("--csv", metavar="FILE", help="write one row a request")
    report.add_argument("--html", metavar="FILE", help="write a report that needs no network")
    report.add_argument("--quiet", action="store_true", help="no progress")


def make_job(given: argparse.Namespace, variables: Mapping[str, str]) -> BenchJob:
    """The job of these options. Raises Misused."""
    _refuse_combinations(given)
    for path in (given.json, given.csv, given.html):
        if path is not None and not Path(path).absolute().parent.is_dir():  # fail before the run, not after it
            raise Misused(f"{path} cannot be written: its folder does not exist")
    try:
        slo = parse_slo(given.slo) if given.slo else LoadSlo()
        assertions = tuple(parse_assertion(text) for text in given.assertions)
        sweep = parse_sweep(given.sweep) if given.sweep else None
        return BenchJob(_make_plan(given, sweep, slo), read_targets(given, variables), sweep,
                   bool(given.duration or given.requests), assertions)
    except ValueError as why:
        raise Misused(str(why)) from None


def _refuse_combinations(given: argparse.Namespace) -> None:
    def is_given(name: str) -> bool:
        return bool(getattr(given, name))

    is_trace = (given.arrivals or "").startswith("trace:")
    is_ab = len(given.target or ()) > 1
    refused = [
        (given.config and not given.virtual, "--config is for --virtual: over sockets, the target has its own settings"),
        *((is_given(one) and is_given(other), why) for one, other, why in _EXCLUSIVE),
        *((is_given(one) and not is_given(other), f"{_flag(one)} needs {_flag(other)}") for one, other in _NEEDS),
        (not any(map(is_given, ("rate", "concurrency", "sweep", "arrivals"))),
         "no load is given: add --rate R (open loop), --concurrency N (closed loop), --sweep or --arrivals"),
        (given.time_scale and not is_trace, "--time-scale is for --arrivals trace:FILE"),
        *((is_trace and is_given(name), f"{_flag(name)} has no meaning with a trace, which has its own times and lengths")
          for name in _NOT_WITH_TRACE),
        *((is_ab and is_given(name), f"several targets take turns, which {_flag(name)} does not allow: give one --target")
          for name in ("sweep", "turns")),
        (given.block and not is_ab, "--block is for an A/B of several --target"),
    ]
    for is_refused, why in refused:
        if is_refused:
            raise Misused(why)


def _flag(dest: str) -> str:
    return f"--{dest.replace('_', '-')}"


def _make_plan(given: argparse.Namespace, sweep: Sweep | None, slo: LoadSlo) -> MeasurePlan:
    kind = (given.arrivals or "poisson").partition(":")[0]
    trace = _read_trace_file(given) if (given.arrivals or "").startswith("trace:") else ()
    is_closed = bool(given.concurrency) or (sweep is not None and sweep.is_closed)
    if is_closed and given.arrivals:
        raise Misused("--arrivals has no meaning in a sweep of concurrency: sweep rate=...")
    if sweep is not None and kind in ("ramp", "mmpp"):
        raise Misused(f"--arrivals {given.arrivals} sets its own rates: a sweep of rates cannot change them")
    rate_rps = 1.0 if sweep is not None else Option("", flag="--rate").parse(given.rate, float) if given.rate else None
    arrivals = None if is_closed or trace else parse_arrivals(given.arrivals or "poisson", rate_rps)
    limit = ScheduleLimit(**read_options(ScheduleLimit, given))
    if isinstance(arrivals, Ramp):
        limit = replace(limit, until_s=min(limit.until_s or arrivals.seconds, arrivals.seconds))
    elif limit.until_s is None and limit.n_requests is None and not trace:
        limit = replace(limit, until_s=DEFAULT_S if sweep is None else DEFAULT_STEP_S)
    workload = Workload(
        parse_length(given.input_tokens or "256", "input"), parse_length(given.output_tokens or "128", "output"), arrivals,
        trace, PoolConfig(**read_options(PoolConfig, given)), TurnsConfig(**read_options(TurnsConfig, given)),
        **read_options(Workload, given))
    return MeasurePlan(workload, limit, slo=slo, **{"n_concurrent": int(is_closed), **read_options(MeasurePlan, given)})


def _read_trace_file(given: argparse.Namespace) -> Sequence[TraceRequest]:
    path = given.arrivals.removeprefix("trace:")
    scale = Option("", flag="--time-scale").parse(given.time_scale or "1", float)
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            return read_trace(file, scale)
    except (OSError, UnicodeDecodeError) as why:
        raise Misused(f"the trace {path} cannot be read: {why}") from None
