"""Requests and answers in the three dialects, streamed and whole, for tests that hold for all of them."""

from dataclasses import dataclass
from typing import Any

import msgspec

from stayfast.core.types import Api, Request
from stayfast.wire.request_body import decode
from tests.flow.rig import MODEL

DIALECTS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
TEXT = "The models are busy. Please try again in a minute."


def ask(api: Api, *, stream: bool, **fields: object) -> Request:
    """A request for an answer."""
    said: dict[str, object] = {"model": MODEL, "stream": stream, **fields}
    if api is Api.RESPONSES:
        said["input"] = "hello"
        said.setdefault("store", False)  # else no attempt may follow another
    elif api is Api.COMPLETIONS:
        said["prompt"] = "hello"
    else:
        said["messages"] = [{"role": "user", "content": "hello"}]
    if api is Api.MESSAGES:
        said["max_tokens"] = 100
    return decode(api, msgspec.json.encode(said))


@dataclass(frozen=True)
class ParsedAnswer:
    """What a client makes of a body: its text, why it ended, and whether its protocol's own end was there."""

    text: str
    reason: str | None
    is_whole: bool
    n_output: int | None = None


def parse_answer(api: Api, body: bytes, *, stream: bool) -> ParsedAnswer:
    """Read a body as a client of `api` does."""
    if not stream:
        return _WHOLE[api](msgspec.json.decode(body))
    return _STREAMED[api]([msgspec.json.decode(data) for data in _data(body)], body)


def _data(body: bytes) -> list[bytes]:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [line for line in lines if line != b"[DONE]"]


def _chat(said: Any) -> ParsedAnswer:
    choice = said["choices"][0]
    usage = said.get("usage") or {}
    return ParsedAnswer(choice["message"]["content"], choice["finish_reason"], True, usage.get("completion_tokens"))


def _responses(said: Any) -> ParsedAnswer:
    text = "".join(part["text"] for item in said["output"] for part in item["content"])
    usage = said.get("usage") or {}
    return ParsedAnswer(text, (said["incomplete_details"] or {}).get("reason") or said["status"], True,
                        usage.get("output_tokens"))


def _messages(said: Any) -> ParsedAnswer:
    text = "".join(block["text"] for block in said["content"])
    return ParsedAnswer(text, said["stop_reason"], True, said["usage"]["output_tokens"])


def _chat_stream(events: list[Any], body: bytes) -> ParsedAnswer:
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len({event["id"] for event in events}) == 1
    return ParsedAnswer(text, reasons[0] if reasons else None, body.endswith(b"data: [DONE]\n\n") and len(reasons) == 1)


def _responses_stream(events: list[Any], body: bytes) -> ParsedAnswer:
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]
    if last["type"] not in ("response.completed", "response.incomplete"):
        return ParsedAnswer(text, None, False)
    whole = _responses(last["response"])
    assert whole.text == text
    opened = sum(event["type"] == "response.output_item.added" for event in events)
    assert opened == sum(event["type"] == "response.output_item.done" for event in events)
    return ParsedAnswer(text, whole.reason, True, whole.n_output)


def _messages_stream(events: list[Any], body: bytes) -> ParsedAnswer:
    kinds = [event["type"] for event in events]
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    if kinds[-1] != "message_stop":
        return ParsedAnswer(text, None, False)
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    (last,) = [event for event in events if event["type"] == "message_delta"]
    return ParsedAnswer(text, last["delta"]["stop_reason"], True, last["usage"]["output_tokens"])


_WHOLE = {Api.CHAT: _chat, Api.RESPONSES: _responses, Api.MESSAGES: _messages}
_STREAMED = {Api.CHAT: _chat_stream, Api.RESPONSES: _responses_stream, Api.MESSAGES: _messages_stream}
LENGTH = {Api.CHAT: "length", Api.RESPONSES: "max_output_tokens", Api.MESSAGES: "max_tokens"}
STOP = {Api.CHAT: "stop", Api.RESPONSES: "completed", Api.MESSAGES: "end_turn"}
