"""What an upstream's error says, and the failure it makes.

Status and machine-readable words decide, never the wording of a message. Only the client's own faults are shown to it
in the upstream's words: what an upstream says of quotas, keys or its own troubles is the operator's business.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from stayfast.core.errors import Fault, UpstreamFailed

NEVER_RETRY: Final = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "enforced_spend_limit_reached", "contract_spend_limit_reached"})
MAX_RETRY_AFTER_S: Final = 60.0  # a client that sleeps longer than this has lost its user

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


Vendor = Literal["openai", "anthropic"]


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


def complaint_of(said: object) -> Complaint:
    """Read an error in any known shape: nested, flat, Anthropic's, vLLM's. Never raises."""
    if not isinstance(said, Mapping):
        return Complaint(said if isinstance(said, str) else "")
    inner = said.get("error")
    fields = inner if isinstance(inner, Mapping) else said
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
        vendor=_vendor(said) if isinstance(inner, Mapping) else None,
    )


def _vendor(said: Mapping[str, object]) -> Vendor:
    return "anthropic" if said.get("type") == "error" and "sequence_number" not in said else "openai"


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


def in_band(upstream: str, said: object) -> UpstreamFailed:
    """The failure of an answer that turned into an error inside HTTP 200. `said`: the event or body, parsed."""
    complaint = complaint_of(said)
    status = complaint.http_status or next(
        (_STATUSES[word] for word in complaint.words if word in _STATUSES), 500)
    return failed(upstream, Fault.IN_BAND, status, complaint, quoted(complaint, complaint.vendor or "openai"))


def error_in(upstream: str, body: bytes) -> UpstreamFailed | None:
    """The failure that a whole body of an HTTP 200 stands for, where it is an error and nothing else."""
    try:
        said = _ANY.decode(body)
    except msgspec.DecodeError:
        return None
    return in_band(upstream, said) if isinstance(said, dict) and "error" in said else None


def failed(upstream: str, fault: Fault, status: int, complaint: Complaint, body: bytes, *,
           retry_after_s: float | None = None, is_final: bool = False) -> UpstreamFailed:
    """The failure for an error that has an HTTP status, said or meant. `body` is kept only if it is for the client.

    Its message and code, which are logged, hold words of the upstream only where they cannot be a key.
    """
    word = next((said for said in (complaint.code, complaint.type) if said is not None and _NO_KEY.fullmatch(said)), None)
    doing = "answered" if fault is Fault.STATUS else "sent inside its answer"
    error = UpstreamFailed(
        upstream, fault, f"upstream {upstream} {doing} {status}" + (f" ({word})" if word else ""),
        upstream_status=status, retry_after_s=retry_after_s,
        is_final=is_final or not NEVER_RETRY.isdisjoint(complaint.words) or _is_clients_fault(status),
    )
    error.status = _client_status(status)
    error.is_model_missing = (
        status == _NOT_FOUND and (not complaint.words or not _NO_MODEL.isdisjoint(complaint.words))
    ) or (_is_clients_fault(status) and _NO_RESPONSE in complaint.words)
    if status in _CREDENTIALS:
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


_CREDENTIALS: Final = frozenset({401, 402, 403, 407})
_RETRIED: Final = frozenset({408, 409, 425, 429})  # the 4xx that the official SDKs try again
_NOT_FOUND: Final = 404
_NO_MODEL: Final = frozenset({"model_not_found", "NotFoundError", "not_found_error"})  # or no words: it is no API at all
_NO_RESPONSE: Final = "previous_response_not_found"  # with a 400 or a 404: other upstreams have stored others
_TOO_MANY: Final = 429
_OVERLOADED: Final = frozenset({503, 529})


def _is_clients_fault(status: int) -> bool:
    return 400 <= status < 500 and status not in _CREDENTIALS and status not in _RETRIED  # HTTP's 4xx


def _client_status(status: int) -> int:
    return status if _is_clients_fault(status) or status == _TOO_MANY or status in _OVERLOADED else 502


def malformed(upstream: str, what: str) -> UpstreamFailed:
    """The failure of an answer that is not the protocol. `what` must not quote it."""
    return UpstreamFailed(upstream, Fault.MALFORMED, f"upstream {upstream} sent {what}")


def truncated(upstream: str) -> UpstreamFailed:
    """The failure of an answer whose body ended before the protocol's own end."""
    return UpstreamFailed(upstream, Fault.TRUNCATED, f"upstream {upstream} ended its answer before it was whole")
