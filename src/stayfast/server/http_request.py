"""A request to the gateway, and the headers that control how it is served."""

import math
import re
from hashlib import blake2b

import msgspec

from stayfast.core.constants import HOP_HEADER, MAX_HOPS
from stayfast.core.errors import DeadlineExceeded, Rejected, Shed, StayfastError
from stayfast.core.events import Trace
from stayfast.core.types import Api, CacheControl, EventsOptions, Stage
from stayfast.http.server.parser import HttpRequest
from stayfast.keys.principal import Principal
from stayfast.pipeline.passthrough.service import PassThrough
from stayfast.policy.admission.priority import Urgency
from stayfast.turns.events import parse_last_event_id
from stayfast.wire.client_headers import (
    START_WITHIN,
    TIMEOUT_HEADERS,
    parse_client_timeout_s,
    parse_number,
    parse_start_within_s,
)
from stayfast.wire.jobs.prefer import AsyncPreference, parse_prefer
from stayfast.wire.request_body import MAX_TAGS, TAG, TAG_FORM
from stayfast.wire.trace_context import parse_traceparent

HOP = HOP_HEADER.encode()
_KNOWN = frozenset((
    b"content-type", b"content-encoding",
    b"authorization", b"x-api-key", b"x-goog-api-key", b"sec-fetch-site", b"cookie",
    b"x-request-id", b"x-stayfast-keepalive",
    b"x-request-timeout", b"x-stayfast-deadline", b"x-litellm-timeout", b"x-request-timeout-ms", b"x-stayfast-deadline-ms",
    b"x-deadline-ms", b"x-envoy-expected-rq-timeout-ms", b"grpc-timeout", START_WITHIN,
    b"x-stainless-read-timeout", b"x-stainless-timeout",
    b"anthropic-version", b"anthropic-beta", b"traceparent", b"tracestate", b"idempotency-key",
    b"x-stainless-retry-count", b"x-stayfast-priority", b"cache-control", b"x-cache-tags",
    b"x-session-id", b"x-stayfast-events", b"last-event-id", b"prefer", b"x-stayfast-job", HOP,
))
_LISTS = frozenset((  # may occur in several lines (RFC 9110, 5.3); two traceparent lines make an invalid one
    b"anthropic-beta", b"tracestate", b"traceparent", b"x-stainless-read-timeout", b"x-stainless-timeout",
    b"cache-control", b"x-cache-tags", b"prefer"))
_FORWARDED = (b"anthropic-version", b"anthropic-beta", b"idempotency-key", b"x-stainless-retry-count", b"x-session-id")
_IDEMPOTENCY = b"idempotency-key"
_TRACE_CONTEXT = (b"traceparent", b"tracestate")
_FORWARDED_UNTRACED = (*_FORWARDED, *_TRACE_CONTEXT)  # without a span of our own, the caller's stays the parent
_PRIORITY = b"x-stayfast-priority"
_CACHE, _TAGS = b"cache-control", b"x-cache-tags"
EVENTS, _LAST_EVENT = b"x-stayfast-events", b"last-event-id"
_PREFER, JOB_HEADER = b"prefer", b"x-stayfast-job"
_LATER = frozenset((_PREFER, _LAST_EVENT, JOB_HEADER))
_MAX_AGE = re.compile(r"max-age *= *([0-9]+) *")
_QUOTED = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')
_NO_AGE_S = 2.0**31  # RFC 9111, 1.2.2: what a larger one stands for
_URGENCIES = {urgency.value: urgency for urgency in Urgency}
_SDK_TIMEOUTS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
_STAYFAST_HEADERS = frozenset((
    *_FORWARDED_UNTRACED, *TIMEOUT_HEADERS, _PRIORITY, _CACHE, _TAGS, EVENTS, HOP, *_SDK_TIMEOUTS, START_WITHIN,
    *_LATER))
_THIS_MACHINE = re.compile(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]*)?", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_JSON_TYPE = re.compile(rb"application/(?:[!-~]+\+)?json(?:[ \t]*;[ \t]*charset=\"?utf-?8\"?)?[ \t]*", re.IGNORECASE)

_STRIDE = 0x9E3779B97F4A7C15  # odd, so its multiples run through all 64-bit numbers before one repeats
_MASK = (1 << 64) - 1


class RequestIds:
    """Ids that do not repeat in this process, and almost certainly not in another. One loop's."""

    __slots__ = ("_at",)

    def __init__(self, entropy: bytes) -> None:
        self._at = int.from_bytes(entropy[:8])

    def next(self) -> str:
        """A new id: `req_` and 16 hex digits."""
        self._at = at = (self._at + _STRIDE) & _MASK
        return f"req_{at:016x}"


class PassedPath(msgspec.Struct, frozen=True, gc=False):
    """Where a request is passed to. path: without /openai or /anthropic, percent-encoded. label: in metrics."""

    service: PassThrough  # as it was when the head arrived
    upstream: str
    path: str
    label: str
    is_socket: bool = False


class LlmHttpRequest(HttpRequest):
    """A request to the gateway. `api`, `caller` and `tenant` are set once its head is in."""

    READ_HEADERS = _KNOWN
    LIST_HEADERS = _LISTS

    api: Api | None = None  # None: not an LLM endpoint
    caller: Principal | None = None  # None: without authentication
    tenant: str | None = None
    passed: PassedPath | None = None  # not None: it is passed to an upstream
    request_id: str | None = None  # set at its first use

    def deadline_error(self) -> StayfastError:
        return DeadlineExceeded(Stage.ADMIT, "total_s", self.deadline_s)


def check_host(fields: dict[bytes, bytes]) -> None:
    """Raises Rejected (403) unless the host header names this machine.

    Prevents DNS rebinding: a web page's own name can resolve to 127.0.0.1, and the browser then treats the gateway as the
    page's own site.
    """
    host = fields.get(b"host")
    if host is not None and not _THIS_MACHINE.fullmatch(host):
        raise Rejected("Without keys, this gateway serves this machine only: the host header must be localhost or a "
                       "loopback address. To allow other names, set server.keys or auth: off.", status=403,
                       code="foreign_host", param="host")


def check_media(fields: dict[bytes, bytes]) -> None:
    """Raises Rejected (415) unless the body is declared as uncompressed JSON in UTF-8."""
    media = fields.get(b"content-type")
    if media and media != b"application/json" and not _JSON_TYPE.fullmatch(media):
        raise Rejected("content-type must be application/json (charset utf-8).", status=415,
                       code="unsupported_media_type", param="content-type")
    coding = fields.get(b"content-encoding")
    if coding and coding.lower() != b"identity":
        raise Rejected("content-encoding must be identity: send the body uncompressed.", status=415,
                       code="unsupported_content_encoding", param="content-encoding")


def client_request_id(fields: dict[bytes, bytes]) -> str | None:
    """The client's own `x-request-id`, if it is safe to echo."""
    value = fields.get(b"x-request-id")
    return value.decode("ascii") if value is not None and _REQUEST_ID.fullmatch(value) else None


def has_stayfast_headers(fields: dict[bytes, bytes]) -> bool:
    """Whether any header controls how the request is served."""
    return not _STAYFAST_HEADERS.isdisjoint(fields)


def parse_start_limit_s(fields: dict[bytes, bytes]) -> float | None:
    """The client's time to the first token; None without it. Raises Rejected."""
    value = fields.get(START_WITHIN)
    return None if value is None else parse_start_within_s(value.decode("latin-1"), START_WITHIN.decode())


def body_deadline_s(fields: dict[bytes, bytes]) -> float:
    """How long the client waits, which also limits the upload of its body. A malformed value is rejected later."""
    try:
        client_s = parse_client_timeout_s(fields)
    except Rejected:
        return math.inf
    return math.inf if client_s is None else client_s


def parse_sdk_timeout_s(fields: dict[bytes, bytes]) -> float | None:
    """How long the client's SDK waits for the next byte, in seconds. The SDK sets these headers without the user, so a
    malformed one is ignored.
    """
    timeouts_s = [parse_number(fields[name]) for name in _SDK_TIMEOUTS if name in fields]
    return min((timeout_s for timeout_s in timeouts_s if timeout_s > 0), default=None)


def parse_urgency(fields: dict[bytes, bytes]) -> Urgency | None:
    """The client's `x-stayfast-priority`; None without it. Raises Rejected for an unknown value."""
    value = fields.get(_PRIORITY)
    if value is None:
        return None
    word = value.decode("latin-1").lower()
    if word not in _URGENCIES:
        raise Rejected(f"{_PRIORITY.decode()} must be one of {', '.join(_URGENCIES)}.", code="bad_priority",
                       param=_PRIORITY.decode())
    return _URGENCIES[word]


def parse_events_wish(fields: dict[bytes, bytes]) -> EventsOptions:
    """`x-stayfast-events` and `last-event-id`. Raises Rejected for an unknown value or a malformed id."""
    value = fields[EVENTS].lower()
    if value not in (b"typed", b"late"):
        raise Rejected(f"{EVENTS.decode()} must be typed or late.", code="bad_events", param=EVENTS.decode())
    last = fields.get(_LAST_EVENT)
    try:
        after = parse_last_event_id(last.decode("latin-1")) if last is not None else None
    except ValueError as error:
        raise Rejected(f"{error}.", code="bad_last_event_id", param=_LAST_EVENT.decode()) from error
    return EventsOptions(value == b"late", after)


class LaterWish(msgspec.Struct, frozen=True):
    """What the headers of a request want besides an answer now. last_event, job_id: of a stream that broke off."""

    preference: AsyncPreference | None = None
    last_event: str | None = None
    job_id: str | None = None


def parse_later_wish(fields: dict[bytes, bytes]) -> LaterWish | None:
    """`prefer`, `last-event-id` and `x-stayfast-job`; None if they want nothing. A turn has its own reconnects."""
    if _LATER.isdisjoint(fields):
        return None
    preference = parse_prefer(fields[_PREFER].decode("latin-1")) if _PREFER in fields else None
    if EVENTS in fields:
        return LaterWish(preference) if preference is not None else None
    last, job_id = fields.get(_LAST_EVENT, b"").decode("latin-1"), fields.get(JOB_HEADER, b"").decode("latin-1")
    return LaterWish(preference, last or None, job_id or None) if preference or last or job_id else None


def parse_cache_control(fields: dict[bytes, bytes]) -> CacheControl | None:
    """`cache-control` and `x-cache-tags`; None without both. Unknown directives are ignored (RFC 9111, 5.2.3). Raises
    Rejected for a malformed max-age or tag.
    """
    value, tagged = fields.get(_CACHE), fields.get(_TAGS)
    if value is None:
        return CacheControl(tags=_tags(tagged)) if tagged is not None else None
    text = value.decode("latin-1").lower()
    if '"' in text:
        text = _QUOTED.sub(lambda quoted: quoted[1].replace(",", ";"), text)  # a quoted comma separates nothing
    parts = [part.strip() for part in text.split(",")]
    words = [part.partition("=")[0].rstrip() for part in parts]
    max_age_s = None
    for word, part in zip(words, parts, strict=True):
        if word == "max-age":
            age_s = _seconds(part)
            max_age_s = age_s if max_age_s is None else min(max_age_s, age_s)
    tags = _tags(tagged) if tagged is not None else ()
    return CacheControl("no-store" in words, "no-cache" in words, "only-if-cached" in words, max_age_s, tags)


def _seconds(text: str) -> float:
    found = _MAX_AGE.fullmatch(text)
    if found is None:
        raise Rejected("cache-control: max-age must be whole seconds, for example max-age=60.", code="bad_cache_control",
                       param="cache-control")
    return min(float(found[1]), _NO_AGE_S) if len(found[1]) < 20 else _NO_AGE_S


def _tags(value: bytes) -> tuple[str, ...]:
    tags = tuple(word for part in value.decode("latin-1").split(",") if (word := part.strip()))
    if len(tags) > MAX_TAGS or not all(TAG.fullmatch(tag) for tag in tags):
        raise Rejected(f"{_TAGS.decode()} must be at most {MAX_TAGS} tags separated by commas, each {TAG_FORM}.",
                       code="bad_cache_tags", param=_TAGS.decode())
    return tags


def parse_caller_trace(fields: dict[bytes, bytes]) -> Trace | None:
    """The caller's span; None without a valid `traceparent`."""
    parent = fields.get(b"traceparent")
    if parent is None:
        return None
    return parse_traceparent(parent.decode("latin-1"), fields.get(b"tracestate", b"").decode("latin-1"))


def parse_hops(fields: dict[bytes, bytes]) -> int:
    """How many gateways the request has passed. Raises Rejected for a malformed number, Shed (508) for too many."""
    value = fields.get(HOP, b"0")
    n_hops = int(value) if value.isdigit() and len(value) < 4 else -1  # a gateway writes at most 3 digits
    if n_hops < 0:
        raise Rejected(f"{HOP_HEADER} must be a whole number below 1000: gateways count themselves in it.",
                       code="bad_header", param=HOP_HEADER)
    if n_hops >= MAX_HOPS:
        raise Shed(f"Loop: the request has passed {n_hops} gateways. The base_url of an upstream leads back to this "
                   "gateway.", reason="loop", code="loop_detected", status=508, is_final=True)
    return n_hops


def forwarded_headers(fields: dict[bytes, bytes], trace: Trace | None = None, tenant: str | None = None
              ) -> tuple[tuple[str, str], ...]:
    """The headers to forward to an upstream; none is secret. Raises Rejected for one that is not ASCII.

    If `trace` has a span of our own, each attempt's own `traceparent` replaces the caller's. All tenants share one account
    at the provider, so a tenant's `idempotency-key` is forwarded as a hash of key and tenant.
    """
    found = []
    for name in _FORWARDED if trace is not None and trace.span_id else _FORWARDED_UNTRACED:
        if name in fields:
            value = fields[name]
            if not value.isascii():
                if name in _TRACE_CONTEXT:  # a malformed trace never fails a request
                    continue
                raise Rejected(f"The header {name.decode()} holds bytes that are not ASCII.", code="bad_header",
                               param=name.decode())
            if name == _IDEMPOTENCY and tenant is not None:
                digest = blake2b(value, digest_size=16, key=tenant.encode()).hexdigest()
                value = b"sf-" + digest.encode()  # the same at every worker and after a restart
            found.append((name.decode(), value.decode()))
    if HOP in fields:
        found.append((HOP_HEADER, str(parse_hops(fields) + 1)))
    return tuple(found)
