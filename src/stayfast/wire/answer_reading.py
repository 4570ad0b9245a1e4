"""Reads of a whole answer what its checks need: text, refusal, tool calls, log-probabilities; and what its request wants.

An answer is in the dialect of its client: a whole body, or all events of a stream. Chat completions and Responses give
log-probabilities if the request asks for them, completions as well; Messages never do.
"""

from typing import Any, Final, NamedTuple

import msgspec

from stayfast.core.types import Api, Request
from stayfast.wire import sse
from stayfast.wire.dialect import parse_object
from stayfast.wire.stored_answer import read_stored_text
from stayfast.wire.transcode import SHAPE_ERRORS, make_collector

Json = dict[str, Any]
_ANY: Final = msgspec.json.Decoder()


class AnswerContent(NamedTuple):
    """What an answer holds. logprobs: natural logarithms, by token."""

    text: str
    has_refusal: bool
    has_tool_calls: bool
    logprobs: tuple[float, ...]


class WantedOutput(NamedTuple):
    """The output format of a request. schema: None: any JSON, or no JSON at all."""

    is_json: bool
    schema: Json | bool | None


def read_answer(request: Request, data: bytes) -> AnswerContent | None:
    """The content of a whole answer; None: its form is unknown."""
    try:
        body = _collect(request.api, data) if request.stream else data
        parsed = parse_object(body)
        text = read_stored_text(request, body)
        refusal, tools, logprobs = _READERS[request.api](parsed)
    except (*SHAPE_ERRORS, KeyError):
        return None
    return AnswerContent(text, refusal, tools, logprobs)


def read_wanted_output(request: Request) -> WantedOutput:
    """Whether a request wants JSON, and by which schema."""
    try:
        fields = parse_object(request.body)
    except SHAPE_ERRORS:
        return WantedOutput(False, None)
    if request.api is Api.RESPONSES:
        found = _object(_object(fields.get("text")).get("format"))
        return WantedOutput(_is_json(found), found.get("schema"))
    if request.api is Api.MESSAGES:
        found = _object(_object(fields.get("output_config")).get("format")) or _object(fields.get("output_format"))
        return WantedOutput(_is_json(found), found.get("schema"))
    found = _object(fields.get("response_format"))
    return WantedOutput(_is_json(found), _object(found.get("json_schema")).get("schema"))


def _is_json(output: Json) -> bool:
    return output.get("type") in ("json_schema", "json_object")


def _collect(api: Api, data: bytes) -> bytes:
    collector = make_collector(api)
    for data_line, _ in sse.parse_events(sse.EventSplitter(), data):
        if data_line.strip() != b"[DONE]":
            collector.add_event(_ANY.decode(data_line))
    return collector.build_body()


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _read_chat(parsed: Json) -> tuple[bool, bool, tuple[float, ...]]:
    choices = _objects(parsed["choices"])
    messages = [_object(choice.get("message")) for choice in choices]
    refused = any(message.get("refusal") for message in messages)
    tools = any(message.get("tool_calls") or message.get("function_call") for message in messages)
    tokens = [token for choice in choices for token in _objects(_object(choice.get("logprobs")).get("content"))]
    return refused, tools, _numbers([token.get("logprob") for token in tokens])


def _read_completions(parsed: Json) -> tuple[bool, bool, tuple[float, ...]]:
    found = [value for choice in _objects(parsed["choices"])
             for value in _object(choice.get("logprobs")).get("token_logprobs") or ()]
    return False, False, _numbers(found)


def _read_messages(parsed: Json) -> tuple[bool, bool, tuple[float, ...]]:
    kinds = {block.get("type") for block in _objects(parsed["content"])}
    return parsed.get("stop_reason") == "refusal", "tool_use" in kinds, ()


def _read_responses(parsed: Json) -> tuple[bool, bool, tuple[float, ...]]:
    items = _objects(parsed["output"])
    parts = [part for item in items if item.get("type") == "message" for part in _objects(item.get("content"))]
    tools = any(str(item.get("type")).endswith("_call") for item in items)
    tokens = [token for part in parts for token in _objects(part.get("logprobs"))]
    return any(part.get("type") == "refusal" for part in parts), tools, _numbers([token.get("logprob") for token in tokens])


def _numbers(values: list[Any]) -> tuple[float, ...]:
    return tuple([float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)])


_READERS: Final = {Api.CHAT: _read_chat, Api.COMPLETIONS: _read_completions, Api.MESSAGES: _read_messages,
                   Api.RESPONSES: _read_responses}
