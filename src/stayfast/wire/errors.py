"""The only place where an error becomes bytes, and where an upstream's error response becomes an error."""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import msgspec

from stayfast.core.errors import Fault, Shed, StayfastError, UpstreamFailed
from stayfast.core.types import Api, Sight
from stayfast.wire import sse
from stayfast.wire.faults import MAX_RETRY_AFTER_S, Complaint, Vendor, complaint_in, failed, quoted
from stayfast.wire.resets import retry_after_s

Json = dict[str, Any]

_ANTHROPIC_TYPES: Final = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    409: "conflict_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
    504: "timeout_error", 529: "overloaded_error",
}
_OPENAI_TYPES: Final = {429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error"}
_ANTHROPIC_ONLY: Final = 529


def render(error: StayfastError, api: Api, request_id: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of the answer to a client of `api`."""
    status = _status(error, api)
    headers = [("content-type", "application/json")]
    after_s = error.retry_after_s
    if after_s is not None:
        headers.append(("retry-after", str(max(1, ceil(min(after_s, MAX_RETRY_AFTER_S))))))
    is_too_long = after_s is not None and after_s > MAX_RETRY_AFTER_S
    is_once = isinstance(error, UpstreamFailed) and error.is_once
    if is_once or (isinstance(error, UpstreamFailed | Shed) and (error.is_final or is_too_long)):
        headers.append(("x-should-retry", "false"))
    return status, headers, _body(error, api, request_id, status)


def render_event(error: StayfastError, api: Api, request_id: str, sight: Sight | None = None) -> bytes:
    """The event that ends a stream which has begun. Nothing follows it, no `[DONE]` either.

    For responses the error stands flat, as documented, and nested, which is what the official SDK raises on.
    """
    fields = _fields(error, api, _status(error, api))
    if api.is_anthropic:
        return sse.event(msgspec.json.encode(_anthropic(fields, request_id)), "error")
    if api is Api.RESPONSES:
        flat = {"type": "error", "code": fields["code"], "message": fields["message"], "param": fields["param"],
                "sequence_number": 0 if sight is None else sight.n_events, "error": fields}
        return sse.event(msgspec.json.encode(flat), "error")
    return sse.event(msgspec.json.encode({"error": fields}))


def _status(error: StayfastError, api: Api) -> int:
    return 503 if error.status == _ANTHROPIC_ONLY and not api.is_anthropic else error.status


def _body(error: StayfastError, api: Api, request_id: str, status: int) -> bytes:
    if isinstance(error, UpstreamFailed) and error.body:
        said = complaint_in(error.body)
        if said.message and said.vendor == _vendor(api):
            return error.body
    fields = _fields(error, api, status)
    return msgspec.json.encode(_anthropic(fields, request_id) if api.is_anthropic else {"error": fields})


def _fields(error: StayfastError, api: Api, status: int) -> Json:
    said = complaint_in(error.body) if isinstance(error, UpstreamFailed) and error.body else Complaint()
    fields: Json = {"message": said.message or error.message, "type": _type(error, api, status)}
    if not api.is_anthropic:
        fields |= {"param": said.param or error.param, "code": said.code or error.code}
    return fields


def _anthropic(fields: Json, request_id: str) -> Json:
    return {"type": "error", "error": {"type": fields["type"], "message": fields["message"]}, "request_id": request_id}


def _type(error: StayfastError, api: Api, status: int) -> str:
    is_clients = status < 500  # HTTP's
    if api.is_anthropic:
        return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if is_clients else "api_error")
    if error.code == "insufficient_quota":
        return error.code
    return _OPENAI_TYPES.get(status, "invalid_request_error" if is_clients else "server_error")


def from_response(upstream: str, source: Api, status: int, headers: Mapping[str, str], body: bytes, *,
                  now_wall: float | None = None) -> UpstreamFailed:
    """The failure for an HTTP answer of 300 or more. `headers` have lower-case names; `now_wall`: seconds since the
    epoch, without which a Retry-After that is a date, and other instants, are ignored.

    4xx are final and shown in the upstream's own words (but for its credentials and quotas, which are the operator's).
    """
    said = complaint_in(body)
    said_body = body if said.message and said.vendor == _vendor(source) else quoted(said, _vendor(source))
    after_s = retry_after_s(status, headers, body, now_wall)
    return failed(upstream, Fault.STATUS, status, said, said_body, retry_after_s=after_s,
                  is_final=headers.get("x-should-retry") == "false")


def _vendor(api: Api) -> Vendor:
    return "anthropic" if api.is_anthropic else "openai"
