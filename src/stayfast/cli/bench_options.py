"""What `stayfast bench` can be told: the options, what they make, and the combinations that mean nothing."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stayfast.core.types import Api
from stayfast.core.units import seconds_in
from stayfast.lab.load.arrivals import ConstantArrivals, Gamma, Ramp, Recorded, parse_arrivals, read_trace
from stayfast.lab.load.client import PATHS, AskingConfig, LoadTargetConfig
from stayfast.lab.load.lengths import parse_length
from stayfast.lab.load.measure import MeasurePlan
from stayfast.lab.load.result import LoadSlo, Subject, parse_slo
from stayfast.lab.load.schedule import PoolConfig, ScheduleLimit, TurnsConfig, Workload
from stayfast.lab.load.sweep import N_LEAST, Sweep, parse_sweep
from stayfast.lab.report.assertions import Assertion, parse_assertion

T = TypeVar("T")
DEFAULT_TARGET = "http://127.0.0.1:8090/v1"
DEFAULT_S = 30.0
DEFAULT_STEP_S = 10.0
MAX_TARGETS = 8

RUN_EXAMPLES = """\
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


class Misused(ValueError):
    """The options make no sense; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the options ask for. `sweep`, where there is one, replaces the plan's load step by step."""

    plan: MeasurePlan
    subjects: tuple[tuple[Subject, LoadTargetConfig], ...]
    sweep: Sweep | None
    has_length: bool  # it was said how long the run, or a step, lasts
    assertions: tuple[Assertion, ...]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("target")
    target.add_argument("--target", action="append", metavar="[NAME=]URL",
                        help=f"base URL as SDKs take it; again for an interleaved A/B (default: {DEFAULT_TARGET})")
    target.add_argument("--model", action="append", metavar="[NAME=]MODEL", help="what to ask for")
    target.add_argument("--dialect", action="append", metavar="[NAME=]DIALECT", help=f"{', '.join(PATHS)} (default: chat)")
    target.add_argument("--key-env", action="append", metavar="[NAME=]VAR", help="the environment variable with the API key")
    target.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="a header for every request")
    target.add_argument("--body", metavar="JSON", help="fields for every request; null takes one out")
    target.add_argument("--whole", action="store_true", help="ask for answers in one piece, not streams")
    target.add_argument("--allow-empty", action="store_true", help="a whole answer without any content is good")
    target.add_argument("--ca-file", metavar="FILE", help="trust these certificates only")
    target.add_argument("--insecure", action="store_true", help="trust any certificate")
    load = parser.add_argument_group("load")
    load.add_argument("--rate", metavar="R", help="open loop: requests (with --turns: conversations) a second")
    load.add_argument("--arrivals", metavar="PROCESS", help="poisson, constant, gamma:SHAPE, ramp:FROM..TO:TIME,RATE:TIME, "
                      "mmpp:RATE:TIME,RATE:TIME or trace:FILE (default: poisson)")
    load.add_argument("--time-scale", metavar="F", help="multiply a trace's times: 0.1 is ten times as fast")
    load.add_argument("--concurrency", metavar="N", help="closed loop with N callers: for comparison only")
    load.add_argument("--sweep", metavar="LOADS", help="[concurrency=|rate=]1,2,4,... or auto: find the knee")
    load.add_argument("--duration", metavar="TIME", help="measured part (default: 30s; of each step of a sweep: "
                      f"10s, and {N_LEAST} requests of a rate)")
    load.add_argument("--requests", metavar="N", help="end after N measured requests")
    load.add_argument("--warmup", metavar="TIME", help="before the measured part (default: none)")
    load.add_argument("--timeout", metavar="TIME", default="60s", help="from the intended start (default: %(default)s)")
    load.add_argument("--block", metavar="TIME", help="of an A/B: how long each target has its turn (default: 5s)")
    load.add_argument("--seed", metavar="N", default="0", help="same seed, same requests (default: %(default)s)")
    load.add_argument("--virtual", action="store_true",
                      help="on a clock that skips the waiting: the pipeline in this process, simulated upstreams")
    load.add_argument("--config", metavar="FILE",
                      help="with --virtual: the gateway's settings (default: one simulated provider for every model)")
    _add_request_options(parser)
    _add_report_options(parser)


def _add_request_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--input-tokens", metavar="LENGTH", help="N, uniform:LOW-HIGH, normal:MEAN,DEVIATION, "
                       "lognormal:MEDIAN,SIGMA, conv or code (default: 256)")
    group.add_argument("--output-tokens", metavar="LENGTH", help="at most so many, in the same words (default: 128)")
    group.add_argument("--system-tokens", metavar="N", default="0", help="a system prompt that all share")
    group.add_argument("--pool", metavar="N", help="draw prompts from N (default: all different)")
    group.add_argument("--pool-share", metavar="SHARE", help="this share of the requests (default: 1)")
    group.add_argument("--zipf", metavar="S", help="how uneven the pool is drawn from (default: 1)")
    group.add_argument("--paraphrase", metavar="SHARE", help="this share of the pool's in other words (default: 0)")
    group.add_argument("--turns", metavar="N", help="conversations of N turns (default: 1)")
    group.add_argument("--think", metavar="TIME", help="mean think time between turns (default: 5s)")


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group("report")
    report.add_argument("--slo", metavar="BOUNDS", help='what a good answer keeps: "ttft:500ms e2e:5s"')
    report.add_argument("--assert", action="append", default=[], dest="assertions", metavar="BOUND",
                        help='exit 1 unless it holds: "ttft.p99<0.5", "goodput>0.99"; again for more')
    report.add_argument("--json", metavar="FILE", help="write the result, for `bench compare`")
    report.add_argument("--csv", metavar="FILE", help="write a row a request")
    report.add_argument("--html", metavar="FILE", help="write a report that needs no network")
    report.add_argument("--quiet", action="store_true", help="no progress")


def job_of(given: argparse.Namespace, variables: Mapping[str, str]) -> Job:
    """What is asked for. Raises Misused."""
    _refuse_nonsense(given)
    for path in (given.json, given.csv, given.html):
        if path is not None and not Path(path).absolute().parent.is_dir():  # better now than after the run
            raise Misused(f"{path} cannot be written: its folder does not exist")
    try:
        slo = parse_slo(given.slo) if given.slo else LoadSlo()
        assertions = tuple(parse_assertion(text) for text in given.assertions)
        sweep = parse_sweep(given.sweep) if given.sweep else None
        has_length = bool(given.duration or given.requests)
        return Job(_plan(given, sweep, slo), subjects(given, variables), sweep, has_length, assertions)
    except ValueError as why:
        raise Misused(str(why)) from None


def at_load(job: Job, load: float) -> MeasurePlan:
    """The plan of one step of the sweep. Where nothing was said of its length, a slow one lasts until it can be judged."""
    assert job.sweep is not None
    if job.sweep.is_closed:
        return replace(job.plan, n_concurrent=int(load))
    arrivals = job.plan.workload.arrivals
    assert isinstance(arrivals, ConstantArrivals | Gamma)
    limit = job.plan.limit
    if not job.has_length and load * DEFAULT_STEP_S < 1.5 * N_LEAST:  # arrivals vary
        limit = replace(limit, until_s=None, n_requests=max(N_LEAST, round(load * DEFAULT_STEP_S)))
    return replace(job.plan, limit=limit, workload=replace(job.plan.workload, arrivals=replace(arrivals, rate_rps=load)))


_PAIRS = (  # what excludes what, and why
    ("rate", "concurrency", "an open loop has a rate, a closed loop a concurrency: give one of --rate and --concurrency"),
    ("arrivals", "concurrency", "--arrivals has no meaning in a closed loop (--concurrency): the answers set its pace"),
    ("sweep", "rate", "--sweep says the rates itself: leave out --rate"),
    ("sweep", "concurrency", "--sweep says the concurrencies itself: leave out --concurrency"),
    ("insecure", "ca_file", "--insecure trusts any certificate: leave out --ca-file"),
    ("virtual", "target", "--virtual sends nothing over a socket: leave out --target"),
)
_ONLY_WITH = (
    ("zipf", "pool", "--zipf needs --pool"), ("pool_share", "pool", "--pool-share needs --pool"),
    ("paraphrase", "pool", "--paraphrase needs --pool"), ("think", "turns", "--think needs --turns"),
)
_IN_TRACE = {"rate": "--rate", "input_tokens": "--input-tokens", "output_tokens": "--output-tokens", "pool": "--pool",
             "turns": "--turns", "sweep": "--sweep"}


def _refuse_nonsense(given: argparse.Namespace) -> None:
    if given.config and not given.virtual:
        raise Misused("--config is for --virtual: over sockets it is the target that has settings")
    for one, other, why in _PAIRS:
        if getattr(given, one) and getattr(given, other):
            raise Misused(why)
    for one, needed, why in _ONLY_WITH:
        if getattr(given, one) and not getattr(given, needed):
            raise Misused(why)
    if not (given.rate or given.concurrency or given.sweep or given.arrivals):
        raise Misused("say how much load: --rate R (open loop), --concurrency N (closed loop), --sweep or --arrivals")
    _refuse_around_trace(given)
    n_targets = len(given.target or ("",))
    if n_targets > 1 and (given.sweep or given.turns):
        option = "--sweep" if given.sweep else "--turns"
        raise Misused(f"several targets take turns in blocks of time, which {option} has no room for: give one --target")
    if given.block and n_targets == 1:
        raise Misused("--block is for an A/B of several --target")


def _is_trace(given: argparse.Namespace) -> bool:
    return bool(given.arrivals and given.arrivals.startswith("trace:"))


def _refuse_around_trace(given: argparse.Namespace) -> None:
    if not _is_trace(given):
        if given.time_scale:
            raise Misused("--time-scale is for --arrivals trace:FILE")
        return
    for name, option in _IN_TRACE.items():
        if getattr(given, name):
            raise Misused(f"{option} has no meaning with a trace, which says when, how long and how often itself")


def _plan(given: argparse.Namespace, sweep: Sweep | None, slo: LoadSlo) -> MeasurePlan:
    trace = _trace(given)
    is_closed = bool(given.concurrency) or (sweep is not None and sweep.is_closed)
    if is_closed and given.arrivals:
        raise Misused("--arrivals has no meaning in a sweep of concurrency: sweep rate=...")
    if sweep is not None and (given.arrivals or "").partition(":")[0] in ("ramp", "mmpp"):
        raise Misused(f"--arrivals {given.arrivals} says its rates itself: a sweep of rates cannot change them")
    rate_rps = 1.0 if sweep is not None else _read(given.rate, float, "--rate")
    arrivals = None if is_closed or trace else parse_arrivals(given.arrivals or "poisson", rate_rps)
    until_s = _seconds(given.duration, "--duration")
    n_requests = _read(given.requests, int, "--requests")
    if isinstance(arrivals, Ramp):
        until_s = min(until_s or arrivals.seconds, arrivals.seconds)
    elif until_s is None and n_requests is None and not trace:
        until_s = DEFAULT_S if sweep is None else DEFAULT_STEP_S
    n_turns, think_s = _read(given.turns, int, "--turns"), _seconds(given.think, "--think")
    turns = TurnsConfig(1 if n_turns is None else n_turns, 5.0 if think_s is None else think_s)
    workload = Workload(
        parse_length(given.input_tokens or "256", "input"), parse_length(given.output_tokens or "128", "output"), arrivals,
        trace, _pool(given), turns, _read(given.system_tokens, int, "--system-tokens") or 0)
    limit = ScheduleLimit(until_s, n_requests, _seconds(given.warmup, "--warmup") or 0.0)
    n_concurrent = _read(given.concurrency, int, "--concurrency") or (1 if is_closed else 0)
    if not 0 <= n_concurrent <= 1_000_000 or (given.concurrency and int(given.concurrency) < 1):
        raise Misused("--concurrency must be 1 to 1000000")
    return MeasurePlan(workload, limit, _read(given.seed, int, "--seed") or 0, n_concurrent,
                _seconds(given.timeout, "--timeout") or 0.0, _seconds(given.block, "--block") or 5.0, slo)


def _trace(given: argparse.Namespace) -> Sequence[Recorded]:
    if not _is_trace(given):
        return ()
    path = given.arrivals.removeprefix("trace:")
    scale = _read(given.time_scale, float, "--time-scale") or 1.0
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            return read_trace(file, scale)
    except (OSError, UnicodeDecodeError) as why:
        raise Misused(f"the trace {path} cannot be read: {why}") from None


def _pool(given: argparse.Namespace) -> PoolConfig:
    share, zipf = _read(given.pool_share, float, "--pool-share"), _read(given.zipf, float, "--zipf")
    return PoolConfig(_read(given.pool, int, "--pool") or 0, 1.0 if share is None else share, 1.0 if zipf is None else zipf,
                      _read(given.paraphrase, float, "--paraphrase") or 0.0)


def subjects(given: argparse.Namespace, variables: Mapping[str, str]) -> tuple[tuple[Subject, LoadTargetConfig], ...]:
    """The targets, and how each is asked. Raises Misused."""
    targets = _named_targets(given.target or [DEFAULT_TARGET])
    models, dialects = _by_target(given.model, targets, "--model"), _by_target(given.dialect, targets, "--dialect")
    keys = _by_target(given.key_env, targets, "--key-env")
    extra = _extra(given.body)
    headers = tuple(_header(text) for text in given.header)
    found = []
    for name, url in targets.items():
        dialect = dialects.get(name, "chat")
        if dialect not in PATHS:
            raise Misused(f"--dialect {dialect}: known are {', '.join(PATHS)}")
        if name not in models:
            raise Misused(f"say what to ask {name} for: --model MODEL")
        key = None
        if (variable := keys.get(name)) is not None and not (key := variables.get(variable)):
            raise Misused(f"the environment variable {variable} of --key-env is not set")
        asking = AskingConfig(Api(dialect), models[name], not given.whole, key, headers, extra, given.allow_empty)
        found.append((Subject(name, url, dialect, models[name]),
                      LoadTargetConfig(url, asking, given.ca_file, verify=not given.insecure)))
    return tuple(found)


def _named_targets(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, is_named, url = text.partition("=")
        if not is_named or text.startswith(("http://", "https://")):
            name, url = urlsplit(text).netloc.rpartition("@")[2], text
            if not name:
                raise Misused(f"--target {text}: neither a URL (http://..., https://...) nor NAME=URL")
        elif not name or not name.isprintable() or any(char in "/=" or char.isspace() for char in name):
            raise Misused(f"--target {text}: the name before the = is {'empty' if not name else repr(name)}; a name has one "
                          "character or more, and no blank, / or control character")
        if name in found:
            raise Misused(f"--target {text}: {name} is the name of another; give each a name of its own: NAME=URL")
        found[name] = url
    if len(found) > MAX_TARGETS:
        raise Misused(f"at most {MAX_TARGETS} targets take turns in one run")
    return found


def _by_target(texts: Sequence[str] | None, targets: Mapping[str, str], option: str) -> dict[str, str]:
    """`VALUE` for all targets, `NAME=VALUE` for one."""
    general: list[str] = []
    named: dict[str, str] = {}
    for text in texts or ():
        name, is_named, value = text.partition("=")
        if is_named and name in targets:
            named[name] = value
        else:
            general.append(text)
    if len(general) > 1:
        raise Misused(f"{option} {general[1]}: given twice; NAME=... with the name of a --target says which it is for")
    return {**{name: text for name in targets for text in general}, **named}


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise Misused("--header takes NAME:VALUE")
    return name.strip(), value.strip()


def _extra(text: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(text) if text else {}
    except json.JSONDecodeError as why:
        raise Misused(f"--body is not JSON: {why}") from None
    if not isinstance(fields, dict):
        raise Misused("--body must be a JSON object")
    return fields


def _seconds(text: str | None, option: str) -> float | None:
    try:
        return None if text is None else seconds_in(text)
    except ValueError as why:
        raise Misused(f"{option}: {why}") from None


def _read(text: str | None, kind: Callable[[str], T], option: str) -> T | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        raise Misused(f"{option} {text}: not a {'whole ' if kind is int else ''}number") from None
