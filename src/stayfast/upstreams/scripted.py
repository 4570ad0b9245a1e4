"""A simulated upstream that follows a script of texts, waits and failures. No sockets, so it runs on virtual time.

A script is a list of steps; requests use the scripts of a list in turn. It streams OpenAI chat through the same transcoders
as a real upstream, so that a truncated stream is handled alike.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Chunk
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import can_translate
from stayfast.wire.transcode import Transcoder, make_transcoder


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class SendText:
    text: str


@dataclass(frozen=True, slots=True)
class SendBytes:
    """Bytes of the body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Fail:
    """A failure: before any `SendText` an error response with `status`, after it a broken connection."""

    fault: Fault = Fault.RESET
    status: int | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The body ends, without the protocol's last event."""


Step = Wait | SendText | SendBytes | Fail | Cut
Script = Sequence[Step]

WORDS = ("Average ", "latency ", "is ", "a ", "lie: ", "what ", "users ", "feel ", "is ", "the ", "tail. ", "This ",
         "answer ", "was ", "simulated.")


def _pieces_of(gap_s: float) -> list[Step]:
    return [step for word in WORDS for step in (Wait(gap_s), SendText(word))]


# Mostly fast, sometimes slow to start, sometimes stalling; in a fixed order, so that runs repeat.
JAGGED: tuple[Script, ...] = (
    [Wait(0.18), *_pieces_of(0.02)],
    [Wait(0.21), *_pieces_of(0.025)],
    [Wait(0.19), *_pieces_of(0.02)],
    [Wait(1.60), *_pieces_of(0.03)],
    [Wait(0.20), *_pieces_of(0.02)[:14], Wait(0.9), *_pieces_of(0.02)[14:]],
)
STEADY: tuple[Script, ...] = ([Wait(0.05), *_pieces_of(0.01)],)
NAMED_SCRIPTS = {"jagged": JAGGED, "steady": STEADY}


class ScriptedUpstream:
    """Task-safe. Counts its calls, and those that were cancelled."""

    kind = "simulated"
    always_streams = True

    def __init__(self, name: str, scripts: Sequence[Script], clock: Clock) -> None:
        if not scripts:
            raise ValueError(f"simulated upstream {name!r} needs at least one script")
        self.name = name
        self.scripts = scripts  # played in turn; may be replaced between calls
        self._clock = clock
        self._numbers = count()
        self.n_open = 0
        self.n_calls = 0
        self.n_cancelled = 0
        self.last_closed_at: float | None = None

    def can_serve(self, api: Api) -> bool:
        return can_translate(api, Api.CHAT)

    async def open(self, call: Call) -> AnswerStream:
        number = next(self._numbers)
        self.n_calls += 1
        self.n_open += 1
        if call.sending is not None:
            call.sending.has_started = True
        stream = _ScriptedStream(self, self.scripts[number % len(self.scripts)], call, number)
        try:
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        """Nothing idle to close."""

    def __repr__(self) -> str:
        return f"<ScriptedUpstream {self.name}: {self.n_open} open, {self.n_calls} calls, {self.n_cancelled} cancelled>"


class _ScriptedStream:
    """One run of a script. One task reads it."""

    def __init__(self, upstream: ScriptedUpstream, script: Script, call: Call, number: int) -> None:
        self._upstream = upstream
        self._steps = list(script)
        self._transcoder: Transcoder = make_transcoder(Api.CHAT, call.request, source_streams=True, upstream=upstream.name,
                                                  hide_usage=not call.request.include_usage,
                                                  created_at=int(upstream._clock.wall()))
        self._head = {"id": f"chatcmpl-sim{number}", "object": "chat.completion.chunk",
                      "created": int(upstream._clock.wall()), "model": call.model}
        self._n_choices = call.request.n_choices
        self._max_tokens = call.request.max_output_tokens
        self._n_sent = 0
        self._is_closed = False
        self._is_whole = False

    @property
    def summary(self) -> AnswerSummary:
        return self._transcoder.summary

    async def begin(self) -> None:
        """Wait until the head of the answer. Raises UpstreamFailed if the script fails there."""
        while self._steps and isinstance(wait := self._steps[0], Wait):
            del self._steps[0]
            await asyncio.sleep(wait.seconds)
        if self._steps and isinstance(fail := self._steps[0], Fail):
            raise self._failed(fail)

    async def next(self) -> Chunk | None:
        failure = self.summary.failure
        if failure is not None:
            raise failure
        if self._is_whole:
            return None
        while self._steps and self._n_sent != self._max_tokens:
            step = self._steps.pop(0)
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Fail):
                raise self._failed(step)
            elif isinstance(step, Cut):
                return self._finish()
            else:
                chunk = self._transcoder.feed(self._bytes(step))
                return Chunk(b"") if chunk is None else chunk  # as over HTTP: a read without data for the client
        usage = {"prompt_tokens": 10, "completion_tokens": self._n_sent, "total_tokens": 10 + self._n_sent}
        ending = (self._event({}, "length" if self._steps else "stop") + b"data: "
                  + msgspec.json.encode({**self._head, "choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n")
        chunk = self._transcoder.feed(ending)
        last = self._finish()
        if chunk is None or last is None:
            return chunk or last
        return Chunk(chunk.data + last.data, chunk.n_content + last.n_content)

    def _finish(self) -> Chunk | None:
        self._steps.clear()
        self._is_whole = True
        last = self._transcoder.finish()
        if self.summary.failure is not None and last is None:
            raise self.summary.failure
        return last

    def _bytes(self, step: SendText | SendBytes) -> bytes:
        if isinstance(step, SendBytes):
            return step.data
        self._n_sent += 1
        first = {"role": "assistant"} if self._n_sent == 1 else {}
        return self._event({**first, "content": step.text}, None)

    def _event(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        choices = ({"index": index, "delta": delta, "finish_reason": finish_reason} for index in range(self._n_choices))
        return b"".join(b"data: " + msgspec.json.encode({**self._head, "choices": [choice]}) + b"\n\n" for choice in choices)

    def _failed(self, fail: Fail) -> UpstreamFailed:
        return UpstreamFailed(self._upstream.name, fail.fault, f"scripted {fail.fault.value}",
                              upstream_status=fail.status, retry_after_s=fail.retry_after_s)

    def cut(self) -> Chunk | None:
        self._steps.clear()
        return self._transcoder.end_early()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._upstream.n_open -= 1
        self._upstream.last_closed_at = self._upstream._clock.now()
        if not self._is_whole:
            self._upstream.n_cancelled += 1
