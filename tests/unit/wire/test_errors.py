"""Errors out in each dialect, and upstreams' errors in."""

import json
from typing import Any

import pytest

from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Stage
from stayfast.wire.errors import encode_error, encode_error_event, failure_of_response, in_band_failure
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import STREAMS, events, request

OPENAI_ERROR = {"error": {"message": "No such thing", "type": "invalid_request_error", "param": "tools", "code": "nope"}}
ANTHROPIC_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "No such thing"},
                   "request_id": "req_up"}


def shown(error: StayfastError, api: Api) -> tuple[int, dict[str, str], dict[str, Any]]:
    """The response to a client."""
    status, headers, body = encode_error(error, api, "req-1")
    return status, dict(headers), json.loads(body)


@pytest.mark.parametrize(("error", "status", "openai_type", "anthropic_type"), [
    (Rejected("m"), 400, "invalid_request_error", "invalid_request_error"),
    (Rejected("m", status=401), 401, "invalid_request_error", "authentication_error"),
    (Rejected("m", status=404), 404, "invalid_request_error", "not_found_error"),
    (Rejected("m", status=413), 413, "invalid_request_error", "request_too_large"),
    (Rejected("m", status=415), 415, "invalid_request_error", "invalid_request_error"),
    (Shed("m", status=429), 429, "rate_limit_error", "rate_limit_error"),
    (Shed("m"), 503, "service_unavailable_error", "overloaded_error"),
    (DeadlineExceeded(Stage.CALL, "first_token_s", 2.5), 504, "timeout_error", "timeout_error"),
    (UpstreamFailed("up", Fault.RESET, "m"), 502, "server_error", "api_error"),
    (StayfastError("m"), 500, "server_error", "api_error")])
def test_render_each_error_in_both_formats(error: StayfastError, status: int, openai_type: str, anthropic_type: str) -> None:
    """Status, type, message, code and param are where each SDK expects them."""
    assert shown(error, Api.CHAT) == (status, {"content-type": "application/json"}, {"error": {
        "message": error.message, "type": openai_type, "param": None, "code": error.code}})
    assert shown(error, Api.MESSAGES) == (status, {"content-type": "application/json"}, {
        "type": "error", "error": {"type": anthropic_type, "message": error.message}, "request_id": "req-1"})


def test_render_retry_headers() -> None:
    """Retry-After is whole seconds, at least one; final failures set x-should-retry."""
    assert shown(Shed("m", retry_after_s=0.2), Api.CHAT)[1]["retry-after"] == "1"
    assert shown(Shed("m", retry_after_s=2.1), Api.CHAT)[1]["retry-after"] == "3"
    final = UpstreamFailed("up", Fault.STATUS, "m", is_final=True)
    assert shown(final, Api.CHAT)[1]["x-should-retry"] == "false"
    assert "x-should-retry" not in shown(Shed("m"), Api.CHAT)[1]


def test_render_long_wait_forbids_a_retry() -> None:
    """If an upstream demands ten minutes, the client must neither wait so long nor retry earlier."""
    for after, said in (("600", ("60", "false")), ("60", ("60", None)), ("59.5", ("60", None))):
        error = failure_of_response("up", Api.CHAT, 429, {"retry-after": after}, b"")
        headers = shown(error, Api.CHAT)[1]
        assert (headers["retry-after"], headers.get("x-should-retry")) == said
        assert error.can_retry


def test_from_response_404_depends_on_the_missing_thing() -> None:
    """A missing model or API may exist on another upstream; any other 404 is the client's error."""
    for said, is_missing in (({"error": {"code": "model_not_found", "message": "m"}}, True),
                             ({"object": "error", "type": "NotFoundError", "code": 404, "message": "m"}, True),
                             ({"type": "error", "error": {"type": "not_found_error", "message": "m"}}, True),
                             ({"detail": "Not Found"}, True), ({"error": {"code": "response_not_found"}}, False)):
        error = failure_of_response("up", Api.CHAT, 404, {}, json.dumps(said).encode())
        assert (error.is_model_missing, error.can_retry, error.is_final, error.status) == (is_missing, is_missing, True, 404)
    assert not failure_of_response("up", Api.CHAT, 400, {}, b'{"error": {"code": "model_not_found"}}').is_model_missing
    for status, is_missing in ((400, True), (404, True), (500, False)):  # OpenAI says 400
        error = failure_of_response("up", Api.RESPONSES, status, {}, b'{"error": {"code": "previous_response_not_found"}}')
        assert error.is_model_missing == is_missing


def test_render_names_the_param() -> None:
    """OpenAI clients get the path of the field as `param`."""
    assert shown(Rejected("m", param="messages[0].role"), Api.RESPONSES)[2]["error"]["param"] == "messages[0].role"


@pytest.mark.parametrize(("status", "client_status", "code", "is_final"), [
    (400, 400, "nope", True), (404, 404, "nope", True), (413, 413, "nope", True), (422, 422, "nope", True),
    (401, 502, "upstream_credentials", False), (402, 502, "upstream_credentials", False),
    (403, 502, "upstream_credentials", False), (408, 502, "upstream_status", False),
    (409, 502, "upstream_status", False), (429, 429, "rate_limit_exceeded", False), (500, 502, "upstream_status", False),
    (503, 503, "upstream_status", False), (504, 502, "upstream_status", False), (529, 529, "upstream_status", False),
    (302, 502, "upstream_status", False)])
def test_from_response_status_classes(status: int, client_status: int, code: str, is_final: bool) -> None:
    """Which status a client sees, and whether another attempt may help."""
    error = failure_of_response("up", Api.CHAT, status, {}, json.dumps(OPENAI_ERROR).encode())
    assert (error.status, error.code, error.is_final, error.upstream_status) == (client_status, code, is_final, status)
    assert error.fault is Fault.STATUS
    assert ("No such thing" in json.dumps(shown(error, Api.CHAT)[2])) is (status in (400, 404, 413, 422))
    assert "No such thing" not in error.message


@pytest.mark.parametrize(("api", "status"), [(Api.CHAT, 503), (Api.RESPONSES, 503), (Api.MESSAGES, 529)])
def test_render_529_only_for_anthropic_clients(api: Api, status: int) -> None:
    """OpenAI's SDK knows no 529: its clients see 503."""
    error = failure_of_response("up", Api.MESSAGES, 529, {}, b'{"type":"error","error":{"type":"overloaded_error"}}')
    assert shown(error, api)[0] == status


def test_from_response_client_error_keeps_the_upstreams_message() -> None:
    """Verbatim in the same shape; message, code and param in the other one."""
    body = json.dumps(OPENAI_ERROR, indent=2).encode()
    error = failure_of_response("up", Api.CHAT, 400, {}, body)
    assert encode_error(error, Api.RESPONSES, "r")[2] == body
    assert shown(error, Api.MESSAGES)[2] == {
        "type": "error", "error": {"type": "invalid_request_error", "message": "No such thing"}, "request_id": "req-1"}
    body = json.dumps(ANTHROPIC_ERROR).encode()
    error = failure_of_response("up", Api.MESSAGES, 400, {}, body)
    assert encode_error(error, Api.MESSAGES, "r")[2] == body
    assert shown(error, Api.CHAT)[2]["error"]["message"] == "No such thing"


@pytest.mark.parametrize("body", [
    b"", b"<html>bad gateway</html>", b"[]", b"{}", b'{"error": 7}', b'{"detail": "x"}', b"\xff", b"[" * 100_000])
def test_from_response_body_that_is_no_error(body: bytes) -> None:
    """A body in no vendor's format is not shown."""
    error = failure_of_response("up", Api.CHAT, 400, {}, body)
    for api in (Api.CHAT, Api.MESSAGES):
        status, _, said = shown(error, api)
        assert status == 400
        assert said["error"]["message"] == "upstream up answered 400"


@pytest.mark.parametrize(("body", "message"), [
    (b'{"error": "model not loaded"}', "model not loaded"),
    (b'{"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}', "too long"),
    (json.dumps(ANTHROPIC_ERROR).encode(), "No such thing")])
def test_from_response_other_format_is_converted(body: bytes, message: str) -> None:
    """Bare messages, flat errors of engines and the other vendor's shape reach an OpenAI client in OpenAI's."""
    _, _, said = shown(failure_of_response("up", Api.CHAT, 400, {}, body), Api.CHAT)
    assert set(said["error"]) == {"message", "type", "param", "code"}
    assert said["error"]["message"] == message


@pytest.mark.parametrize(("source", "error"), [
    (Api.CHAT, {"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}),
    (Api.CHAT, {"message": "m", "type": "insufficient_quota", "code": "credit_balance_exhausted"}),
    (Api.MESSAGES, {"type": "rate_limit_error", "message": "m", "details": {"error_code": "enforced_spend_limit_reached"}}),
    (Api.MESSAGES, {"type": "rate_limit_error", "message": "m",
                    "details": {"error_code": "contract_spend_limit_reached"}})])
def test_from_response_used_up_quota_is_final(source: Api, error: dict[str, Any]) -> None:
    """By its machine-readable code."""
    failed = failure_of_response("up", source, 429, {}, json.dumps({"type": "error", "error": error}).encode())
    assert (failed.status, failed.is_final) == (429, True)
    assert shown(failed, source)[1]["x-should-retry"] == "false"
    assert "org-" not in str(shown(failed, source))


@pytest.mark.parametrize(("headers", "expected"), [
    ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5), ({"retry-after": "2.5"}, 2.5), ({"retry-after": "900"}, 900.0),
    ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 7.0), ({"retry-after": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0.0),
    ({"retry-after": "soon"}, None), ({"retry-after": "nan"}, None), ({"retry-after": "-3"}, None),
    ({"retry-after-ms": "x", "retry-after": "3"}, 3.0), ({}, None)])
def test_from_response_retry_after(headers: dict[str, str], expected: float | None) -> None:
    """Milliseconds first, then seconds, then a date."""
    error = failure_of_response("up", Api.CHAT, 429, headers, b"", now_wall=784111770.0)
    assert error.retry_after_s == expected


def test_from_response_date_needs_the_clock() -> None:
    """Without now_wall a date is ignored; x-should-retry still counts."""
    headers = {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "x-should-retry": "false"}
    error = failure_of_response("up", Api.CHAT, 503, headers, b"")
    assert (error.retry_after_s, error.is_final) == (None, True)


@pytest.mark.parametrize(("said", "status"), [
    ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, 529),
    ({"type": "error", "error": {"type": "rate_limit_error"}}, 429),
    ({"type": "error", "error": {"type": "api_error"}}, 500), ({"type": "error", "error": {"type": "timeout_error"}}, 504),
    ({"type": "error", "code": "rate_limit_exceeded", "message": "m", "sequence_number": 3}, 429),
    ({"error": {"type": "tokens", "code": "rate_limit_exceeded"}}, 429),
    ({"error": {"type": "service_unavailable_error", "code": "server_is_overloaded"}}, 503),
    ({"error": {"code": 400, "type": "BadRequestError"}}, 400), ({"error": {"code": "503"}}, 503),
    ({"error": "text"}, 500), ({"error": {"code": 7}}, 500), ({}, 500)])
def test_in_band_errors_have_a_status(said: dict[str, Any], status: int) -> None:
    """By type and code, in every shape seen on the wire."""
    error = in_band_failure("up", said)
    assert (error.fault, error.upstream_status) == (Fault.IN_BAND, status)
    assert error.is_final is (status == 400)


def test_failure_messages_quote_no_upstream_text() -> None:
    """Words that are no machine-readable codes stay out of messages, which are logged."""
    error = in_band_failure("up", {"error": {"message": "my prompt", "type": "my prompt", "code": "x" * 100}})
    assert error.message == "upstream up sent error 500 inside its answer"
    assert error.code == "upstream_in_band"


@pytest.mark.parametrize(("source", "n_read"), [("responses_text", 5), ("chat_usage", 2)])
def test_render_event_continues_sequence_numbers(source: str, n_read: int) -> None:
    """The error event of a responses stream has the next number, relayed or translated."""
    recorded = STREAMS[source]
    coder = make_transcoder(recorded.api, request(Api.RESPONSES, stream=True), source_streams=True, upstream="up",
                            created_at=7)
    blocks = [block + b"\n\n" for block in recorded.data.split(b"\n\n")[:n_read]]
    got = b"".join(part.data for block in blocks if (part := coder.feed(block)) is not None)
    got += encode_error_event(UpstreamFailed("up", Fault.RESET, "cut"), Api.RESPONSES, "r", coder.summary)
    numbers = [event["sequence_number"] for event in events(got)]
    assert len(numbers) > n_read
    assert numbers == list(range(len(numbers)))


def test_render_event_format_by_api() -> None:
    """The form that makes each official SDK raise."""
    error = UpstreamFailed("up", Fault.RESET, "cut")
    assert encode_error_event(error, Api.CHAT, "r") == (
        b'data: {"error":{"message":"cut","type":"server_error","param":null,"code":"upstream_reset"}}\n\n')
    assert encode_error_event(error, Api.MESSAGES, "r") == (
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"cut"},"request_id":"r"}\n\n')
    summary = AnswerSummary()
    summary.n_events = 5
    name, data = encode_error_event(error, Api.RESPONSES, "r", summary).split(b"\n")[:2]
    assert name == b"event: error"
    said = json.loads(data[6:])
    assert (said["type"], said["message"], said["sequence_number"]) == ("error", "cut", 5)
    assert said["error"]["code"] == said["code"] == "upstream_reset"
