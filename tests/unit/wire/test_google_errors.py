"""Google's error object."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Api
from stayfast.wire.errors import encode_error, failure_of_response, in_band_failure, parse_retry_after_s
from stayfast.wire.google_errors import google_code, google_wait_s

RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "27.5s"}


def error(status: str, code: int, *details: dict[str, Any]) -> dict[str, Any]:
    """An error body."""
    return {"error": {"code": code, "status": status, "message": "as Google words it", "details": list(details)}}


def quota(quota_id: str) -> dict[str, Any]:
    """The detail of an exhausted quota."""
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota_id}]}


def failed(status: int, body: object, source: Api = Api.GEMINI) -> UpstreamFailed:
    """The failure for this answer."""
    return failure_of_response("gem", source, status, {}, json.dumps(body).encode())


@pytest.mark.parametrize("is_list", [False, True])
def test_failure_of_response_retry_info_is_the_wait(is_list: bool) -> None:
    """The wait is in the body; the OpenAI endpoint of Gemini wraps the error in a list."""
    body: object = error("RESOURCE_EXHAUSTED", 429, quota("GenerateRequestsPerMinutePerProjectPerModel"), RETRY)
    failure = failed(429, [body] if is_list else body)
    assert (failure.retry_after_s, failure.status, failure.is_final) == (27.5, 429, False)
    status, headers, _ = encode_error(failure, Api.CHAT, "req_1")
    assert (status, dict(headers)["retry-after"]) == (429, "28")


def test_failure_of_response_daily_quota_is_not_retried() -> None:
    """Its RetryInfo is a few seconds, but the quota is exhausted until tomorrow."""
    daily = quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier")
    failure = failed(429, error("RESOURCE_EXHAUSTED", 429, daily, RETRY))
    assert (failure.status, failure.code, failure.is_final) == (429, "insufficient_quota", True)


def test_failure_of_response_header_beats_the_body() -> None:
    """A proxy in between may set the header."""
    body = json.dumps(error("UNAVAILABLE", 503, RETRY)).encode()
    assert parse_retry_after_s(503, {"retry-after": "3"}, body, None) == 3
    assert parse_retry_after_s(503, {}, body, None) == 27.5
    assert parse_retry_after_s(500, {}, body, None) is None


def test_failure_of_response_refused_key_is_the_operators_fault() -> None:
    """Google refuses a key with 400, as if the client had sent a bad request."""
    failure = failed(400, error("INVALID_ARGUMENT", 400, {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}))
    assert (failure.upstream_status, failure.status, failure.code, failure.body) == (401, 502, "upstream_credentials", b"")
    assert failed(400, error("FAILED_PRECONDITION", 400)).is_for_operator


@pytest.mark.parametrize("client", [Api.CHAT, Api.MESSAGES])
def test_failure_of_response_bad_request_reaches_the_client_in_its_dialect(client: Api) -> None:
    """Google's form of the error does not."""
    failure = failed(400, error("INVALID_ARGUMENT", 400))
    assert failure.is_final
    _, _, body = encode_error(failure, client, "req_1")
    fields = json.loads(body)["error"]
    assert (fields["message"], fields["type"]) == ("as Google words it", "invalid_request_error")
    assert "status" not in fields


def test_failure_of_response_missing_model_may_exist_elsewhere() -> None:
    """404 NOT_FOUND."""
    assert failed(404, error("NOT_FOUND", 404)).is_model_missing


def test_in_band_failure_google_error_has_status_and_wait() -> None:
    """An error event inside a stream."""
    failure = in_band_failure("gem", error("UNAVAILABLE", 503, RETRY))
    assert (failure.fault, failure.status, failure.retry_after_s) == (Fault.IN_BAND, 503, 27.5)


def test_google_code_other_formats_are_none() -> None:
    """OpenAI's and Anthropic's errors have no such status."""
    assert google_code({"message": "m", "type": "server_error", "code": None}) is None
    assert google_code({"status": "unavailable"}) is None
    assert google_code({"status": 429}) is None
    assert google_code({"status": "UNAVAILABLE", "details": {"error_code": "x"}}) == "unavailable"


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                      | st.dictionaries(st.sampled_from(["error", "details", "status", "retryDelay", "violations",
                                                         "quotaId", "reason"]), inner, max_size=4), max_leaves=12)


@given(VALUES)
def test_google_wait_any_json_never_raises(value: object) -> None:
    """Error bodies are not checked before."""
    google_wait_s(value)
    failed(429, value)
    in_band_failure("gem", value)
