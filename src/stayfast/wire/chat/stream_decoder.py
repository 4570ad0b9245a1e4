"""Reads chat and completions answers: what counts as content, what makes them whole, what they mean.

Whole means: a `finish_reason` for every choice. A missing `[DONE]` alone is tolerated, a `[DONE]` alone is not enough.
Leaf fields are untyped: compatible servers put lists where OpenAI puts text, and that is no reason to fail a stream.
`ChatFold` puts chunks together into the whole answer, fields unknown here included: text joins, lists grow, the rest
replaces.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import AnswerSummary
from stayfast.wire import usage
from stayfast.wire.dialect import (
    Delta,
    Finish,
    Json,
    Reason,
    StreamDecoder,
    TextDelta,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    object_in,
    optional_text,
    read_begin,
)
from stayfast.wire.errors import in_band, malformed, truncated


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


_CHUNK: Final = msgspec.json.Decoder(ChatChunk)
_REASONS: Final[dict[str, Reason]] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls",
    "content_filter": "content_filter"}


class ChatSource(StreamDecoder):
    """One chat or completions answer. One task owns it."""

    __slots__ = ("_calls", "_chunk", "_finished", "_has_started", "_is_chat", "_n_calls", "_n_choices", "_whole")

    def __init__(self, upstream: str, n_choices: int, sight: AnswerSummary, *, is_chat: bool = True) -> None:
        super().__init__(upstream, sight)
        self._whole = b""
        self._n_choices = n_choices
        self._is_chat = is_chat  # else completions
        self._finished: set[int] = set()
        self._chunk = ChatChunk()
        self._has_started = False
        self._calls: dict[int, tuple[int, str]] = {}  # the upstream's index: our ordinal and the call's id
        self._n_calls = 0

    def see(self, data: bytes, name: bytes) -> int:
        try:
            chunk = self._chunk = _CHUNK.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._see_odd(data)
        sight = self.sight
        choices = chunk.choices
        self.is_only_usage = False
        if not choices or chunk.error or name or chunk.usage is not None or sight.response_id is None:
            self._see_rare(chunk, data, name)
            if self.ended:
                return 0
        n_content = 0
        for choice in choices or ():
            delta = choice.delta
            if (delta is not None and delta.content) or _has_content(choice):
                n_content = 1
            if choice.finish_reason:  # some servers say "" until there is one
                self._finished.add(choice.index)
                sight.finish_reason = sight.finish_reason or choice.finish_reason
        sight.n_content += n_content
        return n_content

    def _see_odd(self, data: bytes) -> int:
        self._chunk = ChatChunk()
        self.is_only_usage = False
        if data.strip() == b"[DONE]":
            self.finish()
        else:
            self.fail(malformed(self._upstream, "a chunk that is not one"))
        return 0

    def _see_rare(self, chunk: ChatChunk, data: bytes, name: bytes) -> None:
        """An error, the usage, the first of all chunks, or something that only its server understands."""
        sight = self.sight
        if chunk.error or name == b"error" or (not chunk.choices and chunk.usage is None):
            parsed = object_in(data) or {"error": chunk.error}
            if parsed.get("error") or name == b"error" or "error" in (parsed.get("object"), parsed.get("type")):
                return self.fail(in_band(self._upstream, parsed))
        if chunk.usage is not None:
            self.is_only_usage = not chunk.choices
            sight.usage = usage.from_openai(chunk.usage) or sight.usage
        if sight.response_id is None and isinstance(chunk.id, str):
            sight.response_id, sight.model = chunk.id, optional_text(chunk.model)
        return None

    def finish(self) -> None:
        if self.ended:
            return
        self.ended = True
        if len(self._finished) >= self._n_choices:
            self.sight.is_complete = True
        else:
            self.sight.failure = truncated(self._upstream)

    def deltas(self) -> list[Delta]:
        """The chunk just seen, of its first choice."""
        chunk = self._chunk
        found: list[Delta] = []
        if not self._has_started and (chunk.choices or chunk.id):
            self._has_started = True
            found.append(read_begin(chunk.id, chunk.model, chunk.created))
        for choice in chunk.choices or ():
            if choice.index != 0:
                continue
            if choice.delta is not None:
                self._read(choice.delta, found)
            elif text := _text(choice.text):
                found.append(TextDelta(text))
            if choice.finish_reason:
                found.append(Finish(_REASONS.get(choice.finish_reason, "stop")))
        return found

    def _read(self, delta: ChunkDelta, found: list[Delta]) -> None:
        thought = _text(delta.reasoning_content) or _text(delta.reasoning)
        if thought:
            found.append(ThinkingDelta(thought))
        text = _text(delta.content) + _text(delta.refusal)
        if text:
            found.append(TextDelta(text))
        if isinstance(delta.tool_calls, list):
            for call in delta.tool_calls:
                if isinstance(call, dict):
                    self._read_call(call, found)

    def _read_call(self, call: Json, found: list[Delta]) -> None:
        """A new index starts a call, and so does a new id: some servers send every call with index 0."""
        given_index = call.get("index")
        index = given_index if isinstance(given_index, int) else 0
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

    def ending(self) -> list[Json]:
        """A finish reason for each choice that has none."""
        sight, chunk = self.sight, self._chunk
        sight.finish_reason = sight.finish_reason or "length"
        begin = read_begin(sight.response_id, chunk.model, chunk.created)
        head = {"id": begin.id, "object": "chat.completion.chunk" if self._is_chat else "text_completion",
                "created": begin.created_at or 0, "model": begin.model}
        empty: Json = {"delta": {}} if self._is_chat else {"text": ""}
        return [{**head, "choices": [{"index": index, **empty, "logprobs": None, "finish_reason": "length"}]}
                for index in range(self._n_choices) if index not in self._finished]

    def see_whole(self, body: bytes) -> None:
        self.ended = True
        self._whole = body
        if len(body) > LARGE_BYTES and self._see_large(body):
            return None
        parsed = object_in(body)
        if parsed.get("error"):
            return self.fail(in_band(self._upstream, parsed))
        choices = parsed.get("choices")
        if not isinstance(choices, list) or not all(
            isinstance(choice, dict) and (isinstance(choice.get("message"), dict) or isinstance(choice.get("text"), str))
            for choice in choices
        ):
            return self.fail(malformed(self._upstream, "an answer without choices"))
        self._complete(usage.from_openai(parsed.get("usage")), parsed,
                       optional_text(choices[0].get("finish_reason")) if choices else None)
        return None

    def _see_large(self, body: bytes) -> bool:
        """Read the answer without its texts; whether that was enough."""
        try:
            parsed = _LARGE.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if parsed.error or not parsed.choices or not all(
                choice.message is not None or memoryview(choice.text)[:1].tobytes() == b'"' for choice in parsed.choices):
            return False
        self._complete(usage.from_openai(parsed.usage), {"id": parsed.id, "model": parsed.model},
                       optional_text(parsed.choices[0].finish_reason))
        return True

    def whole(self) -> list[Delta]:
        """The first choice of the whole answer just seen."""
        parsed = object_in(self._whole)
        found: list[Delta] = [read_begin(parsed.get("id"), parsed.get("model"), parsed.get("created"))]
        if not parsed["choices"]:
            return found
        choice = parsed["choices"][0]
        self._read(msgspec.convert(choice.get("message") or {"content": choice.get("text")}, ChunkDelta), found)
        found.append(Finish(_REASONS.get(str(choice.get("finish_reason")), "stop")))
        return found


LARGE_BYTES: Final = 256 * 1024  # above it the texts of a whole answer are skipped, not decoded


class LargeMessage(msgspec.Struct, gc=False):
    """A message of which nothing is read."""


class LargeChoice(msgspec.Struct, gc=False):
    """A choice without its text, which only has to be there."""

    message: LargeMessage | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    finish_reason: Any = None

    def __post_init__(self) -> None:
        """Nothing to check: that Python code runs lets the loop's thread run while another decodes."""


class LargeChat(msgspec.Struct, gc=False):
    """What is read of a large whole answer that goes to its client as it is."""

    choices: list[LargeChoice] | None = None
    usage: Any = None
    id: Any = None
    model: Any = None
    error: Any = None


_LARGE: Final = msgspec.json.Decoder(LargeChat)


def _has_content(choice: ChunkChoice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal or delta.function_call
                or choice.text) or has_audio(delta.audio)


def _text(value: object) -> str:
    """Text, or the texts of a list of parts as some servers send it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def has_audio(audio: object) -> bool:
    """Whether an audio delta holds sound or words (the last one only says when it expires)."""
    return isinstance(audio, dict) and bool(audio.get("data") or audio.get("transcript"))


_NEVER_JOINED = ("role", "id", "type", "name")


class ChatFold:
    """Chat or completions chunks to one body. One task owns it."""

    __slots__ = ("_choices", "_is_chat", "_merged")

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._merged: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, chunk: Json) -> None:
        choices = chunk.get("choices") or []
        for name, value in chunk.items():
            if name not in ("choices", "object", "obfuscation") and (value is not None or name not in self._merged):
                self._merged[name] = value
        for choice in choices:
            index = choice.get("index", 0)
            whole = self._choices.setdefault(index, {"index": index})
            for name, value in choice.items():
                if name == "delta":
                    _merge(whole.setdefault("message", {"role": "assistant", "content": None}), value or {})
                elif name == "text":
                    whole["text"] = _joined(whole.get("text"), value)
                elif name == "logprobs":
                    whole["logprobs"] = _joined(whole.get("logprobs"), value)
                elif value is not None or name not in whole:
                    whole[name] = value

    def body(self) -> bytes:
        choices = [_finished(self._choices[index]) for index in sorted(self._choices)]
        kind = "chat.completion" if self._is_chat else "text_completion"
        head = {name: value for name, value in self._merged.items() if name != "usage"}
        body: Json = {"id": "", **head, "object": kind, "choices": choices}
        if self._merged.get("usage") is not None:
            body["usage"] = self._merged["usage"]
        return msgspec.json.encode(body)


def _finished(choice: Json) -> Json:
    choice.setdefault("logprobs", None)
    if "text" in choice:
        choice["text"] = _settled(choice["text"])
    message = choice.get("message")
    if message is not None:
        choice["message"] = message = {name: _settled(value) for name, value in message.items()}
        if "tool_calls" in message:
            message["tool_calls"] = [_finished_call(call) for call in message["tool_calls"]]
    return choice


def _finished_call(call: Json) -> Json:
    function = {name: _settled(value) for name, value in call["function"].items()}
    return {name: value for name, value in call.items() if name != "index"} | {"function": function}


class _Pieces(list[str]):
    """Text that still grows: joined once, at the end, so that long answers cost linear time."""


def _settled(value: Any) -> Any:
    return "".join(value) if isinstance(value, _Pieces) else value


def _merge(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for fragment in value or ():
                _merge_call(calls, fragment)
        else:
            message[name] = _joined(message.get(name), value, name)


def _merge_call(calls: list[Json], fragment: Json) -> None:
    index = fragment.get("index", 0)
    call_id = fragment.get("id")
    known = next((call for call in reversed(calls) if call["index"] == index), None)
    if known is None or (call_id and call_id != known.get("id")):
        known = {"index": index, "id": call_id, "type": "function", **fragment, "function": {"name": "", "arguments": ""}}
        calls.append(known)
    for name, value in (fragment.get("function") or {}).items():
        known["function"][name] = _joined(known["function"].get(name), value, name)


def _joined(before: Any, value: Any, name: str = "") -> Any:
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
        return {key: _joined(before.get(key), value.get(key), key) for key in before | value}
    return value
