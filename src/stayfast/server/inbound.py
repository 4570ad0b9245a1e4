"""A request to the gateway, and what its headers say of how it is to be served."""

import math
import re
from hashlib import blake2b

from stayfast.core.constants import HOP_HEADER, MAX_HOPS
from stayfast.core.errors import DeadlineExceeded, Rejected, Shed, StayfastError
from stayfast.core.events import Trace
from stayfast.core.types import Api, CacheControl, EventsWish, Stage
from stayfast.http.server.parser import HttpRequest
from stayfast.policy.admission.priority import Urgency
from stayfast.turns.events import parse_last_event_id
from stayfast.wire.client_headers import SAY_PATIENCE, client_timeout_s, number
from stayfast.wire.json_input import MOST_TAGS, TAG, TAG_FORM
from stayfast.wire.trace_context import caller_of

HOP = HOP_HEADER.encode()
_KNOWN = frozenset((
    b"content-type", b"content-encoding",
    b"authorization", b"x-api-key", b"x-goog-api-key", b"sec-fetch-site",
    b"x-request-id", b"x-stayfast-keepalive",
    b"x-request-timeout", b"x-stayfast-deadline", b"x-litellm-timeout", b"x-request-timeout-ms", b"x-stayfast-deadline-ms",
    b"x-deadline-ms", b"x-envoy-expected-rq-timeout-ms", b"grpc-timeout",
    b"x-stainless-read-timeout", b"x-stainless-timeout",
    b"anthropic-version", b"anthropic-beta", b"traceparent", b"tracestate", b"idempotency-key",
    b"x-stainless-retry-count", b"x-stayfast-priority", b"cache-control", b"x-cache-tags",
    b"x-session-id", b"x-stayfast-events", b"last-event-id", HOP,
))
_LISTS = frozenset((  # may come in several lines (RFC 9110, 5.3); two of traceparent make one that is not valid
    b"anthropic-beta", b"tracestate", b"traceparent", b"x-stainless-read-timeout", b"x-stainless-timeout",
    b"cache-control", b"x-cache-tags"))
_FORWARDED = (b"anthropic-version", b"anthropic-beta", b"idempotency-key", b"x-stainless-retry-count", b"x-session-id")
_IDEMPOTENCY = b"idempotency-key"
_TRACE_CONTEXT = (b"traceparent", b"tracestate")
_FORWARDED_UNTRACED = (*_FORWARDED, *_TRACE_CONTEXT)  # nobody here has a span: the caller's stays the parent
_PRIORITY = b"x-stayfast-priority"
_CACHE, _TAGS = b"cache-control", b"x-cache-tags"
EVENTS, _LAST_EVENT = b"x-stayfast-events", b"last-event-id"
_MAX_AGE = re.compile(r"max-age *= *([0-9]+) *")
_QUOTED = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')
_NO_AGE_S = 2.0**31  # RFC 9111, 1.2.2: what a larger one stands for
_URGENCIES = {urgency.value: urgency for urgency in Urgency}
_SDK_PATIENCE = (b"x-stainless-read-timeout", b"x-stainless-timeout")
_SAYS_MORE = frozenset((*_FORWARDED_UNTRACED, *SAY_PATIENCE, _PRIORITY, _CACHE, _TAGS, EVENTS, HOP, *_SDK_PATIENCE))
PATHS = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.COUNT_TOKENS,
}
HOT = {prefix + path: api for prefix in ("", "/openai", "/anthropic") for path, api in PATHS.items()}
_THIS_MACHINE = re.compile(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]*)?", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_JSON_TYPE = re.compile(rb"application/(?:[!-~]+\+)?json(?:[ \t]*;[ \t]*charset=\"?utf-?8\"?)?[ \t]*", re.IGNORECASE)


class LlmHttpRequest(HttpRequest):
    """A request to the gateway. `api` and `tenant` are set once its head is in."""

    READ_HEADERS = _KNOWN
    LIST_HEADERS = _LISTS

    __slots__ = ("api", "request_id", "tenant")

    def __init__(self, accepted_at: float) -> None:
        super().__init__(accepted_at)
        self.api: Api | None = None  # None: a cold path
        self.tenant: str | None = None
        self.request_id: str | None = None  # set when it is first needed

    def deadline_error(self) -> StayfastError:
        """Its client's patience is over."""
        return DeadlineExceeded(Stage.ADMIT, "total_s", self.deadline_s)


def check_name(fields: dict[bytes, bytes]) -> None:
    """Refuse a request that does not name this machine. Raises Rejected (403).

    A web page can have its own name resolve to 127.0.0.1 (DNS rebinding); to the browser, the gateway is then its own site.
    """
    host = fields.get(b"host")
    if host is not None and not _THIS_MACHINE.fullmatch(host):
        raise Rejected("This gateway asks for no key and answers this machine only: the header host must be localhost or a "
                       "loopback address. With server.keys, or auth: off, it may be any.", status=403,
                       code="foreign_host", param="host")


def check_media(fields: dict[bytes, bytes]) -> None:
    """Refuse a body that does not say it is JSON in UTF-8, uncompressed. Raises Rejected (415)."""
    media = fields.get(b"content-type")
    if media and media != b"application/json" and not _JSON_TYPE.fullmatch(media):
        raise Rejected("content-type must be application/json (charset utf-8).", status=415,
                       code="unsupported_media_type", param="content-type")
    coding = fields.get(b"content-encoding")
    if coding and coding.lower() != b"identity":
        raise Rejected("content-encoding must be identity: send the body uncompressed.", status=415,
                       code="unsupported_content_encoding", param="content-encoding")


def client_request_id(fields: dict[bytes, bytes]) -> str | None:
    """The client's own `x-request-id`, where it is safe to repeat."""
    value = fields.get(b"x-request-id")
    return value.decode("ascii") if value is not None and _REQUEST_ID.fullmatch(value) else None


def has_stayfast_headers(fields: dict[bytes, bytes]) -> bool:
    """Whether any header says something of how the request is to be served."""
    return not _SAYS_MORE.isdisjoint(fields)


def body_deadline_s(fields: dict[bytes, bytes]) -> float:
    """How long the client waits for its answer, and so for its body to be in; a wrong value is refused when the body is."""
    try:
        client_s = client_timeout_s(fields)
    except Rejected:
        return math.inf
    return math.inf if client_s is None else client_s


def sdk_silence_s(fields: dict[bytes, bytes]) -> float | None:
    """How long the client's SDK waits for the next byte, in seconds. Nobody wrote these headers, so nobody is refused for
    them: what is no number is not there.
    """
    least_s: float | None = None
    for name in _SDK_PATIENCE:
        if name in fields:
            seconds = number(fields[name])
            if seconds > 0 and (least_s is None or seconds < least_s):
                least_s = seconds
    return least_s


def urgency(fields: dict[bytes, bytes]) -> Urgency | None:
    """How urgent the client says it is; None where it does not say. Raises Rejected for a word that is none of ours."""
    value = fields.get(_PRIORITY)
    if value is None:
        return None
    word = value.decode("latin-1").lower()
    if word not in _URGENCIES:
        raise Rejected(f"{_PRIORITY.decode()} must be one of {', '.join(_URGENCIES)}.", code="bad_priority",
                       param=_PRIORITY.decode())
    return _URGENCIES[word]


def events_wish(fields: dict[bytes, bytes]) -> EventsWish:
    """How a client that says so wants a turn's events. Raises Rejected for a word that is none of ours, and for no id."""
    value = fields[EVENTS].lower()
    if value not in (b"typed", b"late"):
        raise Rejected(f"{EVENTS.decode()} must be typed or late.", code="bad_events", param=EVENTS.decode())
    last = fields.get(_LAST_EVENT)
    try:
        after = parse_last_event_id(last.decode("latin-1")) if last is not None else None
    except ValueError as error:
        raise Rejected(f"{error}.", code="bad_last_event_id", param=_LAST_EVENT.decode()) from error
    return EventsWish(value == b"late", after)


def cache_control(fields: dict[bytes, bytes]) -> CacheControl | None:
    """What the client says of remembered answers; None where it says nothing. Words that are unknown say nothing (RFC 9111,
    5.2.3), and so does an argument where none belongs. Raises Rejected for a max-age that is no number, and for tags that
    are none.
    """
    value, tagged = fields.get(_CACHE), fields.get(_TAGS)
    if value is None:
        return CacheControl(tags=_tags(tagged)) if tagged is not None else None
    text = value.decode("latin-1").lower()
    if '"' in text:
        text = _QUOTED.sub(lambda quoted: quoted[1].replace(",", ";"), text)  # a comma in quotes parts nothing
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
        raise Rejected("cache-control: max-age must be whole seconds, as in max-age=60.", code="bad_cache_control",
                       param="cache-control")
    return min(float(found[1]), _NO_AGE_S) if len(found[1]) < 20 else _NO_AGE_S


def _tags(value: bytes) -> tuple[str, ...]:
    tags = tuple(word for part in value.decode("latin-1").split(",") if (word := part.strip()))
    if len(tags) > MOST_TAGS or not all(TAG.fullmatch(tag) for tag in tags):
        raise Rejected(f"{_TAGS.decode()} must be at most {MOST_TAGS} tags between commas, each {TAG_FORM}.",
                       code="bad_cache_tags", param=_TAGS.decode())
    return tags


def caller_trace(fields: dict[bytes, bytes]) -> Trace | None:
    """The caller's place in its trace; None where it does not say, or says what is not valid."""
    parent = fields.get(b"traceparent")
    if parent is None:
        return None
    return caller_of(parent.decode("latin-1"), fields.get(b"tracestate", b"").decode("latin-1"))


def hops(fields: dict[bytes, bytes]) -> int:
    """How many gateways the request has passed. Raises Rejected for what is no number, and Shed (508) for too many."""
    value = fields.get(HOP, b"0")
    n_hops = int(value) if value.isdigit() and len(value) < 4 else -1  # digits a sender of ours would write
    if n_hops < 0:
        raise Rejected(f"{HOP_HEADER} must be a whole number below 1000: gateways count themselves in it.",
                       code="bad_header", param=HOP_HEADER)
    if n_hops >= MAX_HOPS:
        raise Shed(f"The request has passed {n_hops} gateways, which is a circle: the base_url of an upstream leads back to "
                   "this gateway.", reason="loop", code="loop_detected", status=508, is_final=True)
    return n_hops


def forwarded(fields: dict[bytes, bytes], trace: Trace | None = None, tenant: str | None = None
              ) -> tuple[tuple[str, str], ...]:
    """The headers that go on to an upstream; nothing secret is among them. Raises Rejected for one that is not ASCII.

    With a span of our own in `trace`, each attempt's own `traceparent` takes the place of the caller's. A tenant's
    `idempotency-key` goes on as a hash of both: the provider's account is one for all tenants, and so are its keys.
    """
    found = []
    for name in _FORWARDED if trace is not None and trace.span_id else _FORWARDED_UNTRACED:
        if name in fields:
            value = fields[name]
            if not value.isascii():
                if name in _TRACE_CONTEXT:  # only about watching a request: that never fails it
                    continue
                raise Rejected(f"The header {name.decode()} holds bytes that are not ASCII.", code="bad_header",
                               param=name.decode())
            if name == _IDEMPOTENCY and tenant is not None:
                value = _scoped(value, tenant)
            found.append((name.decode(), value.decode()))
    if HOP in fields:
        found.append((HOP_HEADER, str(hops(fields) + 1)))
    return tuple(found)


def _scoped(key: bytes, tenant: str) -> bytes:
    """The same for the same key of the same tenant, at every worker and after every restart."""
    return b"sf-" + blake2b(key, digest_size=16, key=tenant.encode()).hexdigest().encode()
