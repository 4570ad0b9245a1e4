"""An HTTP/1.1 server as a target: request bodies, connections, time-outs, one sample for each request.

The number of connections has no limit: with one, requests would queue in the client, and the wait would look like the
target's (docs/decisions/0005). Connections are reused while the target keeps them open, the most recently used first. If a
reused connection closes before the first byte of the answer, the request is sent once more on a new one, as SDKs do; its
time goes on. Bytes get their timestamp when the loop delivers them, before they are parsed, and are parsed right there: no
task is woken for a chunk, because the client's cost for a chunk limits what it can measure.
"""

import asyncio
import errno
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any, Final

import httptools
import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Api
from stayfast.core.units import make_printable
from stayfast.http.client.client import split_base_url
from stayfast.http.client.dialer import Dialer, Origin, Resolver
from stayfast.lab.load.reader import MeasuredAnswer, parser_for
from stayfast.lab.load.result import Error, Sample
from stayfast.lab.load.runner import DueShot
from stayfast.lab.load.schedule import Prompts, Shot

PATHS: Final = {Api.CHAT: "/chat/completions", Api.COMPLETIONS: "/completions", Api.RESPONSES: "/responses",
                Api.MESSAGES: "/messages"}
ANTHROPIC_VERSION: Final = "2023-06-01"
EXCERPT_CHARS: Final = 200
MIN_SECRET: Final = 8  # a shorter word is no key: replacing it would garble an ordinary message
GRACE_S: Final = 0.25  # for the end of the body after the protocol's own end
DNS_TTL_S = 300.0
_ENCODE: Final = msgspec.json.Encoder().encode
_ESCAPED: Final = re.compile(r"\\(?:u00([2-7][0-9a-fA-F])|(/))")
_LIKE_A_KEY: Final = re.compile(r"(?i)\b(?:sk|pk|rk|gsk|xai|aiza)[-_*.\w]{9,}|\bbearer\s+[^\s\"',;]+")
_CLIENT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class RequestConfig:
    """How requests are written. The fields of `extra` replace those of the body; null removes a field."""

    api: Api = Api.CHAT
    model: str = "stayfast-tiny"
    stream: bool = True
    key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    extra: dict[str, Any] = field(default_factory=dict)
    allow_empty: bool = False  # a complete answer without content is a success

    def __post_init__(self) -> None:
        if self.api not in PATHS:
            raise ValueError(f"the dialect must be one of {', '.join(PATHS)}, not {self.api}")
        for name, value in self.all_headers():
            if not name or not (name + value).isascii() or any(char in name + value for char in "\r\n\0"):
                raise ValueError(f"the header {name!r} cannot be sent in HTTP")

    def all_headers(self) -> list[tuple[str, str]]:
        """The headers of every request, except host and content-length."""
        accept = "text/event-stream" if self.stream else "application/json"
        found = {"content-type": "application/json", "accept": accept, "accept-encoding": "identity",
                 "user-agent": "stayfast-bench"}
        if self.api is Api.MESSAGES:
            found["anthropic-version"] = ANTHROPIC_VERSION
        if self.key:
            found |= {"x-api-key": self.key} if self.api is Api.MESSAGES else {"authorization": f"Bearer {self.key}"}
        return list((found | {name.lower(): value for name, value in self.headers}).items())


class RequestEncoder:
    """Encodes request bodies."""

    def __init__(self, config: RequestConfig, prompts: Prompts) -> None:
        self._config = config
        self._prompts = prompts
        self._max_tokens_field = "max_output_tokens" if config.api is Api.RESPONSES else "max_tokens"

    def encode(self, shot: Shot) -> bytes:
        config = self._config
        body: dict[str, Any] = {"model": config.model, self._max_tokens_field: shot.n_output, "stream": config.stream}
        body |= self._make_prompt(shot)
        if config.stream and config.api in (Api.CHAT, Api.COMPLETIONS):
            body["stream_options"] = {"include_usage": True}
        if config.extra:
            body = {name: value for name, value in (body | config.extra).items() if value is not None}
        return _ENCODE(body)

    def _make_prompt(self, shot: Shot) -> dict[str, Any]:
        system = self._prompts.system
        dialogue = self._prompts.messages(shot)
        if self._config.api is Api.COMPLETIONS:
            return {"prompt": "\n\n".join([system] * bool(system) + [text for _, text in dialogue])}
        messages = [{"role": role, "content": text} for role, text in dialogue]
        match self._config.api:
            case Api.MESSAGES:
                return {"messages": messages} | ({"system": system} if system else {})
            case Api.RESPONSES:
                return {"input": messages} | ({"instructions": system} if system else {})
        return {"messages": [{"role": "system", "content": system}] * bool(system) + messages}


class SampleMaker:
    """Makes the samples of one target and tracks how their output tokens were counted. `secrets` are removed from
    excerpts."""

    __slots__ = ("_has_excerpt", "_n_by_chunks", "_n_by_usage", "_secrets")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        words = {word for value in secrets for word in (value, *value.split()) if len(word) >= MIN_SECRET}
        self._secrets = sorted(words, key=len, reverse=True)  # a secret may contain another
        self._has_excerpt = False
        self._n_by_usage = 0
        self._n_by_chunks = 0

    @property
    def counted_by(self) -> str:
        if self._n_by_usage and self._n_by_chunks:
            return "both"
        return "chunks" if self._n_by_chunks else "usage"

    def make_sample(self, due: DueShot, answer: MeasuredAnswer, sent_at: float, connect_s: float) -> Sample:
        """The row of one request. `sent_at`: an instant of the clock; NaN if not sent."""
        zero_at, shot, usage = due.zero_at, due.shot, answer.parser.usage
        is_by_usage = usage is not None and usage.output > 0
        self._n_by_usage += is_by_usage
        self._n_by_chunks += answer.n_chunks > 0 and not is_by_usage
        return Sample(
            shot.number, shot.at_s, sent_s=sent_at - zero_at, headers_s=answer.head_at - zero_at,
            first_s=answer.first_at - zero_at, last_s=answer.last_at - zero_at, ended_s=answer.ended_at - zero_at,
            n_input=usage.input_total if usage and usage.input_total else shot.n_input,
            n_output=usage.output if usage and is_by_usage else answer.n_chunks, n_chunks=answer.n_chunks,
            gap_max_s=answer.gap_max_s, connect_s=connect_s, shown_s=answer.shown_at - zero_at, status=answer.status,
            error=answer.error, n_upstream_attempts=answer.n_attempts, server_timing=answer.server_timing,
            excerpt=self._make_excerpt(answer.excerpt))

    def _make_excerpt(self, body: bytes) -> str:
        """The start of the first failed body, on one line, without keys; empty for later ones."""
        if self._has_excerpt or not body:
            return ""
        self._has_excerpt = True
        text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "/", body.decode("utf-8", "replace"))
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        text = make_printable(" ".join(_LIKE_A_KEY.sub("[key]", text).split()))
        return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "..."


class LoadConnection(asyncio.Protocol):
    """One connection with one request at a time. `on_free` is called when the next request may be sent, `on_gone` when the
    connection has closed."""

    __slots__ = ("_can_reuse", "_exchange", "_headers", "_is_whole", "_now", "_now_at", "_on_free", "_on_gone", "_parser",
                 "_transport", "is_gone")

    def __init__(self, transport: asyncio.Transport, now: Callable[[], float], on_free: "Callable[[LoadConnection], None]",
                 on_gone: "Callable[[LoadConnection], None]") -> None:
        self._transport = transport
        self._now = now
        self._now_at = 0.0
        self._on_free = on_free
        self._on_gone = on_gone
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: MeasuredAnswer | None = None
        self._headers: dict[bytes, bytes] = {}
        self._is_whole = False
        self._can_reuse = False
        self.is_gone = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent: the peer may have closed the connection since the last answer."""
        return not self.is_gone and not self._transport.is_closing()

    def send(self, request: bytes, exchange: MeasuredAnswer) -> float:
        """Write the request; return the instant of the write."""
        self._exchange = exchange
        sent_at = self._now()
        self._transport.write(request)
        return sent_at

    def abort(self) -> None:
        """Close at once. The caller ends the answer in flight."""
        self._exchange = None
        self.is_gone = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now_at = at = self._now()
        exchange = self._exchange
        if exchange is None:  # data without a request
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._is_whole:
                self.abort()
                exchange.set_ended(Error.MALFORMED, at)
                return
            self._can_reuse = False
        if self._is_whole:
            self._finish(exchange, at)
        elif exchange.parser.has_ended:
            asyncio.get_running_loop().call_later(GRACE_S, self._finish_without_body_end, exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        """The close is the end of a body without a length; any other body is truncated."""
        at = self._now()
        self.is_gone = True
        exchange, self._exchange = self._exchange, None
        self._on_gone(self)
        if exchange is None:
            return
        if exchange.parser.has_ended or (exc is None and exchange.status and b"content-length" not in self._headers
                                       and b"transfer-encoding" not in self._headers):
            exchange.finish(at)
            return
        exchange.is_unanswered = not exchange.status
        exchange.set_ended(Error.TRUNCATED if exc is None and exchange.status else Error.RESET, at)

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise httptools.HttpParserError("an answer without a request")
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._exchange is not None:
            self._exchange.receive_head(status, self._headers, self._now_at)

    def on_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.receive_data(data, self._now_at)

    def on_message_complete(self) -> None:
        if self._exchange is not None and self._exchange.status:
            self._is_whole = True
            self._can_reuse = self._parser.should_keep_alive()  # only valid in this callback

    def _finish(self, exchange: MeasuredAnswer, at: float) -> None:
        self._is_whole = False
        self._exchange = None
        if self._can_reuse:
            self._on_free(self)
        else:
            self.abort()
        exchange.finish(at)

    def _finish_without_body_end(self, exchange: MeasuredAnswer) -> None:
        if exchange is self._exchange:
            self.abort()
            exchange.finish(self._now())


@dataclass(frozen=True, slots=True)
class LoadTargetConfig:
    """The address of a target. `base_url`: as the dialect's SDK takes it, see `request_path`."""

    base_url: str
    request: RequestConfig
    ca_file: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        split_base_url(self.base_url)


class HttpTarget:
    """One server. Used on one event loop."""

    def __init__(self, name: str, config: LoadTargetConfig, prompts: Prompts, clock: Clock) -> None:
        base = split_base_url(config.base_url)
        origin = Origin(name, base.host, base.port, ("http/1.1",) if base.is_tls else (), config.ca_file, config.verify)
        self._dialer = Dialer(origin, Resolver(base.host, DNS_TTL_S, clock), clock)
        self._named, self._authority = f"upstream {name}", base.authority
        self._clock = clock
        self._config = config.request
        self._asker = RequestEncoder(config.request, prompts)
        fields = "".join(f"{name}: {value}\r\n" for name, value in config.request.all_headers())
        self._head = (f"POST {request_path(base.path, config.request.api)} HTTP/1.1\r\nhost: {base.authority}\r\n{fields}"
                      "content-length: ").encode()
        self._idle: dict[LoadConnection, None] = {}
        self._busy: dict[LoadConnection, MeasuredAnswer] = {}
        self._dialing: set[asyncio.Timeout] = set()
        self._tally = SampleMaker([config.request.key or "", *(value for _, value in config.request.headers)])

    @property
    def counted_by(self) -> str:
        return self._tally.counted_by

    async def send(self, due: DueShot) -> Sample:
        body = self._asker.encode(due.shot)
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        config, loop = self._config, asyncio.get_running_loop()
        connect_s = sent_at = nan
        is_fresh = False
        while True:
            exchange = MeasuredAnswer(parser_for(config.api), streams=config.stream, gaps=due.gaps, zero_at=due.zero_at,
                                      done=loop.create_future(), allows_empty=config.allow_empty)
            try:
                connection = None if is_fresh else self._pop_idle()
                if connection is None:
                    is_fresh = True
                    connection, connect_s = await self._connect(due.timeout_at)
            except (UpstreamFailed, TimeoutError) as why:
                exchange.set_ended(_classify_connect_error(why), self._clock.now())
                sample = self._tally.make_sample(due, exchange, sent_at, connect_s)
                return msgspec.structs.replace(sample, excerpt=str(why).replace(self._named, self._authority))
            self._busy[connection] = exchange
            at = connection.send(request, exchange)
            if isnan(sent_at):
                sent_at = at
            await self._wait_for_end(connection, exchange, due.timeout_at)
            if is_fresh or not exchange.is_unanswered:
                return self._tally.make_sample(due, exchange, sent_at, connect_s)
            is_fresh = True

    def close(self) -> None:
        now = self._clock.now()
        for connection, exchange in list(self._busy.items()):
            connection.abort()
            exchange.set_ended(Error.TIMEOUT, now)
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()
        for dialing in self._dialing:
            dialing.reschedule(0)

    def _pop_idle(self) -> LoadConnection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_usable:
                return connection
        return None

    async def _wait_for_end(self, connection: LoadConnection, exchange: MeasuredAnswer, timeout_at: float) -> None:
        timer = asyncio.get_running_loop().call_later(timeout_at - self._clock.now(), self._time_out, connection, exchange)
        try:
            await exchange.done
        finally:
            timer.cancel()
            self._busy.pop(connection, None)
            if not exchange.done.done():  # this task was cancelled
                connection.abort()

    def _time_out(self, connection: LoadConnection, exchange: MeasuredAnswer) -> None:
        if not exchange.done.done():
            connection.abort()
            exchange.set_ended(Error.TIMEOUT, self._clock.now())

    async def _connect(self, timeout_at: float) -> tuple[LoadConnection, float]:
        began_at = self._clock.now()
        async with asyncio.timeout(timeout_at - began_at) as dialing:
            self._dialing.add(dialing)
            try:
                dialed = await self._dialer.open()
            finally:
                self._dialing.discard(dialing)
        connection = LoadConnection(dialed.transport, self._clock.now, self._release,
                                    lambda gone: self._idle.pop(gone, None))
        dialed.transport.set_protocol(connection)
        return connection, self._clock.now() - began_at

    def _release(self, connection: LoadConnection) -> None:
        self._busy.pop(connection, None)
        self._idle[connection] = None


def request_path(base_path: str, api: Api) -> str:
    """The path of a dialect's requests. OpenAI's SDKs take a base URL that ends in /v1, so /v1 is only added to a bare host.
    Anthropic's SDKs add /v1 themselves, so both forms are accepted for messages."""
    if not base_path or (api is Api.MESSAGES and not base_path.endswith("/v1")):
        base_path += "/v1"
    return base_path + PATHS[api]


def _classify_connect_error(error: UpstreamFailed | TimeoutError) -> Error:
    if isinstance(error, TimeoutError):
        return Error.TIMEOUT
    cause = error.__cause__
    return Error.UNSENT if isinstance(cause, OSError) and cause.errno in _CLIENT_ERRNOS else Error.CONNECT
