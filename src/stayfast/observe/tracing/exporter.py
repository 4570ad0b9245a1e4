"""Starts a trace for each new request, queues finished requests, and exports them in a thread.

The request path pays for a few random digits and an append. The thread holds the interpreter's lock while it encodes spans,
so it encodes a few requests at a time and pauses in between.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import msgspec

from stayfast.core.events import LoopLag, RequestDone, Trace
from stayfast.observe.fact_batch import FactHandlers
from stayfast.observe.tracing.config import Peer, TraceConfig
from stayfast.policy.resilience.retry import backoff_s
from stayfast.wire.trace_context import make_child_span, start_trace

N_AT_A_TIME = 8  # requests encoded before a pause: about 0.5 ms
LET_GO_S = 0.001
N_IN_BATCH = 256  # requests per message: about 0.5 MB
RETRY_BASE_S, RETRY_CAP_S = 1.0, 30.0


class ExportResult(msgspec.Struct, frozen=True):
    """The result of sending a batch. `reason`: for the log; never text from the collector."""

    status: int | None = None  # None: no response
    is_taken: bool = False
    can_retry: bool = False
    reason: str = ""
    retry_after_s: float | None = None


class Exporter(Protocol):
    """Encodes and sends spans. Used by one thread; must not raise."""

    def encode(self, requests: Sequence[RequestDone], peers: Mapping[str, Peer]) -> bytes:
        """A message; messages can be concatenated."""

    def send(self, body: bytes) -> ExportResult: ...

    def close(self) -> None:
        """Close connections."""


LogLine = Callable[[str, str, str], None]  # level, event, reason


class SpanExporter:
    """Assigns traces to requests and exports finished ones. Call `start_trace`, `consume` and `close` in the event loop's
    thread."""

    def __init__(self, config: TraceConfig, make_exporter: Callable[[], Exporter], log: LogLine, rng: Random,
                 peers: Callable[[], Mapping[str, Peer]]) -> None:
        self._config = config
        self._make_exporter = make_exporter
        self._log = log
        self._rng = rng
        self._ended: deque[RequestDone] = deque(maxlen=config.max_pending)
        self._wake = threading.Event()
        self._is_closing = False
        self._log_entry: tuple[str, str, str] | None = None  # set by the thread, logged by the loop
        self._thread: threading.Thread | None = None
        self._peers = peers  # by upstream; a reload may bring others
        self.n_dropped = 0  # requests that found the queue full: the loop counts
        self.n_sent = 0  # requests whose spans were taken, and those refused for good: the thread counts
        self.n_refused = 0

    def start_trace(self, caller: Trace | None) -> Trace:
        """The request's span: under its caller's, with the caller's sampling decision, or the root of a new trace."""
        return make_child_span(caller, self._rng) if caller is not None else start_trace(self._rng, self._config.sample)

    @property
    def handlers(self) -> FactHandlers:
        return {RequestDone: self._queue_requests, LoopLag: self._log_in_time}

    def _queue_requests(self, facts: Sequence[RequestDone]) -> None:
        for fact in facts:
            if fact.trace is not None and fact.trace.is_sampled and fact.trace.span_id:
                if len(self._ended) == self._config.max_pending:
                    self.n_dropped += 1
                self._ended.append(fact)
        self._log_failures()

    def _log_in_time(self, _: Sequence[LoopLag]) -> None:
        """Also without requests: these facts come all the time."""
        self._log_failures()

    def start(self) -> None:
        """Import the exporter's packages and start the thread."""
        exporter = self._make_exporter()
        self._thread = threading.Thread(target=self._run, args=(exporter,), name="stayfast-traces", daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Send the remaining requests and stop; gives up after `within_s`."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(within_s)
        self._log_failures()

    def _log_failures(self) -> None:
        entry, self._log_entry = self._log_entry, None
        if entry is not None:
            self._log(*entry)

    # The methods below run in the thread.

    def _run(self, exporter: Exporter) -> None:
        while True:
            if len(self._ended) < N_IN_BATCH:
                self._wake.wait(self._config.flush_every_s)
            batch = [self._ended.popleft() for _ in range(min(N_IN_BATCH, len(self._ended)))]
            if batch:
                self._export_batch(exporter, batch)
            elif self._is_closing:
                break
        exporter.close()

    def _export_batch(self, exporter: Exporter, batch: Sequence[RequestDone]) -> None:
        parts, n_encoded = list[bytes](), 0
        for start in range(0, len(batch), N_AT_A_TIME):
            some = batch[start:start + N_AT_A_TIME]
            try:
                parts.append(exporter.encode(some, self._peers()))
                n_encoded += len(some)
            except ValueError:  # an upstream's number may exceed the format's range
                self.n_refused += len(some)
            self._wake.wait(LET_GO_S)
        verdict = self._send_with_retries(exporter, b"".join(parts))
        if verdict.is_taken:
            self.n_sent += n_encoded
        else:
            self.n_refused += n_encoded
            self._log_entry = "warning", "traces_refused", verdict.reason

    def _send_with_retries(self, exporter: Exporter, body: bytes) -> ExportResult:
        """Retry until the batch is accepted or rejected; when closing, send once. An outage is logged once."""
        n_failed, is_reported = 0, False
        while True:
            verdict = exporter.send(body)
            if verdict.is_taken or not verdict.can_retry or self._is_closing:
                if is_reported and verdict.is_taken:
                    self._log_entry = "info", "traces_taken_again", ""
                return verdict
            if not is_reported:
                is_reported = True
                self._log_entry = "warning", "traces_not_taken", verdict.reason
            n_failed += 1
            wait_s = verdict.retry_after_s or backoff_s(n_failed, RETRY_BASE_S, RETRY_CAP_S)
            self._wake.wait(min(wait_s, RETRY_CAP_S))
