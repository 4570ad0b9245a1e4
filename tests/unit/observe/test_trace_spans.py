"""observe.tracing.otlp: the tree of spans of a request, decoded from the exported bytes."""

from random import Random

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stayfast.core.events import AttemptDone, Trace
from stayfast.core.types import CLIENT_APIS, COUNT_APIS, Api, Outcome, Usage
from stayfast.observe.tracing.config import Peer, provider_name
from stayfast.observe.tracing.otlp import SpanEncoder
from stayfast.wire.request_body import decode, read_sampling_params
from tests.unit.observe.span_rig import FAILED, TRACE, WON, attributes, exported, request

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


def test_spans_form_a_tree() -> None:
    """A SERVER span under the caller's, and under it one for each stage and for each call, all inside its time."""
    spans = exported(request())
    assert [(KINDS[span.kind], span.name) for span in spans] == [
        ("SERVER", "POST /v1/chat/completions"), ("INTERNAL", "admit"), ("INTERNAL", "call"), ("INTERNAL", "relay"),
        ("CLIENT", "chat gpt-x"), ("CLIENT", "chat claude-x")]
    root, *rest = spans
    assert (root.span_id.hex(), root.parent_span_id.hex()) == (TRACE.span_id, TRACE.parent_id)
    assert {span.trace_id.hex() for span in spans} == {TRACE.trace_id}
    assert {span.trace_state for span in spans} == {"foo=1"}
    assert {span.parent_span_id for span in rest} == {root.span_id}
    assert len({span.span_id for span in spans}) == 6
    assert [span.span_id.hex() for span in spans[-2:]] == ["d" * 16, "e" * 16]
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (1_699_999_999_000_000_000, 1_700_000_000_000_000_000)
    for span in rest:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
    assert spans[1].end_time_unix_nano == spans[2].start_time_unix_nano
    assert (root.flags, spans[1].flags) == (0x303, 0x103)  # the root's parent is remote


def test_root_span_of_new_trace_has_no_parent() -> None:
    """Without a caller's context the request's span is the first."""
    root = exported(request(trace=Trace("a" * 32, "b" * 16)))[0]
    assert root.parent_span_id == b""
    assert root.flags == 0x101


def test_request_span_attributes() -> None:
    """HTTP's own attributes and ours; nothing that has nothing to say."""
    assert attributes(exported(request())[0]) == {
        "http.request.method": "POST", "http.route": "/v1/chat/completions", "url.path": "/v1/chat/completions",
        "url.scheme": "http", "http.response.status_code": 200, "stayfast.request_id": "r", "stayfast.route": "m",
        "stayfast.model": "m", "stayfast.stream": True, "stayfast.upstream": "u", "stayfast.attempts": 2,
        "stayfast.over_stage": "call", "stayfast.queue_ms": 50.0, "stayfast.budget_ms": 30_000.0,
        "stayfast.ttft_ms": 200.0, "stayfast.tpot_ms": 20.0, "stayfast.cost_usd": 0.5}


def test_stage_span_attributes() -> None:
    """Its allowance, and whether it took more."""
    spans = exported(request())
    assert attributes(spans[1]) == {"stayfast.allowance_ms": 5_000.0}
    assert attributes(spans[2]) == {"stayfast.allowance_ms": pytest.approx(200.0), "stayfast.over": True}


def test_successful_call_span_attributes() -> None:
    """OpenTelemetry's GenAI names, with the provider and the address of its upstream."""
    span = exported(request(), peers={"far": Peer("anthropic", "api.anthropic.com", 443)})[-1]
    assert attributes(span) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude-x",
        "gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": 0.2,
        "gen_ai.response.finish_reasons": ["end_turn"], "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 60, "gen_ai.usage.cache_write.input_tokens": 11,
        "gen_ai.usage.reasoning.output_tokens": 7, "server.address": "api.anthropic.com", "server.port": 443,
        "stayfast.upstream": "far", "stayfast.attempt": 2, "stayfast.cost_usd": 0.5, "stayfast.attempt.role": "first"}
    first, stall = span.events
    assert (first.name, first.time_unix_nano - span.start_time_unix_nano) == ("first_token", 200_000_000)
    assert (stall.name, stall.time_unix_nano - span.start_time_unix_nano) == ("stall", 300_000_000)
    assert attributes(stall) == {"stayfast.stall_ms": 300.0}
    assert span.status.code == 0


@pytest.mark.parametrize(("fault", "status", "outcome", "error"), [
    ("status", 503, Outcome.DROPPED, "503"), ("reset", None, Outcome.DROPPED, "reset"),
    ("in_band", 529, Outcome.DROPPED, "in_band"), (None, None, Outcome.IGNORED, "cancelled"),
])
def test_failed_call_span_attributes(fault: str | None, status: int | None, outcome: Outcome, error: str) -> None:
    """error.type is a word of few, and the span's status is an error."""
    attempt = AttemptDone("m", "u", 1.1, 1.2, outcome, None, fault, kind="vllm", model="x", upstream_status=status)
    span = exported(request(attempts=(attempt,), stream=False))[-1]
    assert attributes(span)["error.type"] == error
    assert (span.status.code, span.status.message) == (2, error)
    assert attributes(span)["gen_ai.provider.name"] == "vllm"
    assert "gen_ai.usage.input_tokens" not in attributes(span)
    assert not any(name.startswith("gen_ai.response") for name in attributes(span))


def test_call_span_has_parameters_and_response_model() -> None:
    """Numbers of the request; id and model of the answer; never a stop sequence, which may quote a prompt."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "top_p": 1, "seed": 7,
            "max_tokens": 9, "n": 2, "stop": ["SECRET"], "presence_penalty": 0.25}
    params = read_sampling_params(decode(Api.CHAT, msgspec.json.encode(body)))
    answered = msgspec.structs.replace(WON, response_id="msg_1", response_model="claude-x-2026")
    found = attributes(exported(request(attempts=(answered,), params=params))[-1])
    assert {name: value for name, value in found.items() if name.startswith(("gen_ai.request.", "gen_ai.response."))} == {
        "gen_ai.request.model": "claude-x", "gen_ai.request.stream": True, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0, "gen_ai.request.seed": 7, "gen_ai.request.max_tokens": 9,
        "gen_ai.request.choice.count": 2, "gen_ai.request.presence_penalty": 0.25, "gen_ai.response.id": "msg_1",
        "gen_ai.response.model": "claude-x-2026", "gen_ai.response.finish_reasons": ["end_turn"],
        "gen_ai.response.time_to_first_chunk": 0.2}


def test_lost_hedge_span_has_no_error() -> None:
    """Another one was quicker: its span says so, with an estimate of what it used, and its status is unset."""
    lost = msgspec.structs.replace(FAILED, outcome=Outcome.IGNORED, fault=None, upstream_status=None, is_lost=True,
                                   role="hedge", usage=Usage(100), is_estimated=True)
    span = exported(request(attempts=(lost, WON)))[-2]
    found = attributes(span)
    assert "error.type" not in found
    assert span.status.code == 0
    assert (found["stayfast.attempt.lost"], found["stayfast.attempt.role"], found["stayfast.usage.estimated"]) == (
        True, "hedge", True)


def test_request_span_has_cache_result() -> None:
    """Hit, miss and the like, on the request's span."""
    assert attributes(exported(request(cache="hit"))[0])["stayfast.cache"] == "hit"


@pytest.mark.parametrize(("status", "error", "type_", "code"), [
    (504, "first_token_s_exceeded", "first_token_s_exceeded", 2), (404, "model_not_found", None, 0),
    (499, "client_left", "client_left", 0),
])
def test_failed_request_span_has_error_type(status: int, error: str, type_: str | None, code: int) -> None:
    """By the convention a 4xx is no error of the server's; a client that left got no status at all."""
    root = exported(request(status=status, error=error))[0]
    said = attributes(root)
    assert said.get("error.type") == type_
    assert said["stayfast.error"] == error
    assert root.status.code == code
    assert said.get("http.response.status_code") == (None if status == 499 else status)


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_every_api_has_its_names(api: Api) -> None:
    """Operation and path; of the Anthropic and responses APIs the operation is chat too."""
    attempt = AttemptDone("m", "u", 1.1, 1.2, Outcome.SUCCESS, api=api, kind="openai", model="x")
    root, *_, call = exported(request(api=api, attempts=(attempt,)))
    assert root.name.startswith(("POST /v1/", "POST /tokenize"))
    assert call.name == {Api.COMPLETIONS: "text_completion x", Api.EMBEDDINGS: "embeddings x", Api.RERANK: "rerank x",
                         **dict.fromkeys(COUNT_APIS, "count_tokens x")}.get(api, "chat x")


def test_otlp_messages_can_be_concatenated() -> None:
    """Two messages in a row are one message with the spans of both: how a batch is made in small parts."""
    spans = SpanEncoder({}, "1", Random(1))
    joined = ExportTraceServiceRequest.FromString(spans.encode([request()], {}) + spans.encode([request()], {}))
    assert [len(group.scope_spans[0].spans) for group in joined.resource_spans] == [6, 6]


@pytest.mark.parametrize(("kind", "host", "provider"), [
    ("openai", "api.openai.com", "openai"), ("openai", "api.groq.com", "groq"), ("openai", "127.0.0.1", "openai"),
    ("openai", "my.openai.azure.com", "azure.ai.openai"), ("anthropic", "api.anthropic.com", "anthropic"),
    ("openai", "notapi.x.ai", "openai"), ("openai", "bedrock-runtime.us-east-1.amazonaws.com", "aws.bedrock"),
])
def test_provider_name_by_host(kind: str, host: str, provider: str) -> None:
    """By the host where it is known, else by the protocol."""
    assert provider_name(kind, host) == provider
