"""Cheap peers on loopback: an upstream with one canned answer, callers that repeat one request, and a bare proxy.

The bench and the simulator need more CPU per request than the gateway, so they cannot keep it busy. A half-idle gateway
also pays for wake-ups, which distort CPU per request. The canned upstream and its callers need a tenth of the gateway's CPU,
so one core can saturate another. The bare proxy parses each request, forwards it on a pooled connection and copies the
answer back, without deadlines, retries, checks or logs. It runs on the same event loop and parser as the gateway: the
difference between the two is the cost of the gateway's features.

    python -m stayfast.lab.harness.loopback            the canned upstream
    python -m stayfast.lab.harness.loopback UPSTREAM   the bare proxy in front of a URL
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools
import uvloop

BODY: Final = (
    b'{"id":"chatcmpl-canned","object":"chat.completion","created":1750000000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"The quick brown fox jumps over the lazy dog while nobody waits for the first token.",'
    b'"refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":25,"completion_tokens":32,'
    b'"total_tokens":57,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}')
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
_NUMBER_SLOT: Final = b"about la"  # is replaced by a number
_QUESTION: Final = (
    b'{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":'
    b'"Say something about latency, please, and keep it short."}],"max_tokens":64,"temperature":0.2}')


def numbered_question(number: int) -> bytes:
    """A body whose question contains a number of at most eight digits."""
    return _QUESTION.replace(_NUMBER_SLOT, b"%08d" % number)


class _Peer(asyncio.Protocol):
    """One end of a connection. Its parser calls `on_message_complete`."""

    parser: Any  # httptools', of requests or of responses
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)


class _CannedUpstream(_Peer):
    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)

    def on_message_complete(self) -> None:
        self.transport.write(_ANSWER)


class _Caller(_Peer):
    """Sends the next request as soon as an answer is complete."""

    def __init__(self, request: bytes, ends_at: float, numbers: Iterator[int] | None, status: int) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self._status = status
        self._request = request
        self._numbers = numbers
        self._ends_at = ends_at
        self._loop = asyncio.get_running_loop()
        self.n_answers = self.n_failed = 0
        self.is_over: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send()

    def _send(self) -> None:
        request = self._request
        if self._numbers is not None:
            request = request.replace(_NUMBER_SLOT, b"%08d" % next(self._numbers))
        self.transport.write(request)

    def on_message_complete(self) -> None:
        self.n_answers += 1
        self.n_failed += self.parser.get_status_code() != self._status
        if self._loop.time() < self._ends_at:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.n_failed += self._loop.time() < self._ends_at
        self.is_over.set_result(None)


def encode_chat_post(base_url: str, body: bytes, headers: bytes = b"") -> bytes:
    """An HTTP request to the chat endpoint under `base_url`. headers: additional lines, each with its line end."""
    parts = urlsplit(base_url)
    return (b"POST %b/chat/completions HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n%b\r\n%b" % (parts.path.encode(), parts.netloc.encode(), len(body), headers, body))


def split_address(base_url: str) -> tuple[str, int]:
    """Host and port."""
    parts = urlsplit(base_url)
    return parts.hostname or "", parts.port or 80


async def keep_busy(base_url: str, seconds: float, n_callers: int, numbers: Iterator[int] | None = None, *,
                    request: bytes | None = None, status: int = 200) -> tuple[int, int]:
    """Send requests from n_callers connections in a closed loop. Returns the numbers of answers and of failed calls.

    numbers: each question contains the next of these; None: all questions are equal. request: another one than a chat's.
    status: another one is a failure.
    """
    loop = asyncio.get_running_loop()
    request = request or encode_chat_post(base_url, _QUESTION)
    ends_at = loop.time() + seconds
    callers = [(await loop.create_connection(lambda: _Caller(request, ends_at, numbers, status),
                                             *split_address(base_url)))[1]
               for _ in range(n_callers)]
    for caller in callers:
        await caller.is_over
    return sum(caller.n_answers for caller in callers), sum(caller.n_failed for caller in callers)


class _ProxyUpstream(_Peer):
    """The proxy's connection to the upstream."""

    def __init__(self, idle: "list[_ProxyUpstream]") -> None:
        self._idle = idle
        self.parser = httptools.HttpResponseParser(self)
        self.client: _ProxyClient | None = None

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.transport.write(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.client = None
        self._idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self.client is not None:
            self.client.transport.abort()


class _ProxyClient(_Peer):
    """A client's connection to the proxy."""

    def __init__(self, idle: list[_ProxyUpstream], address: tuple[str, int]) -> None:
        self._idle = idle
        self._address = address
        self.parser = httptools.HttpRequestParser(self)
        self._dialing: asyncio.Task[None] | None = None
        self._url = b""
        self._headers: list[bytes] = []
        self._body = b""
        self._upstream: _ProxyUpstream | None = None

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        request = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (self.parser.get_method(), self._url, b"".join(self._headers), self._body)
        self._headers, self._body = [], b""
        if self._idle:
            self._send(self._idle.pop(), request)
        else:
            self._dialing = asyncio.get_running_loop().create_task(self._dial(request))

    async def _dial(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: _ProxyUpstream(self._idle), *self._address)
        self._send(upstream, request)

    def _send(self, upstream: _ProxyUpstream, request: bytes) -> None:
        self._upstream = upstream
        upstream.client = self
        upstream.transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upstream is not None and self._upstream.client is self:
            self._upstream.client = None
            self._upstream.transport.abort()


def _baseline_proxy(upstream: str) -> Callable[[], _Peer]:
    parts = urlsplit(upstream)
    idle: list[_ProxyUpstream] = []
    return lambda: _ProxyClient(idle, (parts.hostname or "", parts.port or 80))


async def _serve(make_peer: Callable[[], _Peer]) -> None:
    server = await asyncio.get_running_loop().create_server(make_peer, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(_baseline_proxy(sys.argv[1]) if len(sys.argv) > 1 else _CannedUpstream))
