"""An upstream over HTTP and its server, for tests."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Api, Chunk
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from tests.unit.http.client.peers import Caller, Peer, listening
from tests.unit.wire.recorded import request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
KEY = "sk-live-4f9a0c77e1"


class Bench:
    """A peer, an upstream that speaks to it, and the client beneath."""

    def __init__(self, peer: Peer, api: Api, *, always_streams: bool = False) -> None:
        self.peer = peer
        self.caller = Caller(peer.port)
        config = DialectConfig("openai", frozenset({api}), KEY, always_streams=always_streams)
        self.upstream = DialectUpstream("up", config, self.caller.client, SystemClock())

    def open(self, client: Api = Api.CHAT, *, stream: bool = True,
             wants_parts: bool = False) -> "asyncio.Task[AnswerStream]":
        """Ask in a task."""
        now = time.monotonic()
        call = Call(request(client, stream=stream), "m", "req_1", Deadline(now + 5), 5.0, prefers_stream=wants_parts)
        return asyncio.get_running_loop().create_task(self.upstream.open(call))

    async def failure(self, answer: bytes, *, stream: bool = True) -> UpstreamFailed:
        """How the upstream fails at one answer, in its head or in its body."""
        opening = self.open(stream=stream)
        talk = await self.peer.accept()
        await talk.request()
        talk.say(answer)
        with pytest.raises(UpstreamFailed) as failed:
            await rest(await opening)
        return failed.value


@contextlib.asynccontextmanager
async def bench(api: Api = Api.CHAT, *, always_streams: bool = False) -> AsyncIterator[Bench]:
    """A bench, with all its connections closed at the end."""
    async with listening() as peer:
        it = Bench(peer, api, always_streams=always_streams)
        try:
            yield it
        finally:
            it.upstream.close()


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(status: str, body: bytes, *fields: str) -> bytes:
    """A whole answer with a length."""
    head = "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *fields])
    return head.encode() + b"\r\n\r\n" + body


async def rest(stream: AnswerStream) -> list[Chunk]:
    """All that still comes; the stream is closed."""
    found = []
    try:
        while (one := await stream.next()) is not None:
            found.append(one)
    finally:
        stream.close()
    return found
