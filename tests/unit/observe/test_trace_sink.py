"""observe.tracing.exporter: queued and dropped requests, and the log lines about a collector that is down."""

import threading
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from stayfast.core.events import AttemptDone, RequestDone, Trace
from stayfast.core.types import Outcome
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.tracing.config import Peer, TraceConfig
from stayfast.observe.tracing.exporter import ExportResult, SpanExporter
from stayfast.wire.trace_context import parse_traceparent
from tests.unit.observe.fact_rig import done

TAKEN = ExportResult(200, is_taken=True)
CALLER = "00-12345678901234567890123456789012-1234567890123456-{flags}"


class Kept:
    """An exporter that keeps what it gets, and gives the verdicts it was told to, the last one for ever."""

    def __init__(self, *verdicts: ExportResult) -> None:
        self.verdicts = list(verdicts or (TAKEN,))
        self.requests: list[RequestDone] = []
        self.sent: list[bytes] = []
        self.is_closed = False
        self.may_send = threading.Event()
        self.may_send.set()
        self.has_been_asked = threading.Event()

    def encode(self, requests: Sequence[RequestDone], peers: Mapping[str, Peer]) -> bytes:
        if any(request.model == "bad" for request in requests):
            raise ValueError("out of range")
        self.requests += requests
        return b"".join(request.request_id.encode() for request in requests)

    def send(self, body: bytes) -> ExportResult:
        self.has_been_asked.set()
        assert self.may_send.wait(5)
        self.sent.append(body)
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]

    def close(self) -> None:
        self.is_closed = True


def tracing(exporter: Kept, said: list[tuple[str, str, str]] | None = None, **config: Any) -> SpanExporter:
    """A SpanExporter that flushes a hundred times a second by default."""
    say = (said if said is not None else []).append
    settings = TraceConfig(**{"flush_every_s": 0.01, **config})
    return SpanExporter(settings, lambda: exporter, lambda *words: say(words), Random(1), dict)


def request(of: SpanExporter, name: str = "r", **changes: object) -> RequestDone:
    """The end of a request that has a place."""
    return done(request_id=name, trace=of.start_trace(None), **changes)


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what the thread does."""
    pause = threading.Event()
    for _ in range(500):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def test_exporter_close_sends_queued_requests() -> None:
    """Every traced request, once, and then the exporter is closed."""
    exporter = Kept()
    sink = tracing(exporter)
    sink.start()
    for number in range(600):
        handle_facts(sink, [request(sink, f"{number},")])
    sink.close(5)
    assert b"".join(exporter.sent) == b"".join(f"{number},".encode() for number in range(600))
    assert (sink.n_sent, sink.n_dropped, sink.n_refused, exporter.is_closed) == (600, 0, 0, True)


def test_only_sampled_requests_are_queued() -> None:
    """Not those without a place, not those of a caller that decided against it, no other fact."""
    exporter = Kept()
    sink = tracing(exporter, sample=0.0)
    sink.start()
    sampled, unsampled = (parse_traceparent(CALLER.format(flags=flags)) for flags in ("01", "00"))
    for trace in (None, sink.start_trace(None), sink.start_trace(unsampled), sampled):
        handle_facts(sink, [done(trace=trace)])
    handle_facts(sink, [AttemptDone("m", "u", 0, 1, Outcome.SUCCESS)])
    handle_facts(sink, [done(trace=sink.start_trace(sampled))])
    sink.close(5)
    (kept,) = exporter.requests
    assert kept.trace is not None
    assert kept.trace.parent_id == "1234567890123456"


def test_exporter_full_queue_drops_oldest() -> None:
    """While a collector takes its time, a bounded number of requests waits for it."""
    exporter = Kept()
    exporter.may_send.clear()
    sink = tracing(exporter, max_pending=10)
    sink.start()
    handle_facts(sink, [request(sink, "first,")])
    assert exporter.has_been_asked.wait(5)
    for number in range(25):
        handle_facts(sink, [request(sink, f"{number},")])
    exporter.may_send.set()
    sink.close(5)
    assert b"".join(exporter.sent) == b"first," + b"".join(f"{number},".encode() for number in range(15, 25))
    assert (sink.n_sent, sink.n_dropped) == (11, 15)


def test_exporter_collector_down_retries_and_logs_the_outage_once() -> None:
    """The batch is not lost; the log has the start and the end of the outage."""
    down = ExportResult(can_retry=True, reason="ConnectionRefusedError", retry_after_s=0.1)
    exporter = Kept(down, down, down, TAKEN)
    said: list[tuple[str, str, str]] = []
    sink = tracing(exporter, said)
    sink.start()
    handle_facts(sink, [request(sink, "a")])

    def has_logged() -> bool:
        handle_facts(sink, [done()])  # the loop logs with the next fact
        return bool(said)

    eventually(has_logged)
    eventually(lambda: sink.n_sent == 1)
    sink.close(5)
    assert exporter.sent == [b"a"] * 4
    assert [event for _, event, _ in said] == ["traces_not_taken", "traces_taken_again"]
    assert said[0] == ("warning", "traces_not_taken", "ConnectionRefusedError")


def test_exporter_rejected_batch_is_not_retried() -> None:
    """What a collector will never take is counted and let go."""
    exporter = Kept(ExportResult(400, reason="HTTP 400"), TAKEN)
    said: list[tuple[str, str, str]] = []
    sink = tracing(exporter, said)
    sink.start()
    handle_facts(sink, [request(sink)])
    eventually(lambda: sink.n_refused == 1)
    handle_facts(sink, [request(sink)])
    sink.close(5)
    assert (sink.n_sent, sink.n_refused) == (1, 1)
    assert said == [("warning", "traces_refused", "HTTP 400")]


def test_exporter_unencodable_request_is_skipped() -> None:
    """The few requests of the same part go with it; the thread lives."""
    exporter = Kept()
    sink = tracing(exporter)
    sink.start()
    handle_facts(sink, [request(sink, model="bad")])
    eventually(lambda: sink.n_refused == 1)
    handle_facts(sink, [request(sink, "good")])
    sink.close(5)
    assert exporter.requests[-1].request_id == "good"


def test_exporter_close_gives_up_on_hanging_collector() -> None:
    """Closing gives up when it was told to."""
    exporter = Kept()
    exporter.may_send.clear()
    sink = tracing(exporter)
    sink.start()
    handle_facts(sink, [request(sink)])
    assert exporter.has_been_asked.wait(5)
    sink.close(0.05)
    assert not exporter.is_closed
    exporter.may_send.set()
    eventually(lambda: exporter.is_closed)


def test_exporter_closing_sends_once() -> None:
    """If the collector is down, the last batch is not retried."""
    exporter = Kept(ExportResult(can_retry=True, reason="ConnectionRefusedError"))
    sink = tracing(exporter, flush_every_s=60)
    handle_facts(sink, [request(sink)])
    sink.start()
    sink.close(5)
    assert exporter.sent == [b"r"]
    assert sink.n_refused == 1


def test_exporter_places_request_in_trace() -> None:
    """Under the caller's span where there is one, else at the start of a new trace."""
    sink = tracing(Kept())
    caller = parse_traceparent(CALLER.format(flags="01"))
    assert caller is not None
    own, other = sink.start_trace(caller), sink.start_trace(None)
    assert (own.trace_id, own.parent_id, own.is_sampled) == (caller.trace_id, caller.parent_id, True)
    assert other.parent_id is None
    assert other.trace_id != own.trace_id
    assert isinstance(other, Trace)


@pytest.mark.parametrize("changes", [
    {"endpoint": "localhost:4318"}, {"endpoint": "http://user:pass@host"}, {"endpoint": "http://"}, {"endpoint": "ftp://x"},
    {"endpoint": "http://h:0"}, {"endpoint": "http://h h"}, {"endpoint": "http://h:99999"}, {"sample": 1.5},
    {"sample": -0.1}, {"timeout_s": 0}, {"max_pending": 0}, {"flush_every_s": 0},
])
def test_trace_config_invalid_value_is_refused(changes: dict[str, Any]) -> None:
    """A wrong value names its field and never quotes what may hold a password."""
    with pytest.raises(ValueError, match=next(iter(changes))) as raised:
        TraceConfig(**changes)
    assert "pass" not in str(raised.value).replace("password", "")


@pytest.mark.parametrize(("endpoint", "url"), [
    ("http://c:4318", "http://c:4318/v1/traces"), ("http://c:4318/", "http://c:4318/v1/traces"),
    ("https://c/otlp", "https://c/otlp/v1/traces"), ("https://c/v1/traces", "https://c/v1/traces"),
])
def test_trace_config_url_has_traces_path(endpoint: str, url: str) -> None:
    """OpenTelemetry's base address and its full one both work."""
    assert TraceConfig(endpoint).url == url
