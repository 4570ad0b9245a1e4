"""Errors in both directions: an upstream's error response becomes a failure, and an error becomes bytes for the client.

Status and machine-readable words decide, never the wording of a message. Only the client's own faults are shown to it
in the upstream's words: what an upstream says of quotas, keys or its own troubles is the operator's business. The gateway's
own keys are taken out of everything that an upstream's error carries to clients and logs.

How long to wait: Retry-After is meant for this and goes first. Where there is none, a refusal for a quota (429) or for load
(503, 529) names in its vendor's headers when a limit is full again; only limits of which nothing is left count, and of those
the last one.
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

Json = dict[str, Any]
Vendor = Literal["openai", "anthropic"]

NEVER_RETRY: Final = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "enforced_spend_limit_reached", "contract_spend_limit_reached"})
MAX_SAID_S: Final = 86_400.0  # whoever says more means the same: not now

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
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_KEY: Final = re.compile(r"(?=.{1,64}$)(?:[a-z]+(?:[_.][a-z]+)*|(?:[A-Z][a-z]+)+)")  # words alone: what may be logged
_ANY: Final = msgspec.json.Decoder()
_CREDENTIALS: Final = frozenset({401, 402, 403, 407})
_RETRIED: Final = frozenset({408, 409, 425, 429})  # the 4xx that the official SDKs try again
_NOT_FOUND: Final = 404
_NO_MODEL: Final = frozenset({"model_not_found", "NotFoundError", "not_found_error"})  # or no words: it is no API at all
_NO_RESPONSE: Final = "previous_response_not_found"  # with a 400 or a 404: other upstreams have stored others
_TOO_MANY: Final = 429
_LOOP: Final = 508
_OVERLOADED: Final = frozenset({503, 529})
_LIMITS: Final = (  # what is left, and when it is full again
    *((f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}") for what in ("requests", "tokens")),
    *((f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset")
      for what in ("requests", "tokens", "input-tokens", "output-tokens")),
    ("x-ratelimit-remaining", "x-ratelimit-reset"), ("ratelimit-remaining", "ratelimit-reset"))
_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = r"\d{1,15}(?:\.\d{1,15})?(?:h|ms|m|s|us|µs|ns)"
_DURATION: Final = re.compile(rf"(?:{_PART})+", re.ASCII)
_AMOUNT: Final = re.compile(r"([\d.]+)(h|ms|m|s|us|µs|ns)", re.ASCII)
_EPOCH_S, _EPOCH_MS = 1e9, 1e12  # what is more than this counts since 1970
_IN_BODY: Final = b"X-RateLimit-Reset"


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


def render_event(error: StayfastError, api: Api, request_id: str, sight: AnswerSummary | None = None) -> bytes:
    """The event that ends a stream which has begun. Nothing follows it, no `[DONE]` either. For responses the error stands
    flat, as documented, and nested, which is what the official SDK raises on.
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
        complaint = complaint_in(error.body)
        if complaint.message and complaint.vendor == _vendor_of(api):
            return error.body
    fields = _fields(error, api, status)
    return msgspec.json.encode(_anthropic(fields, request_id) if api.is_anthropic else {"error": fields})


def _fields(error: StayfastError, api: Api, status: int) -> Json:
    complaint = complaint_in(error.body) if isinstance(error, UpstreamFailed) and error.body else Complaint()
    fields: Json = {"message": complaint.message or error.message, "type": _type(error, api, status)}
    if not api.is_anthropic:
        fields |= {"param": complaint.param or error.param, "code": complaint.code or error.code}
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


def _vendor_of(api: Api) -> Vendor:
    return "anthropic" if api.is_anthropic else "openai"


def from_response(upstream: str, source: Api, status: int, headers: Mapping[str, str], body: bytes, *,
                  now_wall: float | None = None) -> UpstreamFailed:
    """The failure for an HTTP answer of 300 or more. `headers` have lower-case names; `now_wall`: seconds since the epoch,
    without which a Retry-After that is a date, and other instants, are ignored. 4xx are final and shown in the upstream's
    own words (but for its credentials and quotas, which are the operator's).
    """
    complaint = complaint_in(body)
    shown_body = body if complaint.message and complaint.vendor == _vendor_of(source) else quoted(complaint,
                                                                                                  _vendor_of(source))
    after_s = retry_after_s(status, headers, body, now_wall)
    return failed(upstream, Fault.STATUS, status, complaint, shown_body, retry_after_s=after_s,
                  is_final=headers.get("x-should-retry") == "false")


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error body of either vendor, taken apart. `words` are its machine-readable words, the most exact one first."""

    message: str = ""
    type: str | None = None
    code: str | None = None
    param: str | None = None
    words: tuple[str, ...] = ()
    http_status: int | None = None  # vLLM says it as the code
    vendor: Vendor | None = None  # whose shape it has (None: neither's)


def complaint_of(parsed: object) -> Complaint:
    """Read an error in any known shape: nested, flat, Anthropic's, vLLM's. Never raises."""
    if not isinstance(parsed, Mapping):
        return Complaint(parsed if isinstance(parsed, str) else "")
    inner = parsed.get("error")
    fields = inner if isinstance(inner, Mapping) else parsed
    details = fields.get("details")
    exact = details.get("error_code") if isinstance(details, Mapping) else None
    code = fields.get("code")
    number = code if isinstance(code, int) else _number(code)
    message = inner if isinstance(inner, str) else fields.get("message")
    words = tuple(word for word in (exact, code, fields.get("type")) if isinstance(word, str) and _WORD.fullmatch(word))
    return Complaint(
        message=message if isinstance(message, str) else "",
        type=_word(fields.get("type")),
        code=_word(exact) or (None if number is not None else _word(code)),
        param=param if isinstance(param := fields.get("param"), str) else None,
        words=words,
        http_status=number if number is not None and 400 <= number <= 599 else None,  # HTTP's errors
        vendor=None if not isinstance(inner, Mapping) else (
            "anthropic" if parsed.get("type") == "error" and "sequence_number" not in parsed else "openai"),
    )


def quoted(complaint: Complaint, vendor: Vendor) -> bytes:
    """An error body in a vendor's shape; empty where there is nothing to quote."""
    if not complaint.message:
        return b""
    fields = {"message": complaint.message, "type": complaint.type or "invalid_request_error"}
    if vendor == "anthropic":
        return msgspec.json.encode({"type": "error", "error": fields})
    return msgspec.json.encode({"error": fields | {"param": complaint.param, "code": complaint.code}})


def complaint_in(body: bytes) -> Complaint:
    """Read an error body that may be anything. Never raises."""
    try:
        return complaint_of(_ANY.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Complaint()


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and len(value) == 3 and value.isdecimal() else None


def in_band(upstream: str, parsed: object) -> UpstreamFailed:
    """The failure of an answer that turned into an error inside HTTP 200. `said`: the event or body, parsed."""
    complaint = complaint_of(parsed)
    status = complaint.http_status or next((_STATUSES[word] for word in complaint.words if word in _STATUSES), 500)
    return failed(upstream, Fault.IN_BAND, status, complaint, quoted(complaint, complaint.vendor or "openai"))


def error_in(upstream: str, body: bytes) -> UpstreamFailed | None:
    """The failure that a whole body of an HTTP 200 stands for, where it is an error and nothing else."""
    try:
        parsed = _ANY.decode(body)
    except msgspec.DecodeError:
        return None
    return in_band(upstream, parsed) if isinstance(parsed, dict) and "error" in parsed else None


def failed(upstream: str, fault: Fault, status: int, complaint: Complaint, body: bytes, *,
           retry_after_s: float | None = None, is_final: bool = False) -> UpstreamFailed:
    """The failure for an error that has an HTTP status, said or meant. `body` is kept only if it is for the client. Its
    message and code, which are logged, hold words of the upstream only where they cannot be a key.
    """
    word = next((candidate for candidate in (complaint.code, complaint.type) if candidate is not None
                 and _NO_KEY.fullmatch(candidate)), None)
    doing = "answered" if fault is Fault.STATUS else "sent inside its answer"
    error = UpstreamFailed(
        upstream, fault, f"upstream {upstream} {doing} {status}" + (f" ({word})" if word else ""),
        upstream_status=status, retry_after_s=retry_after_s,
        is_final=is_final or not NEVER_RETRY.isdisjoint(complaint.words) or _is_clients_fault(status),
    )
    error.status = status if _is_clients_fault(status) or status == _TOO_MANY or status in _OVERLOADED else 502
    error.is_model_missing = (
        status == _NOT_FOUND and (not complaint.words or not _NO_MODEL.isdisjoint(complaint.words))
    ) or (_is_clients_fault(status) and _NO_RESPONSE in complaint.words)
    if status == _LOOP:
        error.status, error.code, error.is_final = status, "loop_detected", True
        error.message = f"upstream {upstream} answered 508: its base_url leads back to a gateway on the request's way"
    elif status in _CREDENTIALS:
        error.message = f"the gateway's credentials for upstream {upstream} were refused"
        error.code = "upstream_credentials"
    elif _is_clients_fault(status):
        error.body = body
        error.param = complaint.param
        error.kind = "invalid_request_error"
        error.code = word or "upstream_rejected"
    elif status == _TOO_MANY:
        error.kind = "rate_limit_error"
        error.code = next((word for word in complaint.words if word in NEVER_RETRY), "rate_limit_exceeded")
    elif status in _OVERLOADED:
        error.kind = "overloaded_error"
    return error


def _is_clients_fault(status: int) -> bool:
    return 400 <= status < 500 and status not in _CREDENTIALS and status not in _RETRIED  # HTTP's 4xx


def malformed(upstream: str, what: str) -> UpstreamFailed:
    """The failure of an answer that is not the protocol. `what` must not quote it."""
    return UpstreamFailed(upstream, Fault.MALFORMED, f"upstream {upstream} sent {what}")


def truncated(upstream: str) -> UpstreamFailed:
    return UpstreamFailed(upstream, Fault.TRUNCATED, f"upstream {upstream} ended its answer before it was whole")


def retry_after_s(status: int, headers: Mapping[str, str], body: bytes, now_wall: float | None) -> float | None:
    """Seconds to leave it alone, at most a day; None where it does not say. Never raises. `headers` have lower-case names.
    `now_wall`: seconds since the epoch; without it dates and instants say nothing.
    """
    from_headers = _retry_after(headers, now_wall)
    if from_headers is not None or (status != _TOO_MANY and status not in _OVERLOADED):
        return from_headers
    found = _of_limits(headers, now_wall)
    return found if found is not None or _IN_BODY not in body else _in_body(body, now_wall)


def _retry_after(headers: Mapping[str, str], now_wall: float | None) -> float | None:
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        number = _seconds(headers.get(name, ""))
        if number is not None:
            return min(number * unit_s, MAX_SAID_S)
    if now_wall is None or "retry-after" not in headers:
        return None
    try:
        at = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (ValueError, OverflowError):
        return None
    return _until(at, now_wall)


def _of_limits(headers: Mapping[str, str], now_wall: float | None) -> float | None:
    """By the limits of which nothing is left; by all, where none says what is left."""
    resets = [(headers.get(left), headers[reset]) for left, reset in _LIMITS if reset in headers]
    if any(left is not None for left, _ in resets):
        resets = [(left, reset) for left, reset in resets if left is not None and _seconds(left) == 0]
    waits_s = (_reset_s(reset, now_wall) for _, reset in resets)
    return max((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _in_body(body: bytes, now_wall: float | None) -> float | None:
    """OpenRouter's way: the upstream's headers, inside the error."""
    try:
        parsed: Any = _ANY.decode(body)
        for name in ("error", "metadata", "headers"):
            parsed = parsed[name]
        reset = parsed["X-RateLimit-Reset"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return _reset_s(str(reset), now_wall)


def _reset_s(text: str, now_wall: float | None) -> float | None:
    """A duration of Go's, a number of seconds, an instant of the epoch in s or ms, or of RFC 3339."""
    number = _seconds(text)
    if number is not None:
        if number < _EPOCH_S:
            return min(number, MAX_SAID_S)
        return _until(number if number < _EPOCH_MS else number / 1e3, now_wall)
    text = text.strip()
    if _DURATION.fullmatch(text):
        return min(sum(float(amount) * _UNITS_S[unit] for amount, unit in _AMOUNT.findall(text)), MAX_SAID_S)
    try:
        at = datetime.fromisoformat(text)
        return _until(at.timestamp(), now_wall) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _until(at_wall: float, now_wall: float | None) -> float | None:
    return None if now_wall is None else min(max(0.0, at_wall - now_wall), MAX_SAID_S)


def _seconds(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


MIN_LENGTH: Final = 8  # a shorter header value is a word, no key: taking it out would garble honest messages
_REDACTED: Final = "[redacted]"


class Secrets:
    """The keys and header values that go to one upstream. Immutable."""

    __slots__ = ("_texts",)

    def __init__(self, values: Iterable[str]) -> None:
        """A value such as `Bearer ...` hides its words as well, since an upstream may quote only the last."""
        words = {word for value in values for word in (value, *value.split()) if len(word) >= MIN_LENGTH}
        self._texts = sorted(words, key=len, reverse=True)  # the longest first: one may be a part of another

    def scrub(self, failed: UpstreamFailed) -> UpstreamFailed:
        """Take them out of everything that the failure says; returns it."""
        if self._texts:
            failed.message = self._without(failed.message)
            failed.code = self._without(failed.code)
            if failed.param is not None:
                failed.param = self._without(failed.param)
            if failed.body:
                failed.body = self._without_in_json(failed.body)
        return failed

    def _without(self, text: str) -> str:
        for secret in self._texts:
            text = text.replace(secret, _REDACTED)
        return text

    def _without_in_json(self, body: bytes) -> bytes:
        if b"\\" in body:  # escapes have many spellings: say it in the one that is looked for
            try:
                body = msgspec.json.encode(_ANY.decode(body))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return b""  # nobody could read the message in it either
        for secret in self._texts:
            body = body.replace(msgspec.json.encode(secret)[1:-1], _REDACTED.encode())
        return body
