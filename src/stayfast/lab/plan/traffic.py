"""Reads what a gateway recorded about its requests: its JSON log lines, or the answer of `GET /admin/traffic`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from stayfast.observe.traffic_rows import TrafficLine, TrafficReport, TrialRow, digest_tenant

LEAST_REQUESTS = 200  # fewer: intervals so wide that nothing can be decided
ASSUMED_OUTPUT = 100  # tokens of an answer, where no counts are known
_FAILED = 400
_BEFORE_CALL = ("admit", "cache", "context", "route")
_NO_TEXT = ("embeddings", "count_tokens")


class TooLittleTraffic(Exception):
    """There are too few requests to predict from, or none."""


class _LoggedTry(msgspec.Struct):
    """One entry of `tries`; times in milliseconds."""

    upstream: str
    ms: float
    ttft_ms: float | None = None
    fault: str | None = None
    status: int | None = None
    lost: bool = False
    role: str = "first"


class _LoggedRequest(msgspec.Struct):
    """The fields of a log line that a plan needs; times in milliseconds. `ts` is the instant of the end."""

    event: str = ""
    ts: float = 0.0
    ms: float = 0.0
    status: int = 0
    api: str | None = None
    route: str | None = None
    upstream: str | None = None
    stream: bool = False
    attempts: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    cache: str | None = None
    shed: str | None = None
    tenant: str | None = None
    stages_ms: dict[str, float] | None = None
    tries: list[_LoggedTry] | None = None
    mark: str | None = None


_LINE = msgspec.json.Decoder(_LoggedRequest)
_REPORT = msgspec.json.Decoder(TrafficReport)


def read_log(lines: Iterable[bytes]) -> tuple[list[TrafficLine], int]:
    """The requests of a log in the order of their arrival, and the number of lines that are not JSON objects. Lines of other
    events and of embeddings are skipped.
    """
    rows, n_unreadable = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            logged = _LINE.decode(line)
        except msgspec.MsgspecError:
            n_unreadable += 1
            continue
        if logged.event == "request" and logged.route is not None and logged.api not in _NO_TEXT:
            rows.append(_to_row(logged, logged.route))
    rows.sort(key=lambda row: row.arrived_at)
    return rows, n_unreadable


def read_report(body: bytes) -> list[TrafficLine]:
    """The rows of `GET /admin/traffic` in the order of their arrival. Raises ValueError if the body has another form."""
    return sorted(_REPORT.decode(body).rows, key=lambda row: row.arrived_at)


def _to_row(logged: _LoggedRequest, route: str) -> TrafficLine:
    stages = logged.stages_ms or {}
    trials = tuple(TrialRow(one.upstream, one.role, one.ms / 1e3, _seconds(one.ttft_ms), one.fault or "", one.status,
                            one.lost) for one in logged.tries or ())
    return TrafficLine(
        logged.ts - logged.ms / 1e3, route, logged.upstream or "", logged.input_tokens, logged.cached_tokens or 0,
        logged.output_tokens, logged.stream, _seconds(logged.ttft_ms), _seconds(logged.tpot_ms), logged.ms / 1e3,
        logged.status, logged.attempts, logged.cost_usd, logged.cache or "", digest_tenant(logged.tenant),
        logged.mark or "", sum(stages.get(stage, 0.0) for stage in _BEFORE_CALL) / 1e3, logged.shed or "",
        trials if len(trials) > 1 else ())


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


@dataclass(frozen=True, slots=True)
class RouteTraffic:
    """The requests of one route in the order of their arrival, at least one."""

    route: str
    rows: tuple[TrafficLine, ...]
    n_all: int  # requests of all routes
    has_lengths: bool = True  # False: the numbers of tokens are assumed

    @property
    def span_s(self) -> float:
        """From the first arrival to the last; at least a second."""
        return max(1.0, self.rows[-1].arrived_at - self.rows[0].arrived_at)

    @property
    def per_day(self) -> float:
        return len(self.rows) * 86_400.0 / self.span_s

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Those that answered, the most frequent first."""
        names = Counter(name for row in self.rows for name in
                        ([trial.upstream for trial in row.trials] or [row.upstream]) if name and name != "(cache)")
        return tuple(name for name, _ in names.most_common())


def pick_route(rows: Iterable[TrafficLine], route: str | None = None) -> RouteTraffic:
    """The traffic of a route; None: of the route with the most requests. Raises TooLittleTraffic."""
    every = tuple(rows)
    counts = Counter(row.route for row in every)
    if not counts:
        raise TooLittleTraffic("there are no requests of a route in this log. Log lines need log.requests (its default) and "
                               "log.format: json; or plan from a running gateway")
    if route is not None and route not in counts:
        raise TooLittleTraffic(f"no requests of the route {route!r}; there are: {', '.join(sorted(counts))}")
    name = route or counts.most_common(1)[0][0]
    chosen = tuple(row for row in every if row.route == name)
    if len(chosen) < LEAST_REQUESTS:
        raise TooLittleTraffic(
            f"{len(chosen)} requests of the route {name!r} are too few: with less than {LEAST_REQUESTS}, a p95 rests on "
            "fewer than ten requests, and no change could be told from chance. Collect more, then plan again")
    return assume_lengths(RouteTraffic(name, chosen, len(every)))


def assume_lengths(traffic: RouteTraffic) -> RouteTraffic:
    """Answers of ASSUMED_OUTPUT tokens if most have no token counts, as streams of OpenAI's dialect without
    `request_usage`. Waits and durations are unchanged.
    """
    answered = [row for row in traffic.rows if row.status < _FAILED and row.n_attempts]
    if 2 * sum(row.n_output is not None for row in answered) >= len(answered):
        return traffic
    rows = tuple(_assume_length(row) if row.status < _FAILED and row.n_attempts else row for row in traffic.rows)
    return replace(traffic, rows=rows, has_lengths=False)


def _assume_length(row: TrafficLine) -> TrafficLine:
    tpot_s = (row.e2e_s - row.ttft_s) / (ASSUMED_OUTPUT - 1) if row.is_stream and row.ttft_s is not None else None
    return msgspec.structs.replace(row, n_input=0, n_cached=0, n_output=ASSUMED_OUTPUT, tpot_s=tpot_s)
