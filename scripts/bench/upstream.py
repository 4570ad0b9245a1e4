"""A fake OpenAI upstream with fixed answers, to measure the gateway alone.

    python scripts/bench/upstream.py --port 9100 [--chunks 32] [--gap-ms 0] [--delay-ms 0]

POST /v1/chat/completions: a 600-byte JSON answer, or with "stream": true SSE chunks and [DONE]. One process.
"""

import argparse
import asyncio
import json
from typing import cast

import httptools
import uvloop

TEXT = "The quick brown fox jumps over the lazy dog while the upstream pretends to think about latency and the tail. " * 2
ANSWER = json.dumps({
    "id": "chatcmpl-bench", "object": "chat.completion", "created": 1_750_000_000, "model": "gpt-4o-mini",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT, "refusal": None}, "logprobs": None,
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 25, "completion_tokens": 32, "total_tokens": 57}}).encode()
WHOLE = (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)) + ANSWER
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunk(number: int, n_chunks: int) -> bytes:
    """One SSE event in its own HTTP chunk, as most servers send them."""
    delta = {"content": f" tok{number}", **({"role": "assistant"} if number == 0 else {})}
    event = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_750_000_000, "model": "gpt-4o-mini",
             "choices": [{"index": 0, "delta": delta, "logprobs": None,
                          "finish_reason": "stop" if number == n_chunks - 1 else None}]}
    return frame(b"data: " + json.dumps(event).encode() + b"\n\n")


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._chunks = [chunk(number, options.chunks) for number in range(options.chunks)]
        self._end = frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._handle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is not a subclass

    def connection_lost(self, why: Exception | None) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        is_stream = b'"stream":true' in self._body.replace(b" ", b"")
        self._call_after(self._options.delay_ms, self._start_stream if is_stream else self._write_whole)

    def _call_after(self, after_ms: float, act: object, *args: object) -> None:
        if after_ms > 0:
            self._handle = asyncio.get_running_loop().call_later(after_ms / 1e3, act, *args)  # type: ignore[arg-type]
        else:
            act(*args)  # type: ignore[operator]

    def _write_whole(self) -> None:
        self._transport.write(WHOLE)

    def _start_stream(self) -> None:
        self._transport.write(STREAM_HEAD)
        self._write_chunks(0)

    def _write_chunks(self, number: int) -> None:
        while number < len(self._chunks):
            self._transport.write(self._chunks[number])
            number += 1
            if self._options.gap_ms > 0:
                return self._call_after(self._options.gap_ms, self._write_chunks, number)
        self._transport.write(self._end)
        return None


async def main(options: argparse.Namespace) -> None:
    """Serve until interrupted."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(options), "127.0.0.1", options.port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--gap-ms", type=float, default=0)
    parser.add_argument("--delay-ms", type=float, default=0)
    uvloop.run(main(parser.parse_args()))
