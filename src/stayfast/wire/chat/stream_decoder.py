"""Decodes chat and completions answers, and collects their chunks into the whole answer.

An answer is complete when every choice has a `finish_reason`. `[DONE]` may be missing, and is not sufficient. Leaf fields
are untyped: compatible servers send lists where OpenAI sends text, which must not fail a stream. The collector joins text,
extends lists and replaces everything else, unknown fields included.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import AnswerSummary
from stayfast.wire import usage
from stayfast.wire.dialect import (
    BodyDecoder,
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
    read_begin,
    text_or_none,
)


class ChunkDelta(Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    refusal: Any = None
    function_call: Any = None
    audio: Any = None


class ChunkChoice(Struct, gc=False):
    index: int = 0
    delta: ChunkDelta | None = None
    text: Any = None
    finish_reason: str | None = None


class ChatChunk(Struct, gc=False):
    choices: list[ChunkChoice] | None = None
    usage: Any = None
    error: Any = None
    id: Any = None
    model: Any = None
    created: Any = None
    service_tier: Any = None
    timings: Any = None


_CHUNK: Final = msgspec.json.Decoder(ChatChunk)
_REASONS: Final[dict[str, Reason]] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls",
    "content_filter": "content_filter"}


LARGE_BYTES: Final = 256 * 1024  # a check of all texts of a larger answer would take too long


class WholeMessage(msgspec.Struct, gc=False):
    """A message whose fields are skipped."""


class WholeChoice(msgspec.Struct, gc=False):
    """A choice whose text is not decoded. `__post_init__` runs Python code for each, which lets the event loop's thread run
    during a long decode.
    """

    message: WholeMessage | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a choice without an answer."""
        if self.message is None and memoryview(self.text)[:1].tobytes() != b'"':
            raise ValueError("neither a message nor a text")


class WholeChat(msgspec.Struct, gc=False):
    """The fields that are read of a whole answer."""

    choices: list[WholeChoice] | None = None
    usage: Any = None
    id: str | None = None
    model: str | None = None
    error: Any = None
    service_tier: Any = None


_WHOLE: Final = msgspec.json.Decoder(WholeChat)


class WholeChatDecoder(BodyDecoder):
    """Decodes one whole chat or completions answer."""

    __slots__ = ()

    def read_body(self, body: bytes) -> None:
        self.has_ended = True
        try:
            if len(body) <= LARGE_BYTES:
                str(body, "utf-8")  # the decoder does not check the texts that it skips
            parsed = _WHOLE.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._read_odd_body(body)
        if parsed.error or not parsed.choices:
            return self._read_odd_body(body)
        return self._complete(usage.parse_openai_usage(parsed.usage, parsed.service_tier), parsed.choices[0].finish_reason,
                              parsed.id, parsed.model)

    def _read_odd_body(self, body: bytes) -> None:
        """Read an error, no answer at all, or an answer without choices or with a wrong type in it."""
        parsed = parse_object(body)
        if parsed.get("error"):
            return self.fail_in_band(parsed)
        choices = parsed.get("choices")
        if not isinstance(choices, list) or not all(
            isinstance(choice, dict) and (isinstance(choice.get("message"), dict) or isinstance(choice.get("text"), str))
            for choice in choices
        ):
            return self.fail_malformed("an answer without choices")
        return self._complete(usage.parse_openai_usage(parsed.get("usage"), parsed.get("service_tier")),
                              text_or_none(choices[0].get("finish_reason")) if choices else None,
                              text_or_none(parsed.get("id")), text_or_none(parsed.get("model")))


class ChatDecoder(StreamDecoder, WholeChatDecoder):
    """Decodes one chat or completions answer, streamed or whole."""

    __slots__ = ("_calls", "_chunk", "_finished", "_has_started", "_is_chat", "_n_calls", "_n_choices", "_whole")

    def __init__(self, upstream: str, n_choices: int, summary: AnswerSummary, *, is_chat: bool = True) -> None:
        super().__init__(upstream, summary)
        self._whole = b""
        self._n_choices = n_choices
        self._is_chat = is_chat  # False: completions
        self._finished: set[int] = set()  # indexes of choices with a finish reason
        self._chunk = ChatChunk()
        self._has_started = False
        self._calls: dict[int, tuple[int, str]] = {}  # by the upstream's index: ordinal and id
        self._n_calls = 0

    def read_event(self, data: bytes, name: bytes) -> int:
        try:
            chunk = self._chunk = _CHUNK.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._read_non_chunk(data)
        summary = self.summary
        choices = chunk.choices
        self.holds_only_usage = False
        if not choices or chunk.error or name or chunk.usage is not None or summary.response_id is None:
            self._read_metadata(chunk, data, name)
            if self.has_ended:
                return 0
        n_content = 0
        for choice in choices or ():
            delta = choice.delta
            if (delta is not None and delta.content) or _has_content(choice):
                n_content = 1
            if choice.finish_reason:  # some servers send "" in every other chunk
                self._finished.add(choice.index)
                summary.finish_reason = summary.finish_reason or choice.finish_reason
        summary.n_content += n_content
        return n_content

    def _read_non_chunk(self, data: bytes) -> int:
        self._chunk = ChatChunk()
        self.holds_only_usage = False
        if data.strip() == b"[DONE]":
            self.finish()
        else:
            self.fail_malformed("an event that is no chunk")
        return 0

    def _read_metadata(self, chunk: ChatChunk, data: bytes, name: bytes) -> None:
        """Read errors, usage, and the id and model of the first chunk."""
        summary = self.summary
        if chunk.error or name == b"error" or (not chunk.choices and chunk.usage is None):
            parsed = parse_object(data) or {"error": chunk.error}
            if parsed.get("error") or name == b"error" or "error" in (parsed.get("object"), parsed.get("type")):
                return self.fail_in_band(parsed)
        if chunk.usage is not None:
            self.holds_only_usage = not chunk.choices
            summary.usage = usage.parse_openai_usage(chunk.usage, chunk.service_tier) or summary.usage
            if chunk.timings is not None:
                summary.decode = usage.parse_timings(chunk.timings)
        if summary.response_id is None and isinstance(chunk.id, str):
            summary.response_id, summary.model = chunk.id, text_or_none(chunk.model)
        return None

    def finish(self) -> None:
        if self.has_ended:
            return
        if len(self._finished) >= self._n_choices:
            self.has_ended = True
            self.summary.is_complete = True
        else:
            self.fail_truncated()

    def event_deltas(self) -> list[Delta]:
        """The deltas of the last chunk's first choice."""
        chunk = self._chunk
        found: list[Delta] = []
        if not self._has_started and (chunk.choices or chunk.id):
            self._has_started = True
            found.append(read_begin(chunk.id, chunk.model, chunk.created))
        for choice in chunk.choices or ():
            if choice.index != 0:
                continue
            if choice.delta is not None:
                self._append_deltas(choice.delta, found)
            elif text := _join_text(choice.text):
                found.append(TextDelta(text))
            if choice.finish_reason:
                found.append(Finish(_REASONS.get(choice.finish_reason, "stop")))
        return found

    def _append_deltas(self, delta: ChunkDelta, found: list[Delta]) -> None:
        reasoning = _join_text(delta.reasoning_content) or _join_text(delta.reasoning)
        if reasoning:
            found.append(ThinkingDelta(reasoning))
        text = _join_text(delta.content) + _join_text(delta.refusal)
        if text:
            found.append(TextDelta(text))
        if isinstance(delta.tool_calls, list):
            for call in delta.tool_calls:
                if isinstance(call, dict):
                    self._append_call(call, found)

    def _append_call(self, call: Json, found: list[Delta]) -> None:
        """A new index starts a call, and so does a new id: some servers send every call with index 0."""
        index = index if isinstance(index := call.get("index"), int) else 0
        call_id = call.get("id") or ""
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        known = self._calls.get(index)
        if known is None or (call_id and call_id != known[1]):
            known = (self._n_calls, str(call_id))
            self._calls[index] = known
            self._n_calls += 1
            found.append(ToolBegin(known[0], known[1] or f"call_{known[0]}", str(function.get("name") or "")))
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if isinstance(arguments, str) and arguments:
            found.append(ToolDelta(known[0], arguments))

    def early_end_events(self) -> list[Json]:
        """A finish reason for each choice without one."""
        summary, chunk = self.summary, self._chunk
        summary.finish_reason = summary.finish_reason or "length"
        begin = read_begin(summary.response_id, chunk.model, chunk.created)
        head = {"id": begin.id, "object": "chat.completion.chunk" if self._is_chat else "text_completion",
                "created": begin.created_at or 0, "model": begin.model}
        empty: Json = {"delta": {}} if self._is_chat else {"text": ""}
        return [{**head, "choices": [{"index": index, **empty, "logprobs": None, "finish_reason": "length"}]}
                for index in range(self._n_choices) if index not in self._finished]

    def read_body(self, body: bytes) -> None:
        self._whole = body
        super().read_body(body)

    def body_deltas(self) -> list[Delta]:
        """The deltas of the answer's first choice."""
        parsed = parse_object(self._whole)
        found: list[Delta] = [read_begin(parsed.get("id"), parsed.get("model"), parsed.get("created"))]
        if not parsed["choices"]:
            return found
        choice = parsed["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        self._append_deltas(msgspec.convert(message, ChunkDelta), found)
        found.append(Finish(_REASONS.get(str(choice.get("finish_reason")), "stop")))
        return found


class OddUsageDecoder(ChatDecoder):
    """Also reads usage from the last choice (Moonshot), or from `x_groq` (Groq)."""

    __slots__ = ()

    def read_event(self, data: bytes, name: bytes) -> int:
        n_content = super().read_event(data, name)
        if self.summary.usage is None and b'"usage"' in data:
            chunk = parse_object(data)
            places = [*(chunk.get("choices") or ()), chunk.get("x_groq")]
            found = (usage.parse_openai_usage(place.get("usage")) for place in places if isinstance(place, dict))
            self.summary.usage = next((count for count in found if count is not None), None)
        return n_content


def _has_content(choice: ChunkChoice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal or delta.function_call
                or choice.text) or has_audio(delta.audio)


def _join_text(value: object) -> str:
    """Text, or the joined texts of a list of parts, which some servers send."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def has_audio(audio: object) -> bool:
    """Whether an audio delta contains sound or a transcript. The last delta only has an expiry time."""
    return isinstance(audio, dict) and bool(audio.get("data") or audio.get("transcript"))


_NEVER_JOINED = ("role", "id", "type", "name")


class ChatCollector:
    """Collects chat or completions chunks."""

    __slots__ = ("_choices", "_is_chat", "_merged")

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._merged: Json = {}
        self._choices: dict[int, Json] = {}

    def add_event(self, chunk: Json) -> None:
        choices = chunk.get("choices") or []
        for name, value in chunk.items():
            if name not in ("choices", "object", "obfuscation") and (value is not None or name not in self._merged):
                self._merged[name] = value
        for choice in choices:
            index = choice.get("index", 0)
            merged = self._choices.setdefault(index, {"index": index})
            for name, value in choice.items():
                if name == "delta":
                    _merge_delta(merged.setdefault("message", {"role": "assistant", "content": None}), value or {})
                elif name in ("text", "logprobs"):
                    merged[name] = _join(merged.get(name), value)
                elif value is not None or name not in merged:
                    merged[name] = value

    def build_body(self) -> bytes:
        choices = [_finish_choice(self._choices[index]) for index in sorted(self._choices)]
        kind = "chat.completion" if self._is_chat else "text_completion"
        head = {name: value for name, value in self._merged.items() if name != "usage"}
        body: Json = {"id": "", **head, "object": kind, "choices": choices}
        if self._merged.get("usage") is not None:
            body["usage"] = self._merged["usage"]
        return msgspec.json.encode(body)


def _finish_choice(choice: Json) -> Json:
    choice.setdefault("logprobs", None)
    if "text" in choice:
        choice["text"] = _join_pieces(choice["text"])
    message = choice.get("message")
    if message is not None:
        choice["message"] = message = {name: _join_pieces(value) for name, value in message.items()}
        if "tool_calls" in message:
            message["tool_calls"] = [_finish_call(call) for call in message["tool_calls"]]
    return choice


def _finish_call(call: Json) -> Json:
    function = {name: _join_pieces(value) for name, value in call["function"].items()}
    return {name: value for name, value in call.items() if name != "index"} | {"function": function}


class _Pieces(list[str]):
    """Pieces of a text, joined once at the end: a long answer takes linear time."""


def _join_pieces(value: Any) -> Any:
    return "".join(value) if isinstance(value, _Pieces) else value


def _merge_delta(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for fragment in value or ():
                _merge_call(calls, fragment)
        else:
            message[name] = _join(message.get(name), value, name)


def _merge_call(calls: list[Json], fragment: Json) -> None:
    index = fragment.get("index", 0)
    call_id = fragment.get("id")
    known = next((call for call in reversed(calls) if call["index"] == index), None)
    if known is None or (call_id and call_id != known.get("id")):
        known = {"index": index, "id": call_id, "type": "function", **fragment, "function": {"name": "", "arguments": ""}}
        calls.append(known)
    for name, value in (fragment.get("function") or {}).items():
        known["function"][name] = _join(known["function"].get(name), value, name)


def _join(before: Any, value: Any, name: str = "") -> Any:
    if value is None:
        return before
    if not before or name in _NEVER_JOINED:
        return value
    if isinstance(value, str) and isinstance(before, _Pieces):
        before.append(value)
        return before
    if isinstance(before, str) and isinstance(value, str):
        return _Pieces((before, value))
    if isinstance(before, list) and isinstance(value, list):
        before.extend(value)
        return before
    if isinstance(before, dict) and isinstance(value, dict):
        return {key: _join(before.get(key), value.get(key), key) for key in before | value}
    return value
