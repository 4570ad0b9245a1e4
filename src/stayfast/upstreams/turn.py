"""An upstream whose answers are turns: functions of the operator. Clients request a turn by its name as a model.

`turns.served` runs turns. This module encodes their pieces: as typed events for clients that requested them, for all other
clients as text in their dialect. Token counts are estimates. When a client disconnects, its turn is cancelled, unless the
client may resume the events.
"""

from math import ceil
from typing import Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.core.steps import TurnSnapshot
from stayfast.core.types import COUNT_APIS, AnswerSummary, Api, Chunk, Usage
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.dialect import EMPTY_CHUNK, count_locally
from stayfast.wire.request_body import can_translate
from stayfast.wire.transcode import Transcoder, make_transcoder
from stayfast.wire.usage import estimate_input_tokens_high, estimate_text_tokens_high


class TurnPiece(msgspec.Struct, frozen=True, gc=False):
    """One event of a turn. `text`: for clients without typed events, may be empty. `event`: for clients with typed events.
    """

    text: str
    event: bytes
    id: int


class TurnRun(Protocol):
    """One client's view of a running turn. One task reads it."""

    async def next(self) -> TurnPiece | None:
        """The next piece; None after the last. Raises UpstreamFailed if the turn failed or wrote nothing."""

    def steps_so_far(self) -> TurnSnapshot:
        """Its steps so far, without those already reported for another client of the same turn."""

    def close(self) -> None:
        """End this view: the client has the whole answer, or has disconnected. Does not await; safe to call again."""


class TurnUpstream:
    """One served function. Task-safe."""

    kind = "turn"
    always_streams = True

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock

    async def start_turn(self, call: Call) -> TurnRun:
        """Start a turn, or resume this client's turn. Raises Rejected."""
        raise NotImplementedError

    def can_serve(self, api: Api) -> bool:
        """Whether the answer of this API is text, or a token count."""
        return api in COUNT_APIS or can_translate(api, Api.CHAT)

    async def open(self, call: Call) -> AnswerStream:
        """Start the turn; returns before its first piece. Raises Rejected."""
        request = call.request
        if request.api in COUNT_APIS:
            return await count_locally(call)
        if request.n_choices != 1:
            raise Rejected("A turn gives one answer to one prompt.", code="unsupported_value",
                           param="prompt" if request.api is Api.COMPLETIONS else "n")
        if call.events is None:
            return _Plain(await self.start_turn(call), call, self.name, self._clock)
        if not request.stream:
            raise Rejected("x-stayfast-events needs stream: true.", param="stream")
        return _Typed(await self.start_turn(call), call)

    def close(self) -> None:
        """Nothing idle to close."""

    def __repr__(self) -> str:
        return f"<TurnUpstream {self.name}>"


class _Plain:
    """A turn in the client's own dialect. One task reads it."""

    def __init__(self, run: TurnRun, call: Call, upstream: str, clock: Clock) -> None:
        created_at = int(clock.wall())
        self._run = run
        self._call = call
        self._transcoder: Transcoder = make_transcoder(
            Api.CHAT, call.request, source_streams=True, upstream=upstream, hide_usage=not call.request.include_usage,
            created_at=created_at)
        self._head = {"id": f"chatcmpl-{call.request_id}", "object": "chat.completion.chunk", "created": created_at,
                      "model": call.model}
        self._n_tokens = 0.0
        self._is_over = False
        self.summary: AnswerSummary = self._transcoder.summary
        self.summary.turn = run.steps_so_far

    async def next(self) -> Chunk | None:
        if self._is_over:
            return None
        piece = await self._run.next()
        if piece is None:
            return self._finish()
        if not piece.text:
            self.summary.n_progress += 1
            return EMPTY_CHUNK
        first = {} if self._n_tokens else {"role": "assistant"}
        self._n_tokens += estimate_text_tokens_high(piece.text.encode())
        return self._transcoder.feed(self._event({**first, "content": piece.text}, None)) or EMPTY_CHUNK

    def _finish(self) -> Chunk | None:
        self._is_over = True
        usage = _usage(self._call, self._n_tokens)
        usage_fields = {"prompt_tokens": usage.input_total, "completion_tokens": usage.output,
                        "total_tokens": usage.input_total + usage.output}
        last = (self._event({}, "stop") + _chunk_bytes({**self._head, "choices": [], "usage": usage_fields})
                + b"data: [DONE]\n\n")
        chunk, end = self._transcoder.feed(last), self._transcoder.finish()
        if self.summary.failure is not None:
            raise self.summary.failure
        if chunk is None or end is None:
            return chunk or end
        return Chunk(chunk.data + end.data, chunk.n_content + end.n_content)

    def _event(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        return _chunk_bytes({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    def cut(self) -> Chunk | None:
        self._is_over = True
        return self._transcoder.end_early()

    def close(self) -> None:
        self._run.close()


class _Typed:
    """A turn as typed events. All of them count as content."""

    def __init__(self, run: TurnRun, call: Call) -> None:
        self._run = run
        self._call = call
        self._n_tokens = 0.0
        self.summary = AnswerSummary()
        self.summary.turn = run.steps_so_far

    async def next(self) -> Chunk | None:
        summary = self.summary
        if summary.is_complete:
            return None
        piece = await self._run.next()
        if piece is None:
            summary.usage, summary.finish_reason, summary.is_complete = _usage(self._call, self._n_tokens), "stop", True
            return None
        self._n_tokens += estimate_text_tokens_high(piece.text.encode())
        summary.n_content += 1
        summary.n_events += 1
        return Chunk(piece.event, 1)

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        self._run.close()


def _usage(call: Call, n_tokens: float) -> Usage:
    return Usage(input_total=estimate_input_tokens_high(call.request), output=ceil(n_tokens))


def _chunk_bytes(chunk: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(chunk)
