"""Upstreams over HTTP: OpenAI-compatible endpoints, Anthropic, the embedded engine.

Large whole answers are parsed in a thread, one at a time. The parser holds the GIL, but joining the parts does not, and
Python code that runs for each member of a list lets the event loop take it. When wrong: one text of 40 MB blocks for 30 ms.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import DEGRADED_HEADER, HOP_HEADER, LARGE_REQUEST_BYTES
from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.held_bytes import FREE_BYTES, HeldBytes, Holding
from stayfast.core.types import COUNT_APIS, AnswerSummary, Api, Chunk
from stayfast.http.client.client import HttpClient, Response
from stayfast.http.client.response import RequestTemplate
from stayfast.upstreams.authentication import Authenticator, CredentialMissing
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.count_endpoint import CountEndpoint, choose_form
from stayfast.wire import event_stream
from stayfast.wire.continuation import encode_continuation_body
from stayfast.wire.converse.errors import converse_failure
from stayfast.wire.errors import Secrets, failure_of_response, find_in_band_failure
from stayfast.wire.quirks import BodyQuirks, Quirk
from stayfast.wire.request_body import can_collect_stream, can_translate, encode
from stayfast.wire.slot import write_slot
from stayfast.wire.tiers.service_tier import write_service_tier
from stayfast.wire.token_counts import UpstreamCount
from stayfast.wire.trace_context import encode_trace_headers
from stayfast.wire.transcode import MAX_ANSWER_BYTES, Transcoder, make_transcoder

PATHS = {Api.CHAT: "/chat/completions", Api.COMPLETIONS: "/completions", Api.EMBEDDINGS: "/embeddings",
         Api.RERANK: "/rerank", Api.RESPONSES: "/responses", Api.MESSAGES: "/messages",
         Api.COUNT_TOKENS: "/messages/count_tokens"}
# Their path names the model: by whether the answer is streamed.
MODEL_PATHS = {(Api.GEMINI, False): "/models/{model}:generateContent",
               (Api.GEMINI, True): "/models/{model}:streamGenerateContent?alt=sse",
               (Api.CONVERSE, False): "/model/{model}/converse", (Api.CONVERSE, True): "/model/{model}/converse-stream"}
MAX_MODEL_TEMPLATES = 1024
PREFERRED = (Api.CHAT, Api.MESSAGES, Api.RESPONSES, Api.GEMINI, Api.CONVERSE)  # targets of translation, best first
ANTHROPIC_VERSION = "2023-06-01"
MAX_ERROR_BODY_BYTES = 64 * 1024
_FIRST_HOP = (HOP_HEADER, "1")
_EMBEDDINGS = Api.EMBEDDINGS  # its method is never that of another API
EMPTY_CHUNK = Chunk(b"")
_EVENTS = "text/event-stream"
_STREAM_TYPES = {Api.CONVERSE: event_stream.CONTENT_TYPE}  # others stream _EVENTS
_BEARER = "authorization"
_KEY_HEADERS = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}  # others send a bearer token
_STREAM_REFUSALS = (400, 403, 404, 422, 501)  # statuses that refuse streaming, if the body contains "stream"
MAX_UNSTREAMED_MODELS = 1024  # models
MAX_COUNTED_BYTES = 16 * 1024  # of a prompt that is counted on the loop
LARGE_BYTES = 256 * 1024  # of a whole answer: parsing less takes under a millisecond
_READER = ThreadPoolExecutor(1, thread_name_prefix="stayfast-large-answers")  # two would contend for the GIL
_CODINGS = ("gzip", "x-gzip", "deflate", "br", "zstd", "compress")  # RFC 9110 8.4.1 and later; others are not quoted


@dataclass(frozen=True, slots=True)
class DialectConfig:
    """Settings of one endpoint. `key` is a secret: never in reprs, logs or errors."""

    kind: str  # openai, anthropic, gemini, bedrock or embedded
    apis: frozenset[Api]  # that the endpoint supports natively
    key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    always_streams: bool = False
    request_usage: bool = False  # request token counts of streams; clients that did not are not sent them
    send_deadline: bool = False  # send the remaining time as `x-request-timeout`
    paths: Mapping[Api, str] = field(default_factory=dict)  # instead of PATHS; "{model}": the model, percent-encoded;
    #   "{A|B}": A for whole answers, B for streams
    key_header: str = ""  # empty: of the kind; "authorization": as a bearer token
    authenticator: Authenticator | None = None  # instead of `key`
    quirks: tuple[Quirk, ...] = ()

    def __post_init__(self) -> None:
        if not self.apis:
            raise ValueError("apis must name at least one API that the endpoint speaks")


class DialectUpstream:
    """One HTTP endpoint. Task-safe."""

    def __init__(self, name: str, config: DialectConfig, client: HttpClient, clock: Clock,
                 held: HeldBytes | None = None) -> None:
        """held: the process's account of memory for whole answers; None: its own."""
        self.name = name
        self._held = held if held is not None else HeldBytes(MAX_ANSWER_BYTES)
        self.kind = config.kind
        self.always_streams = config.always_streams
        self._config = config
        self._client = client
        self._clock = clock
        self._headers = (*_key_headers(config), *config.headers)
        self._authenticator = config.authenticator
        self._secrets = UpstreamSecrets((config.key or "", *(value for _, value in config.headers)), config.authenticator)
        self._templates: dict[tuple[Api, bool] | tuple[Api, bool, str], RequestTemplate] = {}  # and the model in its path
        self._paths = {**{(api, streams): path for api, path in PATHS.items() for streams in (False, True)}, **MODEL_PATHS,
                       **{(api, streams): _choose_path(path, streams=streams)
                          for api, path in config.paths.items() for streams in (False, True)}}
        quirks = BodyQuirks(config.quirks)
        self._quirks = None if quirks.are_none else quirks
        if Api.GEMINI in config.apis:
            self._paths[Api.EMBEDDINGS, False] = "/models/{model}:batchEmbedContents"
        self._count_endpoint = CountEndpoint(choose_form(config.kind, config.apis, client.base_path), client, clock,
                                             self._count_headers)
        self._whole_only: set[tuple[Api, str]] = set()  # models that cannot stream whole answers
        self._speaks = {api: spoken for api in Api if (spoken := _spoken(api, config.apis)) is not None}

    def can_serve(self, api: Api) -> bool:
        """Natively, by translation, or (token counts of conversations) by an estimate."""
        return api in self._speaks or (api in COUNT_APIS and not self._speaks.keys().isdisjoint(PREFERRED))

    def open(self, call: Call) -> Coroutine[Any, Any, AnswerStream]:
        request = call.request
        spoken = self._speaks.get(request.api)
        if spoken is None:
            return self._count(call)
        streams = (request.stream or self.always_streams) and spoken.can_stream
        if (call.prefers_stream and not streams and spoken.can_stream and (spoken, call.model) not in self._whole_only
                and can_collect_stream(request)):
            return self._open_assembled(call, spoken)
        return self._open(call, spoken, streams=streams, want_usage=self._config.request_usage)

    async def _count(self, call: Call) -> AnswerStream:
        uses_upstream = call.counting is not None and call.counting.uses_upstream
        return await count_locally(call, await self._count_endpoint.fetch(call) if uses_upstream else None)

    async def _open_assembled(self, call: Call, spoken: Api) -> AnswerStream:
        """Fetch a whole answer as a stream. If it is refused or has no usage, the model's are fetched whole later."""

        def see_end(summary: AnswerSummary) -> None:
            if summary.is_complete and summary.usage is None:
                self._fetch_whole(spoken, call.model)

        try:
            return await self._open(call, spoken, streams=True, want_usage=True, on_end=see_end)
        except UpstreamFailed as failed:
            if failed.upstream_status not in _STREAM_REFUSALS or b"stream" not in failed.body:
                raise
        self._fetch_whole(spoken, call.model)
        return await self._open(call, spoken, streams=False)

    def _fetch_whole(self, spoken: Api, model: str) -> None:
        if len(self._whole_only) < MAX_UNSTREAMED_MODELS:
            self._whole_only.add((spoken, model))

    async def _open(self, call: Call, spoken: Api, *, streams: bool, want_usage: bool = False,
                    on_end: Callable[[AnswerSummary], None] | None = None) -> AnswerStream:
        request = call.request
        if spoken is not request.api and len(request.body) > LARGE_REQUEST_BYTES:
            body = await asyncio.get_running_loop().run_in_executor(
                _READER, partial(encode, request, spoken, call.model, stream=streams, want_usage=want_usage))
        else:
            body = encode(request, spoken, call.model, stream=streams, want_usage=want_usage)
        body = self._complete_body(call, body, spoken)
        expected = _ExpectedAnswer(self, call, spoken, streams or request.stream)
        form = _EMBEDDINGS if request.api is _EMBEDDINGS else spoken, streams
        template, own_headers = self._templates.get(form) or self._make_template(form, call.model), self._headers_for(call)
        if self._authenticator is not None:
            own_headers += self._authenticate(self._authenticator, template.method, template.path, body)
        response = await self._client.send(
            template, own_headers, body,
            connect_by=call.deadline.end_of_wait(call.connect_s, self._clock.now()), may_resend=not request.is_stateful,
            on_sent=expected.prepare)
        try:
            headers = response.headers
            if response.status != 200:
                raise await self._failure(response, spoken, request.api)
            if "content-encoding" in headers:
                self._check_coding(response)
            is_stream = headers.get("content-type", "").startswith(_STREAM_TYPES.get(spoken, _EVENTS))
            if is_stream is not expected.is_stream:
                if request.stream:
                    raise await self._failure(response, spoken, request.api)
                expected.is_stream = is_stream
                expected.prepare()
            transcoder = expected.transcoder
            assert transcoder is not None
            summary = transcoder.summary
            summary.is_degraded = DEGRADED_HEADER in headers
        except BaseException:
            response.close()
            raise
        return HttpStream(response, transcoder, summary, self._secrets.now(), self._held, on_end)

    def transcoder_for(self, call: Call, spoken: Api, *, is_stream: bool) -> Transcoder:
        """What translates the answer of a call. is_stream: it arrives as a stream."""
        request = call.request
        return make_transcoder(spoken, request, source_streams=is_stream, upstream=self.name,
                               hide_usage=self._config.request_usage and not request.include_usage,
                               created_at=int(self._clock.wall()), answer_id=call.request_id,
                               has_odd_usage=self._quirks is not None and self._quirks.has_odd_usage)

    def _complete_body(self, call: Call, body: bytes, spoken: Api) -> bytes:
        """The body with what this attempt adds to it."""
        if call.marker is not None:
            body = call.marker.write(body, spoken)
        if call.is_continuation:
            body = encode_continuation_body(body, call.request.api, spoken)
        if call.service_tier is not None:
            body = write_service_tier(body, spoken, call.service_tier.word, replaces=call.service_tier.replaces)
        if call.slot is not None:
            body = write_slot(body, call.slot)
        return body if self._quirks is None else self._quirks.apply(body, spoken)

    def close(self) -> None:
        self._client.close()

    def headers_of_unread(self, method: str, target: str) -> Sequence[tuple[str, str]]:
        """The headers of the settings, and those that authenticate a request whose body is not known. Raises UpstreamFailed
        without a valid credential.
        """
        if self._authenticator is None:
            return self._headers
        return [*self._headers, *self._authenticate(self._authenticator, method, target, b"")]

    def _count_headers(self, method: str, target: str, body: bytes) -> Sequence[tuple[str, str]]:
        found = [*self._headers, *(self._authenticate(self._authenticator, method, target, body)
                                   if self._authenticator is not None else ())]
        if self.kind == "anthropic" and not any(name == "anthropic-version" for name, _ in found):
            found.append(("anthropic-version", ANTHROPIC_VERSION))
        return found

    def redact(self, failed: UpstreamFailed) -> UpstreamFailed:
        """The failure without this upstream's secrets."""
        return self._secrets.now().redact_failure(failed)

    def _authenticate(self, authenticator: Authenticator, method: str, path: str, body: bytes) -> Sequence[tuple[str, str]]:
        try:
            return authenticator.headers_for(method, path, body, self._clock.wall())
        except CredentialMissing as missing:
            raise UpstreamMisconfigured(self.name, Fault.STATUS, f"upstream {self.name} has no valid credential: {missing}",
                                        upstream_status=401) from None

    def _make_template(self, form: tuple[Api, bool], model: str) -> RequestTemplate:
        """The template of a call, cached for the next ones. form: the protocol, and whether the answer is streamed."""
        path = self._paths[form]
        key = (*form, model) if "{model}" in path else form
        found = self._templates.get(key)
        if found is not None:
            return found
        spoken, streams = form
        accept = _STREAM_TYPES.get(spoken, _EVENTS) if streams else "application/json"
        name = model.removeprefix("models/") if path.startswith("/models/{model}") else model  # Google writes both
        template = self._client.make_template(
            "POST", self._client.base_path + path.replace("{model}", quote(name, safe="")),
            (("content-type", "application/json"), ("accept", accept), ("accept-encoding", "identity"), *self._headers))
        if key is form or len(self._templates) < MAX_MODEL_TEMPLATES:
            self._templates[key] = template
        return template

    def _headers_for(self, call: Call) -> list[tuple[str, str]]:
        """The headers of one call, in addition to those of the template."""
        headers = [("x-request-id", call.request_id)]
        if not call.headers or all(name != HOP_HEADER for name, _ in call.headers):
            headers.append(_FIRST_HOP)
        if self._config.send_deadline:
            left_s = max(0.001, call.deadline.remaining_s(self._clock.now()))
            headers.append(("x-request-timeout", f"{left_s:.3f}"))
        if call.trace is not None:
            headers += encode_trace_headers(call.trace)
        if self.kind != "anthropic":
            if call.headers:
                headers += [pair for pair in call.headers if not pair[0].startswith("anthropic-")]
            return headers
        headers += call.headers
        if not any(name == "anthropic-version" for name, _ in (*self._headers, *headers)):
            headers.append(("anthropic-version", ANTHROPIC_VERSION))
        return headers

    async def _failure(self, response: Response, spoken: Api, client: Api) -> UpstreamFailed:
        """The error for an unsuccessful response. Reads a bounded part of its body."""
        parts, n_bytes = [], 0
        while n_bytes < MAX_ERROR_BODY_BYTES and (data := await response.read()):
            parts.append(data)
            n_bytes += len(data)
        body = b"".join(parts)
        status = response.status
        if 300 <= status < 400:
            return UpstreamMisconfigured(self.name, Fault.STATUS, f"upstream {self.name} sent a redirect ({status}), which "
                                                                  f"is not "
                                 "followed: set its base_url to the final address", upstream_status=status)
        if status >= 400:
            now_wall = self._clock.wall()
            failed = (converse_failure(self.name, client, status, response.headers, body, now_wall=now_wall)
                      if spoken is Api.CONVERSE else
                      failure_of_response(self.name, spoken, status, response.headers, body, now_wall=now_wall))
        else:
            failed = find_in_band_failure(self.name, body) or UpstreamMisconfigured(
                self.name, Fault.MALFORMED, "the upstream did not send the requested stream" if status == 200
                else f"upstream {self.name} sent the unexpected status {status}",
                upstream_status=status)
        return self._secrets.now().redact_failure(failed)

    def _check_coding(self, response: Response) -> None:
        coding = response.headers.get("content-encoding", "").strip().lower()
        if coding and coding != "identity":
            shown = coding if coding in _CODINGS else "unknown coding"
            raise UpstreamMisconfigured(self.name, Fault.MALFORMED, f"upstream {self.name} compressed its answer ({shown}) "
                                                                    f"despite "
                                "accept-encoding: identity", upstream_status=response.status)

    def __repr__(self) -> str:
        return f"<DialectUpstream {self.name} ({self.kind}) {self._client!r}>"


class _ExpectedAnswer(msgspec.Struct, eq=False):
    """The answer of one call, before it arrives."""

    _upstream: DialectUpstream
    _call: Call
    _spoken: Api
    is_stream: bool
    transcoder: Transcoder | None = None

    def prepare(self) -> None:
        """The request has been written: prepare while the upstream works."""
        if self._call.sending is not None:
            self._call.sending.has_started = True
        self.transcoder = self._upstream.transcoder_for(self._call, self._spoken, is_stream=self.is_stream)


class UpstreamSecrets:
    """What errors of one upstream must not quote, made anew only when the authenticator's credential has changed."""

    __slots__ = ("_authenticator", "_fixed", "_known", "_seen")

    def __init__(self, fixed: Sequence[str], authenticator: Authenticator | None) -> None:
        self._fixed = fixed
        self._authenticator = authenticator
        self._seen: Sequence[str] = ()
        self._known = Secrets(fixed)

    def now(self) -> Secrets:
        if self._authenticator is not None and (seen := self._authenticator.secrets()) is not self._seen:
            self._seen, self._known = seen, Secrets([*self._fixed, *seen])
        return self._known


class UpstreamMisconfigured(UpstreamFailed):
    """The endpoint cannot serve as configured: a retry there is useless, another upstream may succeed."""

    @property
    def is_for_operator(self) -> bool:
        return True


def _key_headers(config: DialectConfig) -> tuple[tuple[str, str], ...]:
    if not config.key:
        return ()
    name = config.key_header or _KEY_HEADERS.get(config.kind, _BEARER)
    return ((name, f"Bearer {config.key}" if name == _BEARER else config.key),)


def _choose_path(path: str, *, streams: bool) -> str:
    return re.sub(r"\{([^{}|]*)\|([^{}|]*)\}", r"\2" if streams else r"\1", path)


def _spoken(api: Api, native: frozenset[Api]) -> Api | None:
    if api in native:
        return api
    return next((other for other in PREFERRED if other in native and can_translate(api, other)), None)


class HttpStream(msgspec.Struct, eq=False):
    """An answer over HTTP, translated as it is received. Ends with its protocol's last event; what follows on the connection
    is not awaited.
    """

    _response: Response
    _transcoder: Transcoder
    summary: AnswerSummary  # of the transcoder
    _secrets: Secrets
    _account: HeldBytes | None = None
    _on_end: Callable[[AnswerSummary], None] | None = None  # called when it is closed
    _is_ended: bool = False
    _holding: Holding | None = None  # None: it is small

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the upstream's answer; names in lower case."""
        return self._response.headers

    async def next(self) -> Chunk | None:
        summary = self.summary
        if summary.failure is None and not self._is_ended:
            translated = self._transcoder
            while not summary.is_complete and (data := await self._response.read()):
                chunk = translated.feed(data)
                if chunk is not None and chunk.data:
                    return chunk
                if translated.n_held_bytes > FREE_BYTES:
                    self._hold(translated.n_held_bytes)
                if not translated.is_whole or summary.failure is not None:
                    return EMPTY_CHUNK if chunk is None else chunk
            self._is_ended = True
            if translated.n_held_bytes > LARGE_BYTES:
                chunk = await asyncio.get_running_loop().run_in_executor(_READER, translated.finish)
            else:
                chunk = translated.finish()
            if chunk is not None:
                return chunk
        failure = summary.failure
        if failure is not None:
            raise self._secrets.redact_failure(failure) if isinstance(failure, UpstreamFailed) else failure
        return None

    def _hold(self, n_bytes: int) -> None:
        if self._account is not None:
            self._holding = self._holding or Holding(self._account)
            self._holding.grow_to(n_bytes)

    def cut(self) -> Chunk | None:
        return self._transcoder.end_early() if not self._is_ended else None  # else the other thread may be finishing it

    def close(self) -> None:
        """Return the connection to the pool if the answer is complete, else close it."""
        if self._on_end is not None:
            self._on_end(self.summary)
        if self._holding is not None:
            self._holding.release()
        if self.summary.is_complete:
            self._response.release()
        else:
            self._response.close()


async def count_locally(call: Call, reported: UpstreamCount | None = None) -> "CountedAnswer":
    """The answer to a request for a token count; a long prompt is counted in a thread. Raises Rejected."""
    counting, request = call.counting, call.request
    if counting is None:
        raise Rejected(f"{request.api.value} requests are not counted here.", code="unsupported_api", param="model")
    if len(request.body) > MAX_COUNTED_BYTES:
        return CountedAnswer(await asyncio.get_running_loop().run_in_executor(_READER, counting.answer, request, reported))
    return CountedAnswer(counting.answer(request, reported))


class CountedAnswer:
    """A whole answer made without an upstream call."""

    __slots__ = ("_chunk", "summary")

    def __init__(self, body: bytes) -> None:
        self._chunk: Chunk | None = Chunk(body, 1)
        self.summary = AnswerSummary()
        self.summary.is_complete = True

    async def next(self) -> Chunk | None:
        chunk, self._chunk = self._chunk, None
        return chunk

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        """Nothing to release."""
