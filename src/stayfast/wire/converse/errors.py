"""Bedrock's errors: by the name of the exception, in a header or the body, and by the status.

    400 Validation                the request's fault          429 Throttling             the account's quota
    403 AccessDenied, signatures  the gateway's credentials    429 ModelNotReady          as 503: the model is still loading
    404 ResourceNotFound          the model is missing here    500 InternalServer         retried
    408 ModelTimeout              retried                      503 ServiceUnavailable     retried
    424 ModelError                as 502: the model failed

Source: the service model of bedrock-runtime in botocore. There are no rate-limit headers.
"""

from collections.abc import Mapping
from typing import Final

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Api
from stayfast.wire.dialect import Json, parse_object, text_or_empty
from stayfast.wire.errors import ErrorDetails, encode_error_body, make_failure, parse_retry_after_s

_TYPE_HEADER: Final = "x-amzn-errortype"
_NAMES: Final = {  # of exceptions: the status, by which the fault is the client's, the operator's or the upstream's
    "ValidationException": 400, "AccessDeniedException": 403, "ResourceNotFoundException": 404, "ThrottlingException": 429,
    "ServiceQuotaExceededException": 429, "ModelTimeoutException": 408, "ModelErrorException": 502,
    "ModelStreamErrorException": 502, "ModelNotReadyException": 503, "InternalServerException": 500,
    "ServiceUnavailableException": 503, "UnrecognizedClientException": 403, "InvalidSignatureException": 403,
    "ExpiredTokenException": 403, "MissingAuthenticationTokenException": 403, "IncompleteSignatureException": 403,
}
_OTHER: Final = 500  # of an exception with an unknown name inside a stream
_FAILED_DEPENDENCY: Final = 424
_NO_MODEL: Final = "model_not_found"  # `make_failure` takes this code for a missing model


def converse_failure(upstream: str, client: Api, status: int, headers: Mapping[str, str], body: bytes, *,
                     now_wall: float | None = None) -> UpstreamFailed:
    """The failure for an HTTP response of status 400 or more. `headers` have lower-case names. `client`: whose dialect the
    message gets. `now_wall`: seconds since the epoch; without it a date as retry-after is ignored.
    """
    parsed = parse_object(body)
    name = _short_name(headers.get(_TYPE_HEADER) or text_or_empty(parsed.get("__type")))
    fallback = 502 if status == _FAILED_DEPENDENCY else status
    return _make_failure(upstream, Fault.STATUS, _NAMES.get(name, fallback), name, parsed, client=client,
                         retry_after_s=parse_retry_after_s(status, headers, body, now_wall))


def exception_failure(upstream: str, name: str, payload: bytes) -> UpstreamFailed:
    """The failure for an exception inside a stream. `name`: as the frame has it, with a small first letter."""
    name = name[:1].upper() + name[1:]
    return _make_failure(upstream, Fault.IN_BAND, _NAMES.get(name, _OTHER), name, parse_object(payload), client=Api.CHAT)


def stop_failure(upstream: str, reason: str | None) -> UpstreamFailed:
    """The failure for an answer that stopped because the model wrote something invalid: another attempt may not."""
    return UpstreamFailed(upstream, Fault.IN_BAND, f"upstream {upstream} stopped with {reason}", upstream_status=502)


def _make_failure(upstream: str, fault: Fault, status: int, name: str, parsed: Json, *, client: Api,
                  retry_after_s: float | None = None) -> UpstreamFailed:
    message = text_or_empty(parsed.get("message")) or text_or_empty(parsed.get("Message"))
    known = name if name in _NAMES else None
    codes = ((known,) if known is not None else ()) + ((_NO_MODEL,) if status == 404 else ())
    details = ErrorDetails(message=message, code=known, codes=codes)
    body = encode_error_body(ErrorDetails(message=message, code=known), "anthropic" if client.is_anthropic else "openai")
    failed = make_failure(upstream, fault, status, details, body, retry_after_s=retry_after_s)
    failed.detail = known or ""  # a wrong signature, an expired token and a missing permission differ in it
    return failed


def _short_name(text: str) -> str:
    """The name of an exception without its namespace (`ns#Name`) and its address (`Name:http://...`)."""
    return text.partition(":")[0].rpartition("#")[2].strip()
