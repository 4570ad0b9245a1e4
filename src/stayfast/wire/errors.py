"""Errors in both directions: an upstream's error response becomes a failure, and an error becomes a response for the client.

Errors are classified by status and machine-readable codes, never by message text. The client gets the upstream's message
only for client errors; messages about quotas, keys or the upstream's own state are for the operator. The gateway's own keys
are removed from everything that an upstream's error carries to clients and logs.

Time to wait before a retry: `retry-after` takes precedence. Without it, a rejection for quota (429) or load (503, 529) may
have the vendor's rate-limit headers; of the limits with nothing left, the last one to reset counts. Google's APIs put the
time into the body (`wire.google_errors`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from math import ceil, isfinite
from typing import Any, Final, Literal

import msgspec

from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.core.errors import Fault, Shed, StayfastError, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api
from stayfast.wire import sse
from stayfast.wire.google_errors import GOOGLE_STATUSES, google_code, google_wait_s, unwrap_list
from stayfast.wire.rate_headers import LIMITS

Json = dict[str, Any]
Vendor = Literal["openai", "anthropic", "google"]

NEVER_RETRY: Final = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "enforced_spend_limit_reached", "contract_spend_limit_reached"})
MAX_PARSED_WAIT_S: Final = 86_400.0  # longer waits are reduced to this

_ANTHROPIC_TYPES: Final = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    409: "conflict_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
    504: "timeout_error", 529: "overloaded_error",
}
_OPENAI_TYPES: Final = {429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error"}
_ANTHROPIC_ONLY: Final = 529
_STATUSES: Final = {
    "invalid_request_error": 400, "context_length_exceeded": 400, "invalid_prompt": 400, "BadRequestError": 400,
    "authentication_error": 401, "invalid_api_key": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "model_not_found": 404, "NotFoundError": 404, "request_too_large": 413,
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "tokens": 429, "requests": 429, "slow_down": 429,
    "ramp_limit_exceeded": 429, "service_unavailable_error": 503, "server_is_overloaded": 503, "timeout_error": 504,
    "overloaded_error": 529, **dict.fromkeys(NEVER_RETRY, 429),
}
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LOGGABLE: Final = re.compile(r"(?=.{1,64}$)(?:[a-z]+(?:[_.][a-z]+)*|(?:[A-Z][a-z]+)+)")  # plain words, which are no key
_ANY: Final = msgspec.json.Decoder()
_CREDENTIALS: Final = frozenset({401, 402, 403, 407})
_RETRIED: Final = frozenset({408, 409, 425, 429})  # the 4xx that the official SDKs retry
_NOT_FOUND: Final = 404
_NO_MODEL: Final = frozenset({  # or no code: not an API server
    "model_not_found", "NotFoundError", "not_found_error", "not_found"})
_NO_RESPONSE: Final = "previous_response_not_found"  # with 400 or 404: another upstream may have stored the response
_TOO_MANY: Final = 429
_LOOP: Final = 508
_OVERLOADED: Final = frozenset({503, 529})
_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION_PART: Final = r"\d{1,15}(?:\.\d{1,15})?(?:h|ms|m|s|us|µs|ns)"
_DURATION: Final = re.compile(rf"(?:{_DURATION_PART})+", re.ASCII)
_AMOUNT: Final = re.compile(r"([\d.]+)(h|ms|m|s|us|µs|ns)", re.ASCII)
_EPOCH_S, _EPOCH_MS = 1e9, 1e12  # a larger number is an instant in seconds, or in milliseconds
_OPENROUTER_RESET: Final = b"X-RateLimit-Reset"
_GOOGLE_WAIT: Final = b"retryDelay"


def encode_error(error: StayfastError, api: Api, request_id: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of the response to a client of `api`."""
    status = _client_status(error, api)
    headers = [("content-type", "application/json")]
    after_s = error.retry_after_s
    if after_s is not None:
        headers.append(("retry-after", str(max(1, ceil(min(after_s, MAX_RETRY_AFTER_S))))))
    is_too_long = after_s is not None and after_s > MAX_RETRY_AFTER_S
    is_once = isinstance(error, UpstreamFailed) and error.is_once
    if is_once or (isinstance(error, UpstreamFailed | Shed) and (error.is_final or is_too_long)):
        headers.append(("x-should-retry", "false"))
    return status, headers, _encode_body(error, api, request_id, status)


def encode_error_event(error: StayfastError, api: Api, request_id: str, summary: AnswerSummary | None = None) -> bytes:
    """The last event of a stream that fails after it has begun; no `[DONE]` follows. For responses the error is flat, as
    documented, and nested, which makes the official SDK raise.
    """
    fields = _error_fields(error, api, _client_status(error, api))
    if api.is_anthropic:
        return sse.encode_event(msgspec.json.encode(_wrap_for_anthropic(fields, request_id)), "error")
    if api is Api.RESPONSES:
        flat = {"type": "error", "code": fields["code"], "message": fields["message"], "param": fields["param"],
                "sequence_number": 0 if summary is None else summary.n_events, "error": fields}
        return sse.encode_event(msgspec.json.encode(flat), "error")
    return sse.encode_event(msgspec.json.encode({"error": fields}))


def _client_status(error: StayfastError, api: Api) -> int:
    return 503 if error.status == _ANTHROPIC_ONLY and not api.is_anthropic else error.status


def _encode_body(error: StayfastError, api: Api, request_id: str, status: int) -> bytes:
    if isinstance(error, UpstreamFailed) and error.body:
        details = parse_error_body(error.body)
        if details.message and details.vendor == _vendor_of(api):
            return error.body
    fields = _error_fields(error, api, status)
    return msgspec.json.encode(_wrap_for_anthropic(fields, request_id) if api.is_anthropic else {"error": fields})


def _error_fields(error: StayfastError, api: Api, status: int) -> Json:
    details = parse_error_body(error.body) if isinstance(error, UpstreamFailed) and error.body else ErrorDetails()
    fields: Json = {"message": details.message or error.message, "type": _error_type(error, api, status)}
    if not api.is_anthropic:
        fields |= {"param": details.param or error.param, "code": details.code or error.code}
    return fields


def _wrap_for_anthropic(fields: Json, request_id: str) -> Json:
    return {"type": "error", "error": {"type": fields["type"], "message": fields["message"]}, "request_id": request_id}


def _error_type(error: StayfastError, api: Api, status: int) -> str:
    is_client_error = status < 500  # HTTP's 4xx
    if api.is_anthropic:
        return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if is_client_error else "api_error")
    if error.code == "insufficient_quota":
        return error.code
    return _OPENAI_TYPES.get(status, "invalid_request_error" if is_client_error else "server_error")


def _vendor_of(api: Api) -> Vendor:
    return "anthropic" if api.is_anthropic else "openai"


def failure_of_response(upstream: str, source: Api, status: int, headers: Mapping[str, str], body: bytes, *,
                  now_wall: float | None = None) -> UpstreamFailed:
    """The failure for an HTTP response of status 300 or more. `headers` have lower-case names; `now_wall`: seconds since the
    epoch, without which a date or instant as reset time is ignored. A 4xx is final and keeps the upstream's message, except
    for credentials and quotas.
    """
    details, vendor = parse_error_body(body), _vendor_of(source)
    if details.vendor == "google":
        status = GOOGLE_STATUSES.get(details.code or "", status)  # a refused key has the status of a bad request
    client_body = body if details.message and details.vendor == vendor else encode_error_body(details, vendor)
    after_s = parse_retry_after_s(status, headers, body, now_wall)
    return make_failure(upstream, Fault.STATUS, status, details, client_body, retry_after_s=after_s,
                  is_final=headers.get("x-should-retry") == "false")


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """The fields of an error body of either vendor. `codes`: its machine-readable codes, the most specific first."""

    message: str = ""
    type: str | None = None
    code: str | None = None
    param: str | None = None
    codes: tuple[str, ...] = ()
    http_status: int | None = None  # vLLM sends it as the code
    vendor: Vendor | None = None  # whose format it has; None: neither


def read_error_details(parsed: object) -> ErrorDetails:
    """Read an error in any known format: nested, flat, Anthropic's, vLLM's, Google's. Never raises."""
    parsed = unwrap_list(parsed)
    if not isinstance(parsed, Mapping):
        return ErrorDetails(parsed if isinstance(parsed, str) else "")
    inner = parsed.get("error")
    if isinstance(inner, Mapping) and (google := google_code(inner)) is not None:
        message = inner.get("message")
        return ErrorDetails(message if isinstance(message, str) else "", code=google, codes=(google,),
                            http_status=GOOGLE_STATUSES[google], vendor="google")
    fields = inner if isinstance(inner, Mapping) else parsed
    details = fields.get("details")
    exact = details.get("error_code") if isinstance(details, Mapping) else None
    code = fields.get("code")
    number = code if isinstance(code, int) else (
        int(code) if isinstance(code, str) and len(code) == 3 and code.isdecimal() else None)
    message = inner if isinstance(inner, str) else fields.get("message")
    return ErrorDetails(
        message=message if isinstance(message, str) else "",
        type=_code_or_none(fields.get("type")),
        code=_code_or_none(exact) or (None if number is not None else _code_or_none(code)),
        param=param if isinstance(param := fields.get("param"), str) else None,
        codes=tuple(word for value in (exact, code, fields.get("type")) if (word := _code_or_none(value)) is not None),
        http_status=number if number is not None and 400 <= number <= 599 else None,
        vendor=None if not isinstance(inner, Mapping) else (
            "anthropic" if parsed.get("type") == "error" and "sequence_number" not in parsed else "openai"),
    )


def encode_error_body(details: ErrorDetails, vendor: Vendor) -> bytes:
    """Encode an error body in a vendor's format; empty without a message."""
    if not details.message:
        return b""
    fields = {"message": details.message, "type": details.type or "invalid_request_error"}
    if vendor == "anthropic":
        return msgspec.json.encode({"type": "error", "error": fields})
    return msgspec.json.encode({"error": fields | {"param": details.param, "code": details.code}})


def parse_error_body(body: bytes) -> ErrorDetails:
    """Read the body of an error response. Never raises."""
    try:
        return read_error_details(_ANY.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorDetails()


def _code_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and _CODE.fullmatch(value) else None


def in_band_failure(upstream: str, parsed: object) -> UpstreamFailed:
    """The failure for an error inside an HTTP 200. `parsed`: the event or body."""
    details = read_error_details(parsed)
    status = details.http_status or next((_STATUSES[word] for word in details.codes if word in _STATUSES), 500)
    vendor: Vendor = "anthropic" if details.vendor == "anthropic" else "openai"
    return make_failure(upstream, Fault.IN_BAND, status, details, encode_error_body(details, vendor),
                        retry_after_s=google_wait_s(parsed) if details.vendor == "google" else None)


def find_in_band_failure(upstream: str, body: bytes) -> UpstreamFailed | None:
    """The failure for the body of an HTTP 200 that is an error; None for any other body."""
    try:
        parsed = _ANY.decode(body)
    except msgspec.DecodeError:
        return None
    return in_band_failure(upstream, parsed) if isinstance(parsed, dict) and "error" in parsed else None


def make_failure(upstream: str, fault: Fault, status: int, details: ErrorDetails, body: bytes, *,
           retry_after_s: float | None = None, is_final: bool = False) -> UpstreamFailed:
    """The failure for an error with an HTTP status, sent or derived. `body` is kept only if the client gets it. Message and
    code are logged, so they contain an upstream's code only if that cannot be a key.
    """
    code = next((candidate for candidate in (details.code, details.type) if candidate is not None
                 and _LOGGABLE.fullmatch(candidate)), None)
    what = f"answered {status}" if fault is Fault.STATUS else f"sent error {status} inside its answer"
    error = UpstreamFailed(
        upstream, fault, f"upstream {upstream} {what}" + (f" ({code})" if code else ""),
        upstream_status=status, retry_after_s=retry_after_s,
        is_final=is_final or not NEVER_RETRY.isdisjoint(details.codes) or _is_client_error(status),
    )
    error.status = status if _is_client_error(status) or status == _TOO_MANY or status in _OVERLOADED else 502
    error.is_model_missing = (
        status == _NOT_FOUND and (not details.codes or not _NO_MODEL.isdisjoint(details.codes))
    ) or (_is_client_error(status) and _NO_RESPONSE in details.codes)
    if status == _LOOP:
        error.status, error.code, error.is_final = status, "loop_detected", True
        error.message = f"upstream {upstream} answered 508: its base_url leads back to a gateway of this request"
    elif status in _CREDENTIALS:
        error.message = f"upstream {upstream} rejected the gateway's credentials"
        error.code = "upstream_credentials"
    elif _is_client_error(status):
        error.body = body
        error.param = details.param
        error.kind = "invalid_request_error"
        error.code = code or "upstream_rejected"
    elif status == _TOO_MANY:
        error.kind = "rate_limit_error"
        error.code = next((word for word in details.codes if word in NEVER_RETRY), "rate_limit_exceeded")
    elif status in _OVERLOADED:
        error.kind = "overloaded_error"
    return error


def _is_client_error(status: int) -> bool:
    return 400 <= status < 500 and status not in _CREDENTIALS and status not in _RETRIED


def malformed_answer(upstream: str, what: str) -> UpstreamFailed:
    """The failure for an answer that violates the protocol. `what`: a noun phrase; must not quote the answer."""
    return UpstreamFailed(upstream, Fault.MALFORMED, f"upstream {upstream} sent {what}")


def truncated_answer(upstream: str) -> UpstreamFailed:
    return UpstreamFailed(upstream, Fault.TRUNCATED, f"upstream {upstream} ended its answer before it was complete")


def parse_retry_after_s(status: int, headers: Mapping[str, str], body: bytes, now_wall: float | None) -> float | None:
    """Seconds to wait before a retry, at most a day; None if unknown. Never raises. `headers` have lower-case names.
    `now_wall`: seconds since the epoch; without it dates and instants are ignored.
    """
    after_s = _parse_retry_after_s(headers, now_wall)
    if after_s is not None or (status != _TOO_MANY and status not in _OVERLOADED):
        return after_s
    reset_s = _last_reset_s(headers, now_wall)
    if reset_s is None and _GOOGLE_WAIT in body:
        return _google_reset_s(body)
    return reset_s if reset_s is not None or _OPENROUTER_RESET not in body else _openrouter_reset_s(body, now_wall)


def _parse_retry_after_s(headers: Mapping[str, str], now_wall: float | None) -> float | None:
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        number = _non_negative(headers.get(name, ""))
        if number is not None:
            return min(number * unit_s, MAX_PARSED_WAIT_S)
    if now_wall is None or "retry-after" not in headers:
        return None
    try:
        at = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (ValueError, OverflowError):
        return None
    return _remaining_s(at, now_wall)


def _last_reset_s(headers: Mapping[str, str], now_wall: float | None) -> float | None:
    """The latest reset of the exhausted limits; of all limits if no header has a remaining amount."""
    resets = [(headers.get(left), headers[reset]) for _, left, _, reset, _ in LIMITS if reset in headers]
    if any(left is not None for left, _ in resets):
        resets = [(left, reset) for left, reset in resets if left is not None and _non_negative(left) == 0]
    waits_s = (_parse_reset_s(reset, now_wall) for _, reset in resets)
    return max((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _google_reset_s(body: bytes) -> float | None:
    try:
        wait_s = google_wait_s(_ANY.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return min(wait_s, MAX_PARSED_WAIT_S) if wait_s is not None else None


def _openrouter_reset_s(body: bytes, now_wall: float | None) -> float | None:
    """OpenRouter puts the upstream's headers inside the error."""
    try:
        parsed: Any = _ANY.decode(body)
        for name in ("error", "metadata", "headers"):
            parsed = parsed[name]
        reset = parsed["X-RateLimit-Reset"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return _parse_reset_s(str(reset), now_wall)


def _parse_reset_s(text: str, now_wall: float | None) -> float | None:
    """Parse a Go duration, a number of seconds, an instant in seconds or milliseconds since the epoch, or RFC 3339."""
    number = _non_negative(text)
    if number is not None:
        if number < _EPOCH_S:
            return min(number, MAX_PARSED_WAIT_S)
        return _remaining_s(number if number < _EPOCH_MS else number / 1e3, now_wall)
    text = text.strip()
    if _DURATION.fullmatch(text):
        return min(sum(float(amount) * _UNITS_S[unit] for amount, unit in _AMOUNT.findall(text)), MAX_PARSED_WAIT_S)
    try:
        at = datetime.fromisoformat(text)
        return _remaining_s(at.timestamp(), now_wall) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _remaining_s(at_wall: float, now_wall: float | None) -> float | None:
    return None if now_wall is None else min(max(0.0, at_wall - now_wall), MAX_PARSED_WAIT_S)


def _non_negative(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


MIN_SECRET_LENGTH: Final = 8  # a shorter value is not treated as a key: removing common words would garble messages
_REDACTED: Final = "[redacted]"


class Secrets:
    """The keys and header values of one upstream, to be removed from its errors. Immutable."""

    __slots__ = ("_texts",)

    def __init__(self, values: Iterable[str]) -> None:
        """Each word of a value such as `Bearer ...` counts as well, because an upstream may quote only the key."""
        words = {word for value in values for word in (value, *value.split()) if len(word) >= MIN_SECRET_LENGTH}
        self._texts = sorted(words, key=len, reverse=True)  # longest first: a value may contain another

    def redact_failure(self, failed: UpstreamFailed) -> UpstreamFailed:
        """Replace the secrets in all texts of the failure; returns the failure."""
        if self._texts:
            failed.message = self._redact(failed.message)
            failed.code = self._redact(failed.code)
            if failed.param is not None:
                failed.param = self._redact(failed.param)
            if failed.body:
                failed.body = self._redact_json(failed.body)
        return failed

    def _redact(self, text: str) -> str:
        for secret in self._texts:
            text = text.replace(secret, _REDACTED)
        return text

    def _redact_json(self, body: bytes) -> bytes:
        if b"\\" in body:  # a secret can be escaped in many ways: re-encode the body in msgspec's form
            try:
                body = msgspec.json.encode(_ANY.decode(body))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return b""  # not valid JSON: it contains no readable message
        for secret in self._texts:
            body = body.replace(msgspec.json.encode(secret)[1:-1], _REDACTED.encode())
        return body
