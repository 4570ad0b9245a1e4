"""Parses an answer for the bench: the times of generated pieces, the protocol's own end, errors, token counts.

It does not use the decoders of `stayfast.wire`, because a measuring instrument must not share the mistakes of what it
measures. A test compares the two. A piece is non-empty text, reasoning or tool arguments. Not pieces: a chunk with only a
role or a tool's name, usage, encrypted reasoning, comments, `message_start`, `ping`, `response.created`.
"""

import asyncio
from abc import ABC, abstractmethod
from math import isnan, nan
from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import Api, Usage
from stayfast.lab.load.result import Error, GapCounts
from stayfast.wire import sse, usage

NOTHING, HIDDEN, SHOWN = 0, 1, 2  # an event holds no piece, only reasoning, or output for the user or a tool
_BAD_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ANY: Final = msgspec.json.Decoder()


class AnswerParser(ABC):
    """Parses one answer. `has_ended`: the rest of the body is ignored. `error` is NONE for a complete answer, and until an
    error is found."""

    def __init__(self) -> None:
        self.has_ended = False
        self.error = Error.NONE
        self.is_empty = False  # a non-streamed answer without content
        self.usage: Usage | None = None

    def read_event(self, data: bytes, name: bytes) -> int:
        """Read one event: NOTHING, HIDDEN or SHOWN."""
        try:
            return self._read_event(data, name)
        except _BAD_JSON:
            self._stop(Error.MALFORMED)
            return NOTHING

    def read_body(self, body: bytes) -> None:
        """Read a non-streamed answer."""
        try:
            parsed = _ANY.decode(body)
        except _BAD_JSON:
            parsed = None
        if not isinstance(parsed, dict):
            self._stop(Error.MALFORMED)
        elif parsed.get("error"):
            self._stop(Error.STREAM_ERROR)
        else:
            self.usage = self._parse_usage(parsed.get("usage"))
            self._stop(Error.NONE if self._is_answer(parsed) else Error.MALFORMED)
            self.is_empty = not self._has_content(parsed)

    def finish(self) -> None:
        """The body has ended. Without the protocol's own end, the answer is truncated."""
        if not self.has_ended:
            self._stop(Error.TRUNCATED)

    def _stop(self, error: Error) -> None:
        self.has_ended = True
        self.error = error

    @abstractmethod
    def _read_event(self, data: bytes, name: bytes) -> int:
        """Read one event; may raise _BAD_JSON."""

    def _parse_usage(self, parsed: object) -> Usage | None:
        return usage.parse_openai_usage(parsed)

    @abstractmethod
    def _is_answer(self, parsed: dict[str, Any]) -> bool:
        """Whether a non-streamed body has the required fields."""

    @abstractmethod
    def _has_content(self, parsed: dict[str, Any]) -> bool:
        """Whether a non-streamed body holds a piece; an unknown shape counts as one."""


class _Function(Struct, gc=False):
    arguments: Any = None


class _Call(Struct, gc=False):
    function: _Function | None = None


class _Delta(Struct, gc=False):
    """The fields of a chat delta, a messages delta or content block, and a reasoning detail."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: "list[_Delta] | None" = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    refusal: Any = None
    text: Any = None
    summary: Any = None
    thinking: Any = None
    partial_json: Any = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class ChatParser(AnswerParser):
    """Chat and completions. Complete: a `finish_reason`, then `[DONE]` or the end of the body."""

    def __init__(self) -> None:
        super().__init__()
        self._has_finished = False

    def _read_event(self, data: bytes, name: bytes) -> int:
        if data == b"[DONE]":
            self.finish()
            return NOTHING
        chunk = _CHUNK.decode(data)
        if chunk.error or name == b"error" or chunk.object == "error":
            self._stop(Error.STREAM_ERROR)
            return NOTHING
        if chunk.usage is not None:
            self.usage = usage.parse_openai_usage(chunk.usage) or self.usage
        found = NOTHING
        for choice in chunk.choices or ():
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or _is_shown(delta))):
                found = SHOWN
            elif delta is not None and found == NOTHING and (
                    delta.reasoning_content or delta.reasoning
                    or any(detail.text or detail.summary for detail in delta.reasoning_details or ())):
                found = HIDDEN
            if choice.finish_reason:
                self._has_finished = True
        return found

    def finish(self) -> None:
        if not self.has_ended:
            self._stop(Error.NONE if self._has_finished else Error.TRUNCATED)

    def _is_answer(self, parsed: dict[str, Any]) -> bool:
        return isinstance(parsed.get("choices"), list) and bool(parsed["choices"])

    def _has_content(self, parsed: dict[str, Any]) -> bool:
        return any(_has_text(choice.get("message") or choice) for choice in _only_dicts(parsed.get("choices")))


def _only_dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _has_text(value: object) -> bool:
    """Whether a message of chat, or a choice of completions, holds a piece."""
    return isinstance(value, dict) and any(value.get(name) for name in (
        "content", "text", "tool_calls", "function_call", "refusal", "reasoning_content", "reasoning", "reasoning_details",
        "audio"))


def _is_shown(delta: _Delta) -> bool:
    if delta.refusal or (delta.function_call is not None and delta.function_call.arguments):
        return True
    return any(call.function is not None and call.function.arguments for call in delta.tool_calls or ())


class _WithUsage(Struct, gc=False):
    usage: Any = None


class _MessagesEvent(Struct, gc=False):
    type: str = ""
    message: _WithUsage | None = None
    content_block: _Delta | None = None
    delta: _Delta | None = None
    usage: Any = None


_MESSAGES: Final = msgspec.json.Decoder(_MessagesEvent)


class MessagesParser(AnswerParser):
    """Messages. Complete: `message_stop`."""

    def _read_event(self, data: bytes, name: bytes) -> int:
        event = _MESSAGES.decode(data)
        match event.type:
            case "content_block_delta" | "content_block_start":
                part = event.delta or event.content_block
                if part is not None and (part.text or part.partial_json):
                    return SHOWN
                return HIDDEN if part is not None and part.thinking else NOTHING
            case "message_start" if event.message is not None:
                self.usage = usage.parse_anthropic_usage(event.message.usage, self.usage)
            case "message_delta":
                self.usage = usage.parse_anthropic_usage(event.usage, self.usage)
            case "message_stop":
                self._stop(Error.NONE)
            case "error":
                self._stop(Error.STREAM_ERROR)
        return NOTHING

    def _parse_usage(self, parsed: object) -> Usage | None:
        return usage.parse_anthropic_usage(parsed)

    def _is_answer(self, parsed: dict[str, Any]) -> bool:
        return isinstance(parsed.get("content"), list)

    def _has_content(self, parsed: dict[str, Any]) -> bool:
        return any(block.get("text") or block.get("thinking") or block.get("type") not in ("text", "thinking")
                   for block in _only_dicts(parsed.get("content")))


class _ResponsesEvent(Struct, gc=False):
    type: str = ""
    delta: Any = None
    response: _WithUsage | None = None


_RESPONSES: Final = msgspec.json.Decoder(_ResponsesEvent)


class ResponsesParser(AnswerParser):
    """Responses. Complete: `response.completed` or `response.incomplete`."""

    def _read_event(self, data: bytes, name: bytes) -> int:
        if data == b"[DONE]":
            return NOTHING  # sent by some servers, as in chat; not the end of a response
        event = _RESPONSES.decode(data)
        if event.type.endswith(".delta"):
            if not event.delta:
                return NOTHING
            return HIDDEN if event.type.startswith("response.reasoning") else SHOWN
        if event.type in ("response.completed", "response.incomplete"):
            if event.response is not None:
                self.usage = usage.parse_openai_usage(event.response.usage)
            self._stop(Error.NONE)
        elif event.type in ("response.failed", "response.cancelled", "error") or name == b"error":
            self._stop(Error.STREAM_ERROR)
        return NOTHING

    def _is_answer(self, parsed: dict[str, Any]) -> bool:
        return isinstance(parsed.get("output"), list) and parsed.get("status") in ("completed", "incomplete")

    def _has_content(self, parsed: dict[str, Any]) -> bool:
        for item in _only_dicts(parsed.get("output")):
            parts = [*_only_dicts(item.get("content")), *_only_dicts(item.get("summary"))]
            if item.get("type") not in ("message", "reasoning") or any(
                    part.get("text") or part.get("refusal") for part in parts):
                return True
        return False


def parser_for(api: Api) -> AnswerParser:
    match api:
        case Api.MESSAGES:
            return MessagesParser()
        case Api.RESPONSES:
            return ResponsesParser()
    return ChatParser()


MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # of a non-streamed answer
EXCERPT_BYTES: Final = 2000  # of a failed answer
_TIMING: Final = b": server-timing "
_OK, _TOO_MANY = 200, 429


class MeasuredAnswer:
    """One answer: its instants by the clock (NaN: did not happen), its counts and its error. `done` is set at its end.
    `allows_empty`: a complete answer without content is a success."""

    __slots__ = ("_allows_empty", "_body", "_gaps", "_n_body", "_splitter", "_streams", "_zero_at", "done", "ended_at",
                 "error", "first_at", "gap_max_s", "head_at", "is_unanswered", "last_at", "n_attempts", "n_chunks",
                 "parser", "server_timing", "shown_at", "status")

    def __init__(self, reader: AnswerParser, *, streams: bool, gaps: GapCounts, zero_at: float, done: "asyncio.Future[None]",
                 allows_empty: bool = False) -> None:
        self.parser = reader
        self._allows_empty = allows_empty
        self.done = done
        self.status = 0
        self.error = Error.NONE
        self.head_at = self.first_at = self.shown_at = self.last_at = self.ended_at = self.gap_max_s = nan
        self.n_chunks = 0
        self.n_attempts = 0
        self.server_timing = ""
        self.is_unanswered = False
        self._splitter = sse.EventSplitter()
        self._streams = streams
        self._gaps = gaps
        self._zero_at = zero_at
        self._body: list[bytes] = []
        self._n_body = 0

    @property
    def excerpt(self) -> bytes:
        """The start of a failed answer's body; empty for a success."""
        return b"".join(self._body)[:EXCERPT_BYTES] if self.error is not Error.NONE else b""

    def receive_head(self, status: int, headers: dict[bytes, bytes], at: float) -> None:
        self.status = status
        self.head_at = at
        self.server_timing = headers.get(b"server-timing", b"").decode("latin-1")
        attempts = headers.get(b"x-stayfast-attempts", b"")
        self.n_attempts = int(attempts) if attempts.isdigit() and len(attempts) < 10 else 0
        if status != _OK:
            self.error = Error.RATE_LIMITED if status == _TOO_MANY else Error.STATUS
        elif self._streams and not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.error = Error.MALFORMED

    def receive_data(self, data: bytes, at: float) -> None:
        if self.error is not Error.NONE:
            self._add_to_excerpt(data)
            return
        if not self._streams:
            self._n_body += len(data)
            if self._n_body > MAX_BODY_BYTES:
                self.error = Error.MALFORMED
            self._body.append(data)
            return
        try:
            blocks = self._splitter.feed(data)
        except sse.EventTooLong:
            self.error = Error.MALFORMED
            return
        are_data = self._splitter.are_bare_data
        for block in blocks:
            event_data, name = (block, b"") if are_data else sse.parse_block(block)
            if event_data is not None:
                if not self.parser.has_ended:
                    self._read_event(event_data, name, at)
            elif block.startswith(_TIMING):
                self.server_timing = block[len(_TIMING):].decode("latin-1")

    def _add_to_excerpt(self, data: bytes) -> None:
        if self._n_body < EXCERPT_BYTES:
            self._n_body += len(data)
            self._body.append(data)

    def _read_event(self, data: bytes, name: bytes, at: float) -> None:
        piece = self.parser.read_event(data, name)
        if piece != NOTHING:
            self._add_piece(at, is_shown=piece == SHOWN)
        if self.parser.has_ended:
            self.ended_at = at
            if self.parser.error is not Error.NONE:
                self._add_to_excerpt(data)

    def _add_piece(self, at: float, *, is_shown: bool) -> None:
        self.n_chunks += 1
        if self.n_chunks == 1:
            self.first_at = at
        else:
            gap_s = at - self.last_at
            self._gaps.add(at - self._zero_at, gap_s)
            if not gap_s <= self.gap_max_s:  # also true if gap_max_s is NaN
                self.gap_max_s = gap_s
        if is_shown and isnan(self.shown_at):
            self.shown_at = at
        self.last_at = at

    def finish(self, at: float) -> None:
        """The body is complete."""
        reader = self.parser
        if self.error is Error.NONE and not self._streams:
            reader.read_body(b"".join(self._body))
            if reader.error is Error.NONE and not reader.is_empty:
                self._add_piece(at, is_shown=True)
        elif self.error is Error.NONE:
            if not reader.has_ended and self._splitter.pending:  # the last event may lack its blank line
                data, name = sse.parse_block(self._splitter.take_rest())
                if data is not None:
                    self._read_event(data, name, at)
            reader.finish()
        is_empty = reader.error is Error.NONE and not self.n_chunks and not self._allows_empty
        self.set_ended(Error.EMPTY if is_empty else reader.error, at)

    def set_ended(self, error: Error, at: float) -> None:
        """The answer has ended, or is abandoned. The first error stays."""
        if self.done.done():
            return
        self.error = self.error or error
        if isnan(self.ended_at):
            self.ended_at = at
        self.done.set_result(None)
