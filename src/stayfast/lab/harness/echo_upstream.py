"""An upstream whose answer follows from the question, for proofs that compare bytes: its id, its time and its text are the
same however often and in whatever order the question arrives.

    python -m stayfast.lab.harness.echo_upstream DELAY_S

Prints its URL, then at its end nothing. `GET /calls` returns the number of calls so far.
"""

import asyncio
import sys
from hashlib import blake2b
from typing import Any, Final, cast

import httptools
import msgspec
import uvloop

_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class _Question(msgspec.Struct):
    messages: list[dict[str, Any]]


_QUESTION: Final = msgspec.json.Decoder(_Question)


class EchoConnection(asyncio.Protocol):
    """One connection."""

    n_calls = 0  # of all connections

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._parser = httptools.HttpRequestParser(self)
        self._parts: list[bytes] = []
        self._is_count = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._parts = []

    def on_url(self, url: bytes) -> None:
        self._is_count = url == b"/calls"

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if self._is_count:
            count = b"%d" % EchoConnection.n_calls
            self._transport.write(_OK % (len(count), count))
            return
        EchoConnection.n_calls += 1
        answer = answer_question(b"".join(self._parts))
        reply = _OK % (len(answer), answer)
        asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, reply)


def answer_question(body: bytes) -> bytes:
    """A chat completion that repeats the last message."""
    text = str(_QUESTION.decode(body).messages[-1]["content"])
    return msgspec.json.encode({
        "id": f"chatcmpl-{blake2b(text.encode(), digest_size=8).hexdigest()}", "object": "chat.completion",
        "created": 1_750_000_000, "model": "echo", "choices": [{
            "index": 0, "message": {"role": "assistant", "content": f"You wrote: {text}", "refusal": None}, "logprobs": None,
            "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}})


async def _serve(delay_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: EchoConnection(delay_s), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1])))
