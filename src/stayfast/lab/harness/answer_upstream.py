"""An upstream for proofs of durable work: the answer to a question depends on the question alone, and every call is logged.

So a run with crashes must end with the same bytes as one without, and the log shows which calls were made again, and how far
the first one had come. It speaks chat completions, whole or streamed.

    python -m stayfast.lab.harness.answer_upstream SECONDS     how long each answer takes

    GET /_calls     {"calls": [{"question": "...", "n_chunks": 8, "is_complete": true}, ...]}
    GET /_count     how many calls there were
"""

import asyncio
import sys
from hashlib import sha256
from typing import Any, Final, cast

import httptools
import msgspec
import uvloop

N_CHUNKS: Final = 8
_WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "larch",
                 "maple", "nexus", "ocean", "pearl")
USAGE: Final = {"prompt_tokens": 20, "completion_tokens": N_CHUNKS, "total_tokens": 20 + N_CHUNKS}
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n"


def answer_words(question: str) -> list[str]:
    """The words of the answer to a question."""
    return [_WORDS[byte % len(_WORDS)] for byte in sha256(question.encode()).digest()[:N_CHUNKS]]


def whole_answer(question: str, model: str) -> dict[str, Any]:
    """The chat completion that answers a question."""
    message = {"role": "assistant", "content": " ".join(answer_words(question)), "refusal": None}
    return {"id": answer_id(question), "object": "chat.completion", "created": 1_750_000_000, "model": model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}], "usage": USAGE}


def answer_id(question: str) -> str:
    """The id of the answer to a question."""
    return f"chatcmpl-{sha256(question.encode()).hexdigest()[:24]}"


class AnswerCall(msgspec.Struct):
    """One call: how many chunks it had sent, and whether its answer was complete."""

    question: str
    n_chunks: int = 0
    is_complete: bool = False


class _AnswerPeer(asyncio.Protocol):
    """One connection. Requests are answered one after another."""

    def __init__(self, calls: list[AnswerCall], seconds: float) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self._calls = calls
        self._seconds = seconds
        self._url = b""
        self._body = b""
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, body, self._url, self._body = self._url, self._body, b"", b""
        if url == b"/_calls":
            self._write_json(msgspec.json.encode({"calls": self._calls}))
        elif url == b"/_count":
            self._write_json(b"%d" % len(self._calls))
        elif url.endswith(b"/models"):
            self._write_json(b'{"object":"list","data":[]}')
        else:
            self._task = asyncio.get_running_loop().create_task(self._answer(msgspec.json.decode(body)))

    async def _answer(self, request: dict[str, Any]) -> None:
        question, model = request["messages"][-1]["content"], request["model"]
        call = AnswerCall(question)
        self._calls.append(call)
        if request.get("stream"):
            await self._stream(call, model)
        else:
            await asyncio.sleep(self._seconds)
            self._write_json(msgspec.json.encode(whole_answer(question, model)))
        call.is_complete = True

    async def _stream(self, call: AnswerCall, model: str) -> None:
        self.transport.write(_HEAD % (b"text/event-stream", b"transfer-encoding: chunked\r\n"))
        common = {"id": answer_id(call.question), "object": "chat.completion.chunk", "created": 1_750_000_000,
                  "model": model}
        for n, word in enumerate(answer_words(call.question)):
            await asyncio.sleep(self._seconds / N_CHUNKS)
            delta = {"role": "assistant", "content": word} if n == 0 else {"content": f" {word}"}
            self._write_event(common | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            call.n_chunks += 1
        self._write_event(common | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._write_event(common | {"choices": [], "usage": USAGE})
        self._write_chunk(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def _write_event(self, event: dict[str, Any]) -> None:
        self._write_chunk(b"data: %b\n\n" % msgspec.json.encode(event))

    def _write_chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _write_json(self, body: bytes) -> None:
        self.transport.write(_HEAD % (b"application/json", b"content-length: %d\r\n" % len(body)) + body)


async def _serve(seconds: float) -> None:
    calls: list[AnswerCall] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _AnswerPeer(calls, seconds), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1])))
