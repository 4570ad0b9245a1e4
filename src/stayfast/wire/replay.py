"""An answer that was given, kept in one form, and given again in any: whole, or as a stream.

What is kept is the whole body in the client's own dialect. A stream is put together again by the folds that make whole
answers of streams, and told again by the writers that translate: all the text in one event, since nobody waits for it.

Only clean answers are kept: the protocol's own end was seen (of a chat the finish reason of its one choice: servers omit the
[DONE]), the model stopped by itself, and said text and nothing else. Not kept: what met a length limit, a filter or our
own time-out; what a gateway behind us gave instead of failing; refusals (the next drawing may not refuse); calls of tools
(they are acts, not answers); answers without words; and several answers where one was asked for. Such a gateway's report of
its own work (`stream_report`) is no part of the answer, and is left out.
When wrong: what a writer has no words for (annotations, citations, what nobody here knows) is in a whole body, but would not
be in a stream made of it: such an answer is given whole or not at all (`_has_only_known_fields`).
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from stayfast.core.types import FROM_CACHE, AnswerSummary, Api, Request
from stayfast.wire import sse
from stayfast.wire.dialect import TextDelta, object_in
from stayfast.wire.stream_report import MEMBER
from stayfast.wire.transcode import WRONG_SHAPE, encode_events, fold_of, source_of, writer_of
from stayfast.wire.usage import to_chat

Json = dict[str, Any]
_CLEAN: Final = frozenset(("stop", "end_turn", "stop_sequence", "completed"))
_OF_CHAT: Final = (Api.CHAT, Api.COMPLETIONS)
_ANY: Final = msgspec.json.Decoder()
_MEMBER: Final = b'"%b"' % MEMBER.encode()


# What a stream made of deltas says, or what says nothing of the answer itself.
_HEAD: Final = frozenset((
    "id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "provider", "x_groq",
    "timings", "prompt_filter_results"))
_CHOICE: Final = frozenset(("index", "message", "text", "finish_reason", "native_finish_reason", "stop_reason",
                            "content_filter_results"))
_MESSAGE: Final = frozenset(("role", "content", "reasoning_content", "reasoning"))
_MESSAGES: Final = frozenset(("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"))
_BLOCKS: Final = {"text": frozenset(("type", "text")), "thinking": frozenset(("type", "thinking", "signature"))}
_RESPONSE: Final = frozenset((
    "id", "object", "created_at", "completed_at", "status", "model", "output", "usage", "background", "billing",
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "presence_penalty",
    "frequency_penalty", "prompt_cache_key", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier",
    "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"))
_ITEMS: Final = {"message": frozenset(("id", "type", "status", "role", "content")),
                 "reasoning": frozenset(("id", "type", "status", "summary", "content"))}
_PART: Final = frozenset(("type", "text"))
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})


def is_storable(request: Request, sight: AnswerSummary, data: bytes) -> bytes | None:
    """The whole body of an answer that was given to `request` as `data`; None where it must not be given again."""
    if not sight.is_complete or sight.is_cut or sight.is_degraded or sight.failure is not None or not sight.n_content:
        return None
    if request.api is Api.EMBEDDINGS:
        return data
    if sight.finish_reason not in _CLEAN:
        return None
    try:
        body = _folded(request, data) if request.stream else _unreported(data)
        if body is None or not _SAYS_TEXT[request.api](body):
            return None
    except WRONG_SHAPE:
        return None
    if request.stream and sight.usage is not None and request.api in _OF_CHAT:
        parsed = object_in(body)
        if parsed.get("usage") is None:
            body = msgspec.json.encode({**parsed, "usage": to_chat(sight.usage)})
    return body


def _folded(request: Request, data: bytes) -> bytes | None:
    """The whole answer of a stream that has been seen to be complete; None where its report says that it is another."""
    fold = fold_of(request.api)
    for event, _ in sse.events(sse.Splitter(), data):
        if event.strip() != b"[DONE]":
            said = _ANY.decode(event)
            if _MEMBER in event and (_drops_report(said) or _drops_report(said.get("response"))):
                return None
            fold.add(said)
    return fold.body()


def _unreported(body: bytes) -> bytes | None:
    """A whole answer without the report of a stream that it was made of; None where that says that it is another."""
    if _MEMBER not in body:
        return body
    said = object_in(body)
    if MEMBER not in said:
        return body
    return None if _drops_report(said) else msgspec.json.encode(said)


def _drops_report(said: object) -> bool:
    """Takes a gateway's report out of what it stands in; whether it says that the answer is not what was asked for."""
    report = said.pop(MEMBER, None) if isinstance(said, dict) else None
    return isinstance(report, dict) and report.get("degraded") is not None


def _chat_has_text(body: bytes) -> bool:
    choices = object_in(body)["choices"]
    message = choices[0]["message"]
    is_act = message.get("tool_calls") or message.get("function_call") or message.get("refusal")
    content = message.get("content")
    return len(choices) == 1 and isinstance(content, str) and content != "" and not is_act


def _completions_have_text(body: bytes) -> bool:
    choices = object_in(body)["choices"]
    return len(choices) == 1 and bool(choices[0]["text"])


def _messages_have_text(body: bytes) -> bool:
    kinds = {block["type"] for block in object_in(body)["content"]}
    return "text" in kinds and kinds <= {"text", "thinking", "redacted_thinking"}


def _responses_have_text(body: bytes) -> bool:
    output = object_in(body)["output"]
    items = {item["type"] for item in output}
    parts = {part["type"] for item in output if item["type"] == "message" for part in item["content"]}
    return "message" in items and items <= {"message", "reasoning"} and parts == {"output_text"}


_SAYS_TEXT: Final[dict[Api, Callable[[bytes], bool]]] = {
    Api.CHAT: _chat_has_text, Api.COMPLETIONS: _completions_have_text, Api.MESSAGES: _messages_have_text,
    Api.RESPONSES: _responses_have_text}


def text_in(request: Request, body: bytes) -> str:
    """What a kept body says, in words alone; empty where that cannot be read."""
    reader = source_of(request.api, request, FROM_CACHE, AnswerSummary())
    reader.see_whole(body)
    return "".join([delta.text for delta in reader.whole() if isinstance(delta, TextDelta)])


def in_events(request: Request, body: bytes) -> bytes:
    """A kept body as the stream that `request` asks for. Raises ValueError where it cannot be said in one."""
    sight = AnswerSummary()
    reader = source_of(request.api, request, FROM_CACHE, sight)
    reader.see_whole(body)
    if sight.failure is not None:
        raise ValueError("what was kept is no answer")
    if not _has_only_known_fields(request.api, object_in(body)):
        raise ValueError("a stream has no words for some of it")
    writer = writer_of(request, 0)
    events = [event for delta in reader.whole() for event in writer.events(delta)] + writer.end(sight.usage)
    return encode_events(events, ends_with_done=request.api in _OF_CHAT)


def _has_only_known_fields(api: Api, parsed: Json) -> bool:
    """Whether a stream made of this body holds all that the body does."""
    try:
        return _SAYS_ALL[api](parsed)
    except WRONG_SHAPE:
        return False


def _in_chat(parsed: Json) -> bool:
    (choice,) = parsed["choices"]
    return _is_within(parsed, _HEAD) and _is_within(choice, _CHOICE) and _is_within(choice.get("message") or {}, _MESSAGE)


def _in_messages(parsed: Json) -> bool:
    return _is_within(parsed, _MESSAGES) and all(_is_within(block, _BLOCKS[block["type"]]) for block in parsed["content"])


def _in_response(parsed: Json) -> bool:
    items = parsed["output"]
    parts = [part for item in items for name in ("summary", "content") for part in item.get(name) or ()]
    return (_is_within(parsed, _RESPONSE) and all(_is_within(item, _ITEMS[item["type"]]) for item in items)
            and all(_is_within(part, _PART) for part in parts))


def _is_within(parsed: Json, known: frozenset[str]) -> bool:
    return parsed.keys() <= known or all(name in known or value in _NOTHING for name, value in parsed.items())


_SAYS_ALL: Final[dict[Api, Callable[[Json], bool]]] = {
    Api.CHAT: _in_chat, Api.COMPLETIONS: _in_chat, Api.MESSAGES: _in_messages, Api.RESPONSES: _in_response}
