"""`stayfast doctor`: what is wrong with a gateway now, and what to change."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.core.findings import Finding
from stayfast.core.snapshot import SNAPSHOT_VERSION, Snapshot
from stayfast.core.units import make_printable
from stayfast.policy.findings.diagnose import diagnose, shown
from stayfast.policy.findings.figures import HOUR_S, NOW_S
from stayfast.policy.findings.registry import CHECKS
from stayfast.policy.findings.text import place_of, write_findings

EXIT_FOUND, EXIT_UNKNOWN = 1, 2
SNAPSHOT = "/admin/snapshot"
MAX_WIDTH = 100
MOST_READ = 40  # snapshots of the past; between two of them a finding's begin is known to their distance
STEP_S = 60.0  # the ring stores all rows once a minute
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|min|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class StateUnknown(Exception):
    """The state of the gateway is unknown. The message names the reason and what to do."""


class DoctorReport(msgspec.Struct, frozen=True):
    """`--json`. hidden consequences are in `findings`, with `hidden_by`. ended: found since `--since`, and not now."""

    at: float
    gateway: str
    stayfast: str
    n_checks: int
    n_requests: int  # in the last 5 minutes
    window_s: float
    findings: tuple[Finding, ...]
    ended: tuple[Finding, ...] = ()
    since: float | None = None


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Exit status 0: nothing, or only info; 1: something to change; 2: unknown."""
    try:
        report = _make_report(arguments)
    except (StateUnknown, GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast doctor: {error}")
        return EXIT_UNKNOWN
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        width = min(MAX_WIDTH, shutil.get_terminal_size((80, 24)).columns)
        sys.stdout.write("\n".join(draw_report(report, width, is_all=arguments.all)) + "\n")
    return EXIT_FOUND if any(finding.severity != "info" for finding in report.findings) else 0


def _make_report(arguments: argparse.Namespace) -> DoctorReport:
    snapshot = _read_target(arguments)
    found, since = diagnose(snapshot), None
    ended: list[Finding] = []
    if arguments.since is not None:
        if not _is_url(arguments.target):
            raise StateUnknown("--since needs a running gateway: a file holds one instant")
        since = parse_since(arguments.since, datetime.now().astimezone())
        past = [_fetch_past(arguments, at) for at in choose_instants(_list_spans(arguments), since)]
        found, ended = trace_back([one for one in past if one is not None], found)
    n_requests = sum(row.n for row in snapshot.rows(NOW_S))
    if not found and not sum(row.n for row in snapshot.rows(HOUR_S)):
        raise StateUnknown("no data: this gateway answered no request in the last hour")
    return DoctorReport(snapshot.at, snapshot.gateway, snapshot.stayfast, len(CHECKS), n_requests, NOW_S, tuple(found),
                        tuple(ended), since)


def draw_report(report: DoctorReport, width: int, *, is_all: bool = False) -> list[str]:
    """The report as lines of `width` columns."""
    checked = f"{report.n_checks} checks, {report.window_s / 60:g} min, {report.n_requests:,} requests"
    since_of = {place_of(finding): _clock_text(finding.since) for finding in (*report.findings, *report.ended)
                if finding.since is not None}
    lines = write_findings(report.findings, width, is_all=is_all, since_of=since_of)
    if report.ended:
        lines += ["", f"found since {_clock_text(report.since or 0.0)}, and not now:",
                  *(make_printable(f"  {finding.severity:4}  {finding.id}  {finding.where}, since "
                                   f"{_clock_text(finding.since or 0.0)}")
                    for finding in shown(report.ended))]
    n = len(shown(report.findings))
    if not n and not report.ended:
        return [f"{checked}: nothing to change"]
    return [*lines, "", f"{checked}: {n} finding{'s' * (n != 1)}"]


def _clock_text(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _read_target(arguments: argparse.Namespace) -> Snapshot:
    if _is_url(arguments.target):
        return _fetch(arguments, SNAPSHOT)
    try:
        data = sys.stdin.buffer.read() if arguments.target == "-" else Path(arguments.target).read_bytes()
    except OSError as error:
        raise StateUnknown(f"cannot read {arguments.target}: {error.strerror}. Give a file of GET {SNAPSHOT}, or a URL that "
                        "begins with http://") from error
    return decode_snapshot(data, arguments.target)


def _fetch(arguments: argparse.Namespace, path: str) -> Snapshot:
    try:
        return decode_snapshot(_get(arguments, path), arguments.target)
    except AdminRequestFailed as error:
        if error.status == 404:
            raise StateUnknown(f"{arguments.target} has no {path}: the gateway is too old, or it is no Stayfast "
                            "gateway") from error
        raise


def _get(arguments: argparse.Namespace, path: str) -> bytes:
    return send(argparse.Namespace(url=arguments.target, key_env=arguments.key_env), "GET", path)


def decode_snapshot(data: bytes, source: str) -> Snapshot:
    """Raises StateUnknown if it is no snapshot, or one of another version."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != SNAPSHOT_VERSION:
            older = "gateway" if version < SNAPSHOT_VERSION else "doctor"
            raise StateUnknown(f"{source} is a snapshot of version {version}, and this doctor reads {SNAPSHOT_VERSION}: "
                            "update the "
                            f"{older}")
        return msgspec.json.decode(data, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise StateUnknown(f"{source} is no snapshot: {error}. `curl GATEWAY{SNAPSHOT}` writes one") from error


class _Versioned(msgspec.Struct):
    at: float
    version: int = SNAPSHOT_VERSION  # omitted if it is the first


class _SnapshotList(msgspec.Struct):
    spans: list[tuple[float, float]]  # (first, last) without a gap, in seconds since the epoch, ascending


def _list_spans(arguments: argparse.Namespace) -> list[tuple[float, float]]:
    """The times of stored snapshots."""
    try:
        return msgspec.json.decode(_get(arguments, f"{SNAPSHOT}?list=true"), type=_SnapshotList).spans
    except AdminRequestFailed as error:
        raise StateUnknown(f"--since: {error}") from error
    except msgspec.MsgspecError as error:
        raise StateUnknown(f"{arguments.target} stores no snapshots: {error}") from error


def choose_instants(spans: Iterable[tuple[float, float]], since: float) -> list[float]:
    """At most about MOST_READ instants of the spans after `since`, evenly and at least STEP_S apart; the last one of each
    span is included.
    """
    wanted = [(max(first, since), last) for first, last in spans if last >= since]
    step_s = max(STEP_S, sum(last - first for first, last in wanted) / MOST_READ)
    instants: list[float] = []
    for first, last in wanted:
        instants += [*(first + number * step_s for number in range(int((last - first) / step_s))), last]
    return instants


def _fetch_past(arguments: argparse.Namespace, at: float) -> Snapshot | None:
    """None: it has been removed meanwhile."""
    try:
        return decode_snapshot(_get(arguments, f"{SNAPSHOT}?at={at}"), arguments.target)
    except AdminRequestFailed as error:
        if error.status == 404:
            return None
        raise


class _Sight(NamedTuple):
    finding: Finding
    since: float


def trace_back(past: Iterable[Snapshot], current: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The current findings with their begin, and those that have ended. past: ascending. A finding that is missing in
    between began anew.
    """
    running: dict[str, _Sight] = {}
    ended: dict[str, _Sight] = {}
    for snapshot in past:
        now = {place_of(finding): finding for finding in diagnose(snapshot)}
        ended |= {place: sight for place, sight in running.items() if place not in now}
        running = {place: _Sight(finding, running[place].since if place in running else snapshot.at)
                   for place, finding in now.items()}
    places = {place_of(finding) for finding in current}
    begins = {place: sight.since for place, sight in running.items()}
    traced = [msgspec.structs.replace(finding, since=begins.get(place_of(finding), finding.since)) for finding in current]
    gone = {place: sight for place, sight in (ended | running).items() if place not in places}
    return traced, [msgspec.structs.replace(sight.finding, since=sight.since) for sight in gone.values()]


def parse_since(text: str, now: datetime) -> float:
    """`02:10` or `02:10:30` (the last time the clock showed that), or a span such as `30m`, `90s`, `2h`. Raises "
      "StateUnknown."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return now.timestamp() - float(span[1]) * _SECONDS[span[2]]
    try:
        moment = time.fromisoformat(text)
    except ValueError:
        raise StateUnknown(f"--since {text}: give a time like 02:10, or a span like 30m or 2h") from None
    at = now.replace(hour=moment.hour, minute=moment.minute, second=moment.second, microsecond=0)
    return (at if at <= now else at - timedelta(days=1)).timestamp()

