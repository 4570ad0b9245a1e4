"""One screen of `stayfast top`: a frame as lines of a fixed width, the worst routes and upstreams first."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from stayfast.core import units as amounts
from stayfast.core.snapshot import LiveEngine, LiveFrame, LiveRoute, LiveUpstream
from stayfast.lab.report.table import TerminalStyle

WIDTH = 80
STALE_S = 3.0  # a gateway sends a frame each second
_SECONDS_COLUMNS = 7
_OTHER = "(other)"


class Column(NamedTuple):
    """head: at most `width` - 1 characters."""

    head: str
    width: int


_ROUTES = (Column("req/s", 7), Column("TTFT p50", 9), Column("p95", 7), Column("p99", 7), Column("late%", 6),
           Column("err%", 6), Column("hdg%", 6), Column("cach%", 6), Column("tok/s", 7), Column("$/h", 8))
BOUNDS = ("memory", "prefill", "decode", "gateway")  # what an engine is bound by and needs attention
_UPSTREAMS = (Column("req/s", 7), Column("fly", 5), Column("limit", 7), Column("TTFT p50", 9), Column("p95", 7),
              Column("p99", 7), Column("err%", 6), Column("quota%", 7), Column("state", 14))

_ENGINES = (Column("slots", 10), Column("hit%", 7), Column("KV%", 7), Column("tok/s", 8), Column("prefill/s", 11),
            Column("age", 7))


def draw_screen(frame: LiveFrame, ink: TerminalStyle, *, url: str, age_s: float = 0.0, n_lines: int | None = None,
                is_paused: bool = False) -> list[str]:
    """The lines of one screen, each at most WIDTH characters; at most `n_lines` (None: all)."""
    head = [ink.bold(_fit(f"stayfast top  {url}  {frame.gateway} {frame.stayfast}".rstrip())), _fit(_describe_state(frame))]
    if is_paused:
        head.append(ink.yellow("paused; p goes on"))
    elif age_s >= STALE_S:
        head.append(ink.red(f"no data for {age_s:.0f} s: these are the last figures"))
    findings = [_paint(ink, finding.severity, _fit(f"{finding.severity:4} {finding.where}: {finding.summary}"))
                for finding in frame.findings]
    rest = None if n_lines is None else n_lines - len(head) - 6 - min(len(findings), 3)
    routes = sorted(frame.routes, key=badness, reverse=True)
    upstreams = sorted(frame.upstreams, key=lambda row: (row.breaker == "closed", -(row.ttft_s.p99 or 0.0)))
    n_engines = sum(row.engine is not None for row in upstreams)
    if rest is not None and n_engines:
        n_engines = max(1, min(n_engines, (rest - 3) // 3))
        rest -= n_engines + 3
    n_upstreams = len(upstreams) if rest is None else max(1, min(len(upstreams), rest // 2))
    n_routes = len(routes) if rest is None else max(1, rest - n_upstreams)
    lines = [*head, "", ink.dim(_heading("ROUTE", _ROUTES)), *_rows(map(_route_line, routes), n_routes, len(routes)), "",
             ink.dim(_heading("UPSTREAM", _UPSTREAMS)), *_rows(map(_upstream_line, upstreams), n_upstreams, len(upstreams))]
    engines = [row for row in upstreams if row.engine is not None]
    if engines:
        lines += ["", ink.dim(_heading("ENGINE", _ENGINES)), *_rows(map(_engine_line, engines), n_engines, len(engines))]
    if not frame.routes:
        lines.insert(len(head) + 2, "  No request in the last minute.")
    if findings:
        lines += ["", *(findings if n_lines is None else findings[:3])]
    return lines if n_lines is None else lines[:n_lines]


def badness(route: LiveRoute) -> float:
    """How far a route is from its promise: p99 of the first token over the promised time, or by its failures."""
    over = (route.ttft_s.p99 or 0.0) / (route.promise_s or 2.0)
    return over + 10.0 * (route.failed_ratio + route.shed_ratio) - (1e6 if route.route == _OTHER else 0.0)


def _describe_state(frame: LiveFrame) -> str:
    silent = f", {frame.n_silent_workers} silent" if frame.n_silent_workers else ""
    parts = [datetime.fromtimestamp(frame.at, UTC).astimezone().strftime("%H:%M:%S"),
             f"{sum(row.rps for row in frame.routes):.1f} req/s",
             f"{sum(row.in_flight for row in frame.upstreams)} in flight",
             f"{sum(row.waiting for row in frame.upstreams)} waiting",
             f"{frame.n_workers} worker{'s' * (frame.n_workers != 1)}{silent}"]
    if frame.jobs_queued or frame.jobs_running:
        parts.append(f"jobs {frame.jobs_running} running, {frame.jobs_queued} queued")
    if frame.cpu_ratio is not None:
        parts.append(f"{frame.cpu_ratio:.2f} cores")
    return "  ".join([*parts, f"lag p99 {amounts.format_seconds(frame.loop_lag_p99_s)}"])


def _heading(name: str, columns: Sequence[Column]) -> str:
    return _fit(f"{name:{_name_width(columns)}}" + "".join(f"{column.head:>{column.width}}" for column in columns))


def _name_width(columns: Sequence[Column]) -> int:
    return WIDTH - sum(column.width for column in columns)


def _rows(lines: Iterable[str], n: int, n_all: int) -> list[str]:
    shown = [line for line, _ in zip(lines, range(n), strict=False)]
    return shown if n >= n_all else [*shown, f"  and {n_all - n} more"]


def _route_line(row: LiveRoute) -> str:
    cells = (f"{row.rps:.1f}", *_spread(row), _percent(row.late_ratio), _percent(row.failed_ratio + row.shed_ratio),
             _percent(row.hedged_ratio), _percent(row.cached_ratio), f"{row.output_tokens_per_s:.0f}",
             f"{row.usd_per_h:.2f}")
    return _line(row.route, cells, _ROUTES)


def _upstream_line(row: LiveUpstream) -> str:
    state = f"off {row.suspended_s:.0f} s" if row.suspended_s > 0 else row.breaker
    if state == "closed" and row.phase not in ("", "ready"):
        state = row.phase
    elif state == "closed" and row.bound_by in BOUNDS:
        state = f"{row.bound_by}-bound"
    cells = (f"{row.rps:.1f}", f"{row.in_flight}", "-" if row.limit is None else f"{row.limit:.0f}", *_spread(row),
             _percent(row.failed_ratio), "-" if row.quota_left is None else f"{100 * row.quota_left:.0f}", state)
    return _line(row.name, cells, _UPSTREAMS)


def _engine_line(row: LiveUpstream) -> str:
    engine = row.engine or LiveEngine()
    slots = "/".join("-" if n is None else f"{n:.0f}" for n in (engine.running, engine.max_running))
    ratios = ["-" if ratio is None else _percent(ratio) for ratio in (engine.hit_ratio, engine.kv_used_ratio)]
    rates = ["-" if rate is None else f"{rate:.0f}" for rate in (engine.tokens_per_s, engine.prefill_tokens_per_s)]
    return _line(row.name, (slots, *ratios, *rates, _seconds(engine.age_s)), _ENGINES)


def _spread(row: LiveRoute | LiveUpstream) -> tuple[str, str, str]:
    times_s = row.ttft_s
    return _seconds(times_s.p50), _seconds(times_s.p95), _seconds(times_s.p99)


def _seconds(value_s: float | None) -> str:
    """At most six characters."""
    if value_s is None:
        return "-"
    return f"{value_s * 1e3:.0f}ms" if value_s < 1 else f"{value_s:.2f}s" if value_s < 10 else f"{value_s:.0f}s"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}" if ratio < 0.9995 else "100"


def _line(name: str, cells: Sequence[str], columns: Sequence[Column]) -> str:
    room = _name_width(columns)
    shown = amounts.make_printable(name)
    shown = shown if len(shown) < room else f"{shown[:room - 2]}~"
    return _fit(f"{shown:{room}}" + "".join(f"{cell:>{column.width}}" for cell, column in zip(cells, columns, strict=True)))


def _fit(line: str) -> str:
    line = amounts.make_printable(line)
    return line if len(line) <= WIDTH else f"{line[:WIDTH - 1]}~"


def _paint(ink: TerminalStyle, severity: str, line: str) -> str:
    return ink.red(line) if severity == "act" else ink.yellow(line) if severity == "warn" else ink.dim(line)
