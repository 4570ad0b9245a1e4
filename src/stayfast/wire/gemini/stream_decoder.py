"""Decodes generateContent answers, streamed or whole: a stream's events have the form of whole answers.

The protocol has no end marker. An answer is complete when a `finishReason` was read and the body ended cleanly. Each event
repeats the usage; the last one counts. A blocked prompt has no candidate: it is an answer without content, stopped by a
filter. Reasons that stand for a broken answer (a function call that is not JSON) are failures, which another attempt may
not have.
"""

from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import AnswerSummary
from stayfast.wire import usage
from stayfast.wire.dialect import (
    Begin,
    Delta,
    Finish,
    Json,
    Reason,
    StreamDecoder,
    TextDelta,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    parse_object,
    text_or_empty,
    text_or_none,
)
from stayfast.wire.gemini.request import MADE_ID
from stayfast.wire.signatures import mark_signature


class GeminiCall(Struct, gc=False):
    id: Any = None
    name: Any = None
    args: Raw = Raw(b"")


class GeminiPart(Struct, gc=False, rename="camel"):
    text: Any = None
    thought: Any = None
    thought_signature: Any = None
    function_call: GeminiCall | None = None


class GeminiContent(Struct, gc=False):
    parts: list[GeminiPart] | None = None


class GeminiCandidate(Struct, gc=False, rename="camel"):
    content: GeminiContent | None = None
    finish_reason: str | None = None
    index: int = 0


class GeminiChunk(Struct, gc=False, rename="camel"):
    candidates: list[GeminiCandidate] | None = None
    prompt_feedback: Any = None
    usage_metadata: Any = None
    model_version: Any = None
    response_id: Any = None
    error: Any = None


_CHUNK: Final = msgspec.json.Decoder(GeminiChunk)
_REASONS: Final[dict[str, Reason]] = {
    "STOP": "stop", "FINISH_REASON_UNSPECIFIED": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length",
    **dict.fromkeys((
        "SAFETY", "RECITATION", "LANGUAGE", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION",
        "PUP_LIMITED_DISABLED", "NO_IMAGE", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER"),
        "content_filter")}
_BROKEN: Final = {
    "MALFORMED_FUNCTION_CALL": "a function call that cannot be parsed (MALFORMED_FUNCTION_CALL)",
    "UNEXPECTED_TOOL_CALL": "a call of a function that was not declared (UNEXPECTED_TOOL_CALL)",
    "TOO_MANY_TOOL_CALLS": "too many tool calls and no answer (TOO_MANY_TOOL_CALLS)",
    "MALFORMED_RESPONSE": "an answer that cannot be parsed (MALFORMED_RESPONSE)"}
_UNSIGNED: Final = "MISSING_THOUGHT_SIGNATURE"
_UNSIGNED_ERROR: Final[Json] = {"error": {
    "code": 400, "status": "INVALID_ARGUMENT",
    "message": "A tool call of an earlier turn lacks the thought signature that Gemini sent with it. Send back the "
               "assistant's messages unchanged."}}


class GeminiDecoder(StreamDecoder):
    """Decodes one generateContent answer."""

    __slots__ = ("_chunk", "_has_started", "_is_finished", "_n_calls", "_signature")

    def __init__(self, upstream: str, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._chunk = GeminiChunk()
        self._has_started = False
        self._is_finished = False
        self._n_calls = 0
        self._signature = ""  # of the text so far

    def read_event(self, data: bytes, name: bytes) -> int:
        if not self._read_chunk(data):
            return 0
        n_content = 0
        for part in self._parts():
            if part.function_call is not None or (part.text and isinstance(part.text, str)):
                n_content = 1
                break
        self.summary.n_content += n_content
        self.summary.n_progress += not n_content
        return n_content

    def _read_chunk(self, data: bytes) -> bool:
        """Read metadata, failures and the finish reason. Returns False if the answer has failed."""
        try:
            chunk = self._chunk = _CHUNK.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._chunk = GeminiChunk()
            self.fail_malformed("an event of the wrong form")
            return False
        if chunk.error:
            self.fail_in_band(parse_object(data))
            return False
        summary = self.summary
        summary.usage = usage.parse_gemini_usage(chunk.usage_metadata) or summary.usage
        if summary.response_id is None and isinstance(chunk.response_id, str):
            summary.response_id, summary.model = chunk.response_id or None, text_or_none(chunk.model_version)
        reason = self._finish_reason()
        if reason is not None:
            self._is_finished = True
            summary.finish_reason = reason
            if reason in _BROKEN:
                self.fail_malformed(_BROKEN[reason])
            elif reason == _UNSIGNED:
                self.fail_in_band(_UNSIGNED_ERROR)
        return not self.has_ended

    def _candidate(self) -> GeminiCandidate | None:
        for candidate in self._chunk.candidates or ():
            if candidate.index == 0:
                return candidate
        return None

    def _parts(self) -> list[GeminiPart]:
        candidate = self._candidate()
        return candidate.content.parts or [] if candidate is not None and candidate.content is not None else []

    def _finish_reason(self) -> str | None:
        """The finish reason of this event, or why the prompt was blocked."""
        candidate, feedback = self._candidate(), self._chunk.prompt_feedback
        if candidate is not None:
            return candidate.finish_reason or None
        return text_or_none(feedback.get("blockReason")) or None if isinstance(feedback, dict) else None

    def finish(self) -> None:
        if self.has_ended:
            return
        if self._is_finished:
            self.has_ended = True
            self.summary.is_complete = True
        else:
            self.fail_truncated()

    def event_deltas(self) -> list[Delta]:
        found: list[Delta] = []
        if not self._has_started:
            self._has_started = True
            found.append(Begin(self.summary.response_id or "", self.summary.model or "", usage=self.summary.usage))
        for part in self._parts():
            found += self._part_deltas(part)
        reason = self._finish_reason()
        if reason is not None:
            if self._signature and not self._n_calls:
                found.append(ThinkingDelta("", mark_signature(self._signature)))
            found.append(Finish(self._normal_reason(reason)))
        return found

    def _normal_reason(self, reason: str) -> Reason:
        if self._candidate() is None:
            return "content_filter"
        normal = _REASONS.get(reason, "stop")
        return "tool_calls" if normal == "stop" and self._n_calls else normal

    def _part_deltas(self, part: GeminiPart) -> list[Delta]:
        signature = text_or_empty(part.thought_signature)
        if part.function_call is not None:
            return self._call_deltas(part.function_call, signature)
        self._signature = signature or self._signature
        if not (text := text_or_empty(part.text)):
            return []
        return [ThinkingDelta(text) if part.thought is True else TextDelta(text)]

    def _call_deltas(self, call: GeminiCall, signature: str) -> list[Delta]:
        ordinal = self._n_calls
        self._n_calls += 1
        given = bytes(call.args)
        arguments = msgspec.json.format(given, indent=-1).decode() if given and given != b"null" else "{}"
        begin = ToolBegin(ordinal, text_or_empty(call.id) or self._make_id(ordinal, given), text_or_empty(call.name),
                          signature)
        return [begin, ToolDelta(ordinal, arguments)]

    def _make_id(self, ordinal: int, arguments: bytes) -> str:
        digest = blake2b(f"{self.summary.response_id}/{ordinal}/".encode() + arguments, digest_size=12)
        return MADE_ID + digest.hexdigest()

    def early_end_events(self) -> list[Json]:
        """None: no client speaks this dialect."""
        return []

    def read_body(self, body: bytes) -> None:
        if not self._read_chunk(body):
            return
        chunk = self._chunk
        if not self._is_finished:
            if chunk.candidates is None:
                self.fail_malformed("an answer without candidates")
            else:
                self.fail_truncated()
            return
        self.has_ended = True
        self._complete(self.summary.usage, self.summary.finish_reason, text_or_none(chunk.response_id),
                       text_or_none(chunk.model_version))

    def body_deltas(self) -> list[Delta]:
        return self.event_deltas()
