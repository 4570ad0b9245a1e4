"""One log line per request: JSON, or text for a terminal (`observe.log_text`).

The event loop only appends to a list; a thread writes, so a slow disk or a full pipe delays no request. Facts hold no
prompts, answers or keys, so lines hold none.
"""

import math
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.credentials import CredentialRenewalFailed, CredentialRenewed
from stayfast.core.events import (
    AttemptDone,
    BreakerChanged,
    ConnectionsClosed,
    DescriptorsExhausted,
    Ejected,
    EngineState,
    Fact,
    JobLeaseLost,
    JobsSwept,
    JudgeUnclear,
    KeysFailed,
    PrefixFinding,
    ProbeFailed,
    RequestDone,
    RequestRefused,
    StoreChanged,
    TurnFailed,
)
from stayfast.core.keys import KeyChanged
from stayfast.core.passthrough import PassedThrough
from stayfast.core.replicas import PhaseChanged
from stayfast.core.stage_times import StageTimes
from stayfast.core.types import Stage
from stayfast.observe.fact_batch import FactHandlers, handle_facts, one_by_one
from stayfast.observe.log_text import TextLines
from stayfast.observe.traffic_rows import format_mark

ONCE_IN_S = 10.0  # shortest interval between lines that an attacker or one full table could cause by the thousand
_ROUNDING_S = 1e-6
SEVERITY = {"debug": 0, "info": 1, "warning": 2, "error": 3}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is logged, in which form, and to which file descriptor. Beyond `max_pending_bytes` of unwritten lines, further
    lines are dropped and counted. `has_colour`: for text."""

    level: str = "info"  # lowest severity written
    requests: bool = True
    form: Literal["json", "text"] = "json"
    has_colour: bool = False
    fd: int = 1
    flush_every_s: float = 0.05
    max_pending_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.level not in SEVERITY:
            raise ValueError(f"level must be one of {', '.join(SEVERITY)}, not {self.level!r}")
        if not 0 < self.flush_every_s <= 10:
            raise ValueError(f"flush_every_s must be more than 0 and at most 10, not {self.flush_every_s}")


class LineWriter:
    """Collects lines and writes them in its own thread. Call `write` and `close` in the event loop's thread."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._lines: list[bytes] = []
        self._n_pending_bytes = 0
        self.n_dropped = 0  # since the start
        self._n_reported = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stayfast-log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue one line, with its newline. Never blocks."""
        if self._n_pending_bytes > self._config.max_pending_bytes:
            self.n_dropped += 1
            return
        self._n_pending_bytes += len(line)
        self._lines.append(line)

    def close(self) -> None:
        """Write the remaining lines and stop; waits at most one second for a blocked reader."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(self._config.flush_every_s)
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []  # an atomic swap: the loop appends to either list
        n_dropped = self.n_dropped
        if n_dropped > self._n_reported:
            line = {"event": "log_lines_dropped", "n": n_dropped - self._n_reported}
            lines.append(line_encoder(self._config).encode(line) + b"\n")
            self._n_reported = n_dropped
        if not lines:
            return
        try:
            for piece in _pieces(lines):
                data = memoryview(piece)
                while data:
                    data = data[os.write(self._config.fd, data):]
        except OSError:
            self.n_dropped += len(lines)  # the reader is gone; the gateway continues
        self._n_pending_bytes = 0


def _pieces(lines: list[bytes]) -> Iterator[bytes]:
    """Join whole lines to at most PIPE_BUF bytes, so that writes of several workers to one pipe do not interleave."""
    piece: list[bytes] = []
    n_bytes = 0
    for line in lines:
        if n_bytes + len(line) > select.PIPE_BUF and piece:
            yield b"".join(piece)
            piece, n_bytes = [], 0
        piece.append(line)
        n_bytes += len(line)
    yield b"".join(piece)


class _Try(msgspec.Struct, omit_defaults=True):
    """One attempt, for requests with several attempts or stalls."""

    upstream: str
    ms: float
    ttft_ms: float | None = None
    fault: str | None = None
    status: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    stalls_ms: list[float] = []
    hedge: bool = False
    lost: bool = False
    detail: str = ""
    role: str = "first"
    estimated: bool = False


class _RequestLine(msgspec.Struct, omit_defaults=True):
    """The line of one request. Times in milliseconds; default values are omitted."""

    ts: float
    event: str
    request_id: str
    status: int
    ms: float
    api: str | None = None
    route: str | None = None
    model: str | None = None
    stream: bool = False
    upstream: str | None = None
    attempts: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    gap_max_ms: float | None = None
    queue_ms: float | None = None
    chunks: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    finish: str | None = None
    cut_by: str | None = None
    error: str | None = None
    over_stage: str | None = None
    degraded: str | None = None
    shed: str | None = None
    cache: str | None = None
    notes: list[str] | None = None
    path: str | None = None
    tenant: str | None = None
    trace_id: str | None = None
    stages_ms: dict[Stage, float] | None = None
    deadline_ms: float | None = None
    allowed_ms: dict[Stage, float] | None = None
    cost_usd_by: dict[str, float] | None = None
    price: str = ""
    tries: list[_Try] | None = None  # if there were several, or the only one stalled or failed to connect
    mark: str | None = None  # equal for equal bodies of one process


class _PassedLine(msgspec.Struct, omit_defaults=True):
    """The line of one request that was passed to an upstream. Times in milliseconds."""

    ts: float
    event: str
    request_id: str
    status: int
    ms: float
    api: str
    method: str
    path: str
    upstream: str
    bytes_up: int
    bytes_down: int
    head_ms: float | None = None
    error: str | None = None
    tenant: str | None = None
    trace_id: str | None = None
    upstream_request_id: str | None = None
    close_code: int | None = None


class LogSink:
    """Converts facts into lines. For one event loop."""

    def __init__(self, config: LogConfig, writer: LineWriter, clock: Clock) -> None:
        self.configure(config)
        self._writer = writer
        self._clock = clock
        self._crowded: dict[str, tuple[float, int]] = {}  # by event: time of its last line, and number since then

    @property
    def level(self) -> str:
        """The lowest severity that is written."""
        return self._config.level

    def configure(self, config: LogConfig) -> None:
        """Apply another level, format or `requests`; the file descriptor stays."""
        self._config = config
        self._encoder = line_encoder(config)
        self._least = SEVERITY[config.level]
        self._least_status = _least_status(config)

    @property
    def handlers(self) -> FactHandlers:
        rare: dict[type[Any], Callable[[Any], None]] = {
            PassedThrough: self._log_passed, RequestRefused: self._log_refused, ProbeFailed: self._log_probe,
            TurnFailed: self._log_turn, BreakerChanged: self._log_state, StoreChanged: self._log_state,
            PhaseChanged: self._log_state, Ejected: self._log_ejection, PrefixFinding: self._log_prefix,
            DescriptorsExhausted: self._log_crowding, ConnectionsClosed: self._log_crowding, JudgeUnclear: self._log_judge,
            EngineState: self._log_engine, CredentialRenewed: self._log_renewal,
            CredentialRenewalFailed: self._log_failed_renewal, JobLeaseLost: self._log_lost_lease,
            JobsSwept: self._log_sweep, KeyChanged: self._log_key, KeysFailed: self._log_invalid_keys}
        return {RequestDone: self._log_requests, **{kind: one_by_one(log) for kind, log in rare.items()}}

    def emit(self, fact: Fact) -> None:
        """Write the line of one fact at once."""
        handle_facts(self, (fact,))

    def _log_requests(self, facts: Sequence[RequestDone]) -> None:
        least_status, write, encode = self._least_status, self._writer.write, self._encoder.encode
        for fact in facts:
            if fact.status >= least_status:
                write(encode(_request_line(fact)) + b"\n")

    def _log_passed(self, fact: PassedThrough) -> None:
        if fact.status >= self._least_status:
            self._line(_passed_line(fact))

    def _log_refused(self, fact: RequestRefused) -> None:
        if fact.status >= self._least_status:
            self._line(_RequestLine(ts=round(fact.wall_at, 3), event="request", request_id=fact.request_id,
                                    status=fact.status, ms=round(fact.seconds * 1e3, 3), error=fact.code,
                                    path=fact.path, tenant=fact.tenant))

    def _log_probe(self, fact: ProbeFailed) -> None:
        self.write_event("probe_failed", level="warning", upstream=fact.upstream, error=fact.code, detail=fact.message)

    def _log_turn(self, fact: TurnFailed) -> None:
        self.write_event("turn_failed", level="error", upstream=fact.upstream, request_id=fact.request_id,
                         error=fact.error, detail=fact.where)

    def _log_state(self, fact: BreakerChanged | StoreChanged | PhaseChanged) -> None:
        if isinstance(fact, StoreChanged):
            event, about = "cache_store", {"store": fact.store}
        else:
            event, about = "breaker" if isinstance(fact, BreakerChanged) else "replica", {"upstream": fact.upstream}
        self.write_event(event, level="warning" if fact.state == "open" else "info", **about, state=fact.state,
                         detail=fact.why)

    def _log_ejection(self, fact: Ejected) -> None:
        self.write_event("ejected" if fact.is_out else "readmitted", level="warning" if fact.is_out else "info",
                         route=fact.route, upstream=fact.upstream, detail=fact.why)

    def _log_prefix(self, fact: PrefixFinding) -> None:
        self.write_event("prefix_cache", level="warning", route=fact.route, upstream=fact.upstream, what=fact.what,
                         detail=fact.detail)

    def _log_judge(self, fact: JudgeUnclear) -> None:
        self.write_event("semantic_judge", level="warning", route=fact.route, judge=fact.judge, n=fact.n,
                         detail=f"the model that compares answers replied neither yes nor no {fact.n} times in a row (last: "
                         f"{fact.what}): the semantic cache learns nothing and has no hits; set "
                         f"routes.{fact.route}.cache.judge to a route whose model follows such instructions, or to local")

    def _log_engine(self, fact: EngineState) -> None:
        self.write_event("engine", level="warning" if fact.state == "crashed" else "info", state=fact.state, pid=fact.pid,
                         detail=fact.detail)

    def _log_renewal(self, fact: CredentialRenewed) -> None:
        self.write_event("credential_renewed", upstream=fact.upstream, kind=fact.kind, left_s=fact.left_s)

    def _log_failed_renewal(self, fact: CredentialRenewalFailed) -> None:
        self.write_event("credential_not_renewed", level="error" if fact.left_s == 0 else "warning", upstream=fact.upstream,
                         kind=fact.kind, n_failed=fact.n_failed, left_s=fact.left_s, detail=fact.why)

    def _log_lost_lease(self, fact: JobLeaseLost) -> None:
        self.write_event("job_lease_lost", level="warning", route=fact.route,
                         detail="another worker has the job; this one's result is discarded")

    def _log_sweep(self, fact: JobsSwept) -> None:
        self.write_event("jobs_swept", level="warning", recovered=fact.n_recovered, dead=fact.n_dead,
                         expired=fact.n_expired)

    def _log_key(self, fact: KeyChanged) -> None:
        self.write_event("key_changed", what=fact.what, key=fact.key_id, name=fact.name, tenant=fact.tenant,
                         actor=fact.actor)

    def _log_invalid_keys(self, fact: KeysFailed) -> None:
        self.write_event("invalid_keys", level="warning", n=fact.n, address=fact.address,
                         detail=f"more than {fact.limit} requests per minute without a valid key from one address: "
                         "answered 429")

    def write_event(self, event: str, *, level: str = "info", **fields: str | float | None) -> None:
        """Write a line about the gateway itself, for example starting, reloaded, stopped."""
        if SEVERITY[level] >= self._least:
            self._line({"ts": round(self._clock.wall(), 3), "event": event, "level": level, **fields})

    def _log_crowding(self, fact: DescriptorsExhausted | ConnectionsClosed) -> None:
        """Write at most one line per event every ONCE_IN_S; `n` counts the events since the previous line."""
        event, n = ("connections_closed", fact.n) if isinstance(fact, ConnectionsClosed) else ("descriptors_exhausted", 1)
        now = self._clock.now()
        last_at, n_before = self._crowded.get(event, (-math.inf, 0))
        if now - last_at < ONCE_IN_S:
            self._crowded[event] = last_at, n_before + n
            return
        self._crowded[event] = now, 0
        if isinstance(fact, ConnectionsClosed):
            self.write_event(event, level="warning", n=n_before + n, open=fact.n_open, pending=fact.n_silent,
                     detail="idle client connections were closed to make room for new ones (server.max_connections, "
                     "max_pending_connections, max_pending_per_address)")
            return
        wanted_by = f"a connection to upstream {fact.upstream}" if fact.upstream is not None else "a client's connection"
        self.write_event(event, level="error", n=n_before + n, what=fact.what, limit=fact.limit, upstream=fact.upstream,
                 detail=f"no file descriptor was left for {wanted_by}: the limit of this process is {fact.limit}; raise it "
                 "(ulimit -n, LimitNOFILE=) or lower server.max_connections")

    def _line(self, line: object) -> None:
        self._writer.write(self._encoder.encode(line) + b"\n")


def line_encoder(config: LogConfig) -> msgspec.json.Encoder | TextLines:
    return TextLines(config.fd, has_colour=config.has_colour) if config.form == "text" else msgspec.json.Encoder()


def _least_status(config: LogConfig) -> float:
    """Requests with this status or a higher one are logged: 5xx is a warning; 4xx is the client's error and is not."""
    if not config.requests or SEVERITY[config.level] > SEVERITY["warning"]:
        return math.inf
    return 500 if SEVERITY[config.level] == SEVERITY["warning"] else 0


def _request_line(fact: RequestDone) -> _RequestLine:
    usage, trace, attempts, times = fact.usage, fact.trace, fact.attempts, fact.times
    ttft_ms, tpot_ms, gap_max_ms, queue_ms, deadline_ms = _all_ms(
        fact.ttft_s, fact.tpot_s, fact.gap_max_s, fact.queue_s, fact.total_s)
    only = attempts[0] if len(attempts) == 1 else None  # most have one, whose cost is theirs
    # by position, as names cost as much as the rest of the line; _value_: before Python 3.12, `.value` is five times as slow
    return _RequestLine(
        int(fact.wall_at * 1e3) / 1e3, "request", fact.request_id, fact.status, _ms(fact.ended_at - fact.accepted_at),
        fact.api._value_, fact.route, fact.model[:128] if fact.model != fact.route else None, fact.stream, fact.upstream,
        fact.n_attempts, ttft_ms, tpot_ms, gap_max_ms, queue_ms, fact.n_chunks,
        usage.input_total if usage is not None else None,
        usage.output if usage is not None else None, usage.cached_read if usage is not None else None,
        fact.cost_usd if only is None else only.cost_usd,
        fact.finish_reason, fact.cut_by, fact.error, fact.over_stage, fact.degraded, fact.shed, fact.cache,
        list(fact.notes) if fact.notes else None, None, fact.tenant, trace.trace_id if trace is not None else None,
        _stages_ms(times), deadline_ms, _allowed_ms(times) if times.ends else None,
        None if only is not None and only.role == "first" else fact.cost_by_role or None,
        fact.price if only is None else only.price,
        _tries(attempts) if only is None or only.stalls or only.detail else None, format_mark(fact.body_mark) or None)


def _passed_line(fact: PassedThrough) -> _PassedLine:
    return _PassedLine(
        ts=int(fact.wall_at * 1e3) / 1e3, event="request", request_id=fact.request_id, status=fact.status,
        ms=_ms(fact.seconds), api="passthrough", method=fact.method, path=fact.path, upstream=fact.upstream,
        head_ms=_ms_or_none(fact.head_s),
        bytes_up=fact.n_bytes_up, bytes_down=fact.n_bytes_down, error=fact.error, tenant=fact.tenant, trace_id=fact.trace_id,
        upstream_request_id=fact.upstream_request_id, close_code=fact.close_code)


def _stages_ms(times: StageTimes) -> dict[Stage, float]:
    """Milliseconds in each stage."""
    spent_ms: dict[Stage, float] = {}
    began_at = times.began_at
    for stage, ended_at in times.ended:
        spent_ms[stage] = ((ended_at - began_at) * 1e6 + 0.5) // 1.0 / 1e3  # _ms, for each of them
        began_at = ended_at
    return spent_ms


def _allowed_ms(times: StageTimes) -> dict[Stage, float] | None:
    """The allowances of the stages that might not use all the time until the deadline."""
    deadline_at, least_at = times.deadline_at, times.deadline_at - _ROUNDING_S
    return {done.stage: _ms(done.allowance_s) for done in times.each()
            if done.began_at + done.allowance_s < least_at and done.began_at < deadline_at} or None


def _tries(attempts: Sequence[AttemptDone]) -> list[_Try] | None:
    return [_Try(attempt.upstream, _ms(attempt.ended_at - attempt.began_at), _ms_or_none(attempt.ttft_s), attempt.fault,
                 attempt.upstream_status, attempt.usage.input_total if attempt.usage is not None else None,
                 attempt.usage.output if attempt.usage is not None else None, attempt.cost_usd,
                 [_ms(stall.seconds) for stall in attempt.stalls], attempt.is_hedge, attempt.is_lost,
                 attempt.detail, attempt.role, attempt.is_estimated)
            for attempt in attempts] or None


def _all_ms(*all_s: float | None) -> list[float | None]:
    return [None if seconds is None else (seconds * 1e6 + 0.5) // 1.0 / 1e3 for seconds in all_s]


def _ms_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else (seconds * 1e6 + 0.5) // 1.0 / 1e3


def _ms(seconds: float) -> float:
    """Milliseconds with three decimals; faster than round() and int()."""
    return (seconds * 1e6 + 0.5) // 1.0 / 1e3
