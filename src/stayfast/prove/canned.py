"""Whole answers from a can, and callers who always send the same: load that costs next to nothing to make.

The bench and the simulator take longer for a request than the gateway does, so they can never keep it busy; half idle, it
pays for waking up, and CPU a request says as much about the machine's idling as about the gateway. These two take a tenth
of it, so one core feeds the other. They know one request and one answer: not for use.
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
BODY: Final = (
    b'{"id":"chatcmpl-canned","object":"chat.completion","created":1750000000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"The quick brown fox jumps over the lazy dog while nobody waits for the first token.",'
    b'"refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":25,"completion_tokens":32,'
    b'"total_tokens":57,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}')
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
_PLACE: Final = b"about la"  # of a question's number
_ASKED: Final = (
    b'{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":'
    b'"Say something about latency, please, and keep it short."}],"max_tokens":64,"temperature":0.2}')


def asked(number: int) -> bytes:
    """A body whose question has a number in it, of at most eight digits."""
    return _ASKED.replace(_PLACE, b"%08d" % number)


class _Messages(asyncio.Protocol):
    """One side of a connection, which sees whole messages: heads with a content-length, and their bodies."""

    def __init__(self) -> None:
        self._seen = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        seen = self._seen + data if self._seen else data
        while (head_ends := seen.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(seen, 0, head_ends + 2)
            ends = head_ends + 4 + (int(length[1]) if length is not None else 0)
            if len(seen) < ends:
                break
            message, seen = seen[:ends], seen[ends:]
            self.take(message)
        self._seen = seen

    def take(self, message: bytes) -> None:
        """A whole one came."""
        raise NotImplementedError


class _Upstream(_Messages):
    def take(self, message: bytes) -> None:
        self.transport.write(_ANSWER)


class _Caller(_Messages):
    """Asks again as soon as it is answered."""

    def __init__(self, request: bytes, ends_at: float, numbers: Iterator[int] | None) -> None:
        super().__init__()
        self._request = request
        self._numbers = numbers
        self._ends_at = ends_at
        self._loop = asyncio.get_running_loop()
        self.n_answers = self.n_failed = 0
        self.is_over: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._ask()

    def _ask(self) -> None:
        fresh = self._request if self._numbers is None else self._request.replace(_PLACE, b"%08d" % next(self._numbers))
        self.transport.write(fresh)

    def take(self, message: bytes) -> None:
        self.n_answers += 1
        self.n_failed += not message.startswith(b"HTTP/1.1 200 ")
        if self._loop.time() < self._ends_at:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.n_failed += self._loop.time() < self._ends_at
        self.is_over.set_result(None)


async def keep_busy(base_url: str, seconds: float, n_callers: int, headers: bytes = b"",
                    numbers: Iterator[int] | None = None) -> tuple[int, int]:
    """Have so many callers ask the endpoint under `base_url`; returns how many answers came, and how many calls failed.

    headers: more header lines, each with its end. numbers: each question has one of these in it; None: all are the same.
    """
    loop, parts = asyncio.get_running_loop(), urlsplit(base_url)
    request = (f"POST {parts.path}/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
               f"content-length: {len(_ASKED)}\r\n").encode() + headers + b"\r\n" + _ASKED
    ends_at = loop.time() + seconds
    where = parts.hostname or "", parts.port or 80
    callers = [(await loop.create_connection(lambda: _Caller(request, ends_at, numbers), *where))[1]
               for _ in range(n_callers)]
    for caller in callers:
        await caller.is_over
    return sum(caller.n_answers for caller in callers), sum(caller.n_failed for caller in callers)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
