"""The error object of Google's APIs (google.rpc.Status as JSON): its code, and the time to wait before a retry.

    {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "...", "details": [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "...PerMinutePerProject..."}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "27s"}]}}

Some endpoints wrap it in a list. The wait is in the body, not in a header. Two cases differ from their status:

    a refused key            status 400, INVALID_ARGUMENT, reason API_KEY_INVALID: the operator's fault, not the client's
    FAILED_PRECONDITION      status 400: the account may not use the API (billing, location): the operator's fault

An exhausted quota per day is `insufficient_quota`, which is not retried: its RetryInfo is a few seconds nevertheless.
When wrong: a daily quota that resets within the minute is not retried.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

GOOGLE_STATUSES: Final = {
    "invalid_argument": 400, "out_of_range": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404,
    "already_exists": 409, "aborted": 409, "resource_exhausted": 429, "cancelled": 499, "unknown": 500, "internal": 500,
    "data_loss": 500, "unimplemented": 501, "unavailable": 503, "deadline_exceeded": 504,
    "api_key_invalid": 401, "failed_precondition": 403, "insufficient_quota": 429}  # google.rpc.Code, but for the last three
_BAD_KEYS: Final = frozenset(("API_KEY_INVALID", "API_KEY_EXPIRED"))
_DAILY: Final = re.compile("PerDay", re.IGNORECASE)
_SECONDS: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s", re.ASCII)  # google.protobuf.Duration as JSON


def unwrap_list(parsed: object) -> object:
    """The first element of a list of errors; anything else unchanged."""
    return parsed[0] if isinstance(parsed, list) and parsed else parsed


def google_code(error: Mapping[str, Any]) -> str | None:
    """The code of an error object, in lower case: one of GOOGLE_STATUSES. None: not Google's."""
    status = error.get("status")
    if not isinstance(status, str) or status != status.upper() or status.lower() not in GOOGLE_STATUSES:
        return None
    details = list(_details(error))
    if any(isinstance(reason := detail.get("reason"), str) and reason in _BAD_KEYS for detail in details):
        return "api_key_invalid"
    if status == "RESOURCE_EXHAUSTED" and any(_is_daily(detail) for detail in details):
        return "insufficient_quota"
    return status.lower()


def google_wait_s(parsed: object) -> float | None:
    """Seconds to wait before a retry, of a whole error body; None if it has no RetryInfo."""
    parsed = unwrap_list(parsed)
    error = parsed.get("error") if isinstance(parsed, Mapping) else None
    delays = [detail.get("retryDelay") for detail in _details(error)] if isinstance(error, Mapping) else []
    found = (_SECONDS.fullmatch(delay) for delay in delays if isinstance(delay, str))
    return max((float(match[1]) for match in found if match is not None), default=None)


def _details(error: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    details = error.get("details")
    yield from (detail for detail in details if isinstance(detail, Mapping)) if isinstance(details, list) else ()


def _is_daily(detail: Mapping[str, Any]) -> bool:
    violations = detail.get("violations")
    return isinstance(violations, list) and any(
        isinstance(violation, Mapping) and _DAILY.search(str(violation.get("quotaId"))) for violation in violations)
