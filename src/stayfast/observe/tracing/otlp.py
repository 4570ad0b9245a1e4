"""Spans of requests, sent by OTLP over HTTP in protobuf (https://opentelemetry.io/docs/specs/otlp/).

Imported only with tracing on. A request becomes a SERVER span, each stage an INTERNAL one, each upstream call a CLIENT one.
Uses the messages of opentelemetry-proto directly: OpenTelemetry's SDK takes six times as long (docs/traces.md).
"""

import http.client
import ssl
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Protocol
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, SpanFlags, Status

from stayfast.core.events import AttemptDone, RequestDone, RequestParams, Trace
from stayfast.core.steps import StepDone
from stayfast.core.types import Usage
from stayfast.observe.tracing.config import INVOKE_AGENT, OPERATIONS, PATHS, STEPS, Peer, TraceConfig, error_type, is_turn
from stayfast.observe.tracing.exporter import ExportResult

MAX_NAME_CHARS = 128  # of names that clients choose
CLIENT_LEFT = 499
_NO_PEER = Peer("")
_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_SAMPLED, _RANDOM = 1, 2

Value = str | float | None  # int and bool keep their types


class SpanEncoder:
    """Converts requests to spans. `about`: attributes of this process. For one thread."""

    def __init__(self, about: Mapping[str, Value], version: str, rng: Random) -> None:
        self._about = about
        self._version = version
        self._rng = rng

    def encode(self, requests: Iterable[RequestDone], peers: Mapping[str, Peer]) -> bytes:
        """An OTLP message; messages can be concatenated. `peers`: by upstream."""
        message = ExportTraceServiceRequest()
        group = message.resource_spans.add()
        _put(group.resource.attributes, self._about)
        scope = group.scope_spans.add()
        scope.scope.name = "stayfast"
        scope.scope.version = self._version
        for request in requests:
            if request.trace is not None:
                self._add_request(scope, request, request.trace, peers)
        encoded: bytes = message.SerializeToString()
        return encoded

    def _add_request(self, scope: ScopeSpans, done: RequestDone, trace: Trace, peers: Mapping[str, Peer]) -> None:
        # one clock difference for all spans of a request, so that they nest exactly
        wall_ns = int(done.wall_at * 1e9) - int(done.ended_at * 1e9)
        own_id = bytes.fromhex(trace.span_id)
        builder = _SpanBuilder(scope, trace, wall_ns)
        parent_id = bytes.fromhex(trace.parent_id) if trace.parent_id is not None else None
        root = builder.span(f"POST {PATHS[done.api]}", Span.SPAN_KIND_SERVER, done.accepted_at, done.ended_at,
                            span_id=own_id, parent_id=parent_id)
        if trace.parent_id is not None:
            root.flags |= _REMOTE
        _describe_request(root, done)
        for stage in done.stages:
            span = builder.span(stage.stage._value_, Span.SPAN_KIND_INTERNAL, stage.began_at, stage.ended_at,
                             span_id=self._new_id(), parent_id=own_id)
            _add(span.attributes, "stayfast.allowance_ms", stage.allowance_s * 1e3)
            if stage.ended_at - stage.began_at > stage.allowance_s:
                _add(span.attributes, "stayfast.over", True)
        for attempt in done.attempts:
            span_id = bytes.fromhex(attempt.span_id) if attempt.span_id is not None else self._new_id()
            name = f"{OPERATIONS[attempt.api]} {attempt.model[:MAX_NAME_CHARS]}"
            kind: Span.SpanKind.ValueType = Span.SPAN_KIND_CLIENT
            if is_turn(attempt):  # runs in this process, or in one that receives the trace context
                name, kind = f"{INVOKE_AGENT} {attempt.upstream}", Span.SPAN_KIND_INTERNAL
            span = builder.span(name, kind, attempt.began_at, attempt.ended_at, span_id=span_id, parent_id=own_id)
            _describe_attempt(span, attempt, peers.get(attempt.upstream, _NO_PEER), is_stream=done.stream)
            _describe_params(span, done.params)
            builder.add_events(span, attempt)
            if attempt.steps:
                self._add_steps(builder, attempt.steps, span_id)

    def _add_steps(self, builder: "_SpanBuilder", steps: Iterable[StepDone], below: bytes) -> None:
        ids: list[bytes] = []
        for step in steps:
            ids.append(self._new_id())
            parent_id = ids[step.parent] if step.parent >= 0 else below
            operation = STEPS.get(step.kind)
            name = f"{operation} {step.name}" if operation is not None else step.name
            _describe_step(builder.span(name, Span.SPAN_KIND_INTERNAL, step.began_at, step.ended_at, span_id=ids[-1],
                                     parent_id=parent_id), step)

    def _new_id(self) -> bytes:
        return (self._rng.getrandbits(64) or 1).to_bytes(8, "big")


class _SpanBuilder:
    """Adds spans of one request, with their common fields."""

    __slots__ = ("_flags", "_scope", "_state", "_trace_id", "_wall_ns")

    def __init__(self, scope: ScopeSpans, trace: Trace, wall_ns: int) -> None:
        self._scope = scope
        self._trace_id = bytes.fromhex(trace.trace_id)
        self._state = trace.state
        self._flags = _LOCAL | _SAMPLED | (_RANDOM if trace.is_random else 0)
        self._wall_ns = wall_ns

    def span(self, name: str, kind: Span.SpanKind.ValueType, began_at: float, ended_at: float, *, span_id: bytes,
             parent_id: bytes | None) -> Span:
        added: Span = self._scope.spans.add()
        added.trace_id = self._trace_id
        added.span_id = span_id
        if parent_id is not None:
            added.parent_span_id = parent_id
        added.name = name
        added.kind = kind
        added.start_time_unix_nano = self._wall_ns + int(began_at * 1e9)
        added.end_time_unix_nano = self._wall_ns + int(ended_at * 1e9)
        added.flags = self._flags
        if self._state:
            added.trace_state = self._state
        return added

    def add_events(self, span: Span, attempt: AttemptDone) -> None:
        if attempt.ttft_s is not None:
            first_at = attempt.began_at + attempt.ttft_s
            span.events.add(name="first_token", time_unix_nano=self._wall_ns + int(first_at * 1e9))
            if attempt.is_hedge:
                span.events.add(name="hedge_won", time_unix_nano=self._wall_ns + int(first_at * 1e9))
        for stall in attempt.stalls:
            event = span.events.add(name="stall", time_unix_nano=self._wall_ns + int(stall.at * 1e9))
            _add(event.attributes, "stayfast.stall_ms", stall.seconds * 1e3)


def _describe_request(span: Span, done: RequestDone) -> None:
    is_left, is_error = done.status == CLIENT_LEFT, done.status >= 500
    costs_usd = [attempt.cost_usd for attempt in done.attempts if attempt.cost_usd is not None]
    _put(span.attributes, {
        "http.request.method": "POST", "http.route": PATHS[done.api], "url.path": PATHS[done.api], "url.scheme": "http",
        "http.response.status_code": None if is_left else done.status,
        "error.type": done.error if is_left or is_error else None,  # by convention, a 4xx is not a server error
        "stayfast.request_id": done.request_id, "stayfast.route": done.route, "stayfast.model": done.model[:MAX_NAME_CHARS],
        "stayfast.stream": done.stream, "stayfast.upstream": done.upstream, "stayfast.attempts": done.n_attempts,
        "stayfast.cache": done.cache,
        "stayfast.error": done.error, "stayfast.tenant": done.tenant, "stayfast.degraded": done.degraded,
        "stayfast.over_stage": done.over_stage._value_ if done.over_stage is not None else None,
        "stayfast.queue_ms": _ms(done.queue_s), "stayfast.budget_ms": _ms(done.total_s),
        "stayfast.ttft_ms": _ms(done.ttft_s), "stayfast.tpot_ms": _ms(done.tpot_s),
        "stayfast.cost_usd": sum(costs_usd) if costs_usd else None,
    })
    if is_error:
        _fail(span, done.error)


def _describe_step(span: Span, step: StepDone) -> None:
    operation = STEPS.get(step.kind)
    _put(span.attributes, {
        "gen_ai.operation.name": operation, "gen_ai.tool.name": step.name if step.kind == "tool" else None,
        "stayfast.step.result": step.outcome, "stayfast.allowance_ms": step.allowance_s * 1e3,
        "stayfast.over": True if step.broke_budget else None, "stayfast.cost_usd": step.cost_usd,
    })
    if step.outcome in ("timeout", "failed"):
        _add(span.attributes, "error.type", step.outcome)
        _fail(span, step.detail)


def _describe_params(span: Span, params: RequestParams | None) -> None:
    if params is not None:
        _put(span.attributes, {f"gen_ai.request.{name.replace('choice_count', 'choice.count')}": value
                               for name, value in msgspec.structs.asdict(params).items()})


def _describe_attempt(span: Span, done: AttemptDone, peer: Peer, *, is_stream: bool) -> None:
    usage = done.usage or Usage()
    error = error_type(done)
    _put(span.attributes, {
        "gen_ai.operation.name": INVOKE_AGENT if is_turn(done) else OPERATIONS[done.api],
        "gen_ai.agent.name": done.upstream if is_turn(done) else None, "gen_ai.provider.name": peer.provider or done.kind,
        "gen_ai.request.model": done.model[:MAX_NAME_CHARS], "gen_ai.request.stream": True if is_stream else None,
        "gen_ai.response.id": done.response_id, "gen_ai.response.model": done.response_model,
        "gen_ai.response.time_to_first_chunk": done.ttft_s if is_stream else None,
        "gen_ai.usage.input_tokens": usage.input_total if done.usage is not None else None,
        "gen_ai.usage.output_tokens": usage.output if done.usage is not None else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_read or None,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_5m + usage.cache_write_1h or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning or None,
        "server.address": peer.host, "server.port": peer.port, "error.type": error,
        "stayfast.upstream": done.upstream, "stayfast.attempt": done.n_attempt, "stayfast.cost_usd": done.cost_usd,
        "stayfast.attempt.role": done.role, "stayfast.attempt.lost": True if done.is_lost else None,
        "stayfast.usage.estimated": True if done.is_estimated else None,
    })
    if done.finish_reason is not None:
        reasons = span.attributes.add()
        reasons.key = "gen_ai.response.finish_reasons"
        reasons.value.array_value.values.add(string_value=done.finish_reason)
    if error is not None:
        _fail(span, error)


def _fail(span: Span, message: str | None) -> None:
    span.status.code = Status.STATUS_CODE_ERROR
    span.status.message = message or ""


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


class _Attributes(Protocol):
    """Protobuf's repeated field of attributes."""

    def add(self) -> KeyValue: ...


def _put(attributes: _Attributes, values: Mapping[str, Value]) -> None:
    for key, value in values.items():
        if value is not None:
            _add(attributes, key, value)


def _add(attributes: _Attributes, key: str, value: str | float) -> None:
    added = attributes.add()
    added.key = key
    if isinstance(value, str):
        added.value.string_value = value
    elif isinstance(value, bool):
        added.value.bool_value = value
    elif isinstance(value, int):
        added.value.int_value = value
    else:
        added.value.double_value = value


_CAN_RETRY = (429, 502, 503, 504)  # by the specification; other statuses are final
_MAX_ANSWER_BYTES = 64 * 1024


class OtlpExporter:
    """Encodes and sends batches over one kept connection. For one thread."""

    def __init__(self, config: TraceConfig, version: str, rng: Random) -> None:
        about = {
            "service.name": config.service_name, "service.version": version,
            "service.instance.id": str(UUID(int=rng.getrandbits(128), version=4)),
            "telemetry.sdk.name": "stayfast", "telemetry.sdk.language": "python", "telemetry.sdk.version": version,
        }
        self._spans = SpanEncoder(about, version, rng)
        self._headers = {"content-type": "application/x-protobuf", "user-agent": f"stayfast/{version}", **config.headers}
        parts = urlsplit(config.url)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")
        host = parts.hostname or ""
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(host, parts.port, timeout=config.timeout_s, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, parts.port, timeout=config.timeout_s)
        self._is_open = False

    def encode(self, requests: Sequence[RequestDone], peers: Mapping[str, Peer]) -> bytes:
        return self._spans.encode(requests, peers)

    def send(self, body: bytes) -> ExportResult:
        """Post a message. Never raises."""
        was_open, verdict = self._is_open, self._post(body)
        if was_open and verdict.status is None:  # the collector may have closed the idle connection
            verdict = self._post(body)
        return verdict

    def close(self) -> None:
        self._connection.close()
        self._is_open = False

    def _post(self, body: bytes) -> ExportResult:
        try:
            self._connection.request("POST", self._target, body, self._headers)
            response = self._connection.getresponse()
            response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return ExportResult(can_retry=True, reason=type(error).__name__)
        self._is_open = response.isclosed() and not response.will_close
        if not self._is_open:
            self.close()
        status = response.status
        if 200 <= status < 300:
            return ExportResult(status, is_taken=True)
        after = response.headers.get("retry-after", "")  # seconds only; with a date the default back-off applies
        return ExportResult(status, can_retry=status in _CAN_RETRY, reason=f"HTTP {status}",
                       retry_after_s=float(after) if after.isascii() and after.isdigit() else None)
