"""The messages of the tests' upstream, and its count_tokens."""

import json
from collections.abc import Iterator
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsStreaming

from tests.clients.script import (
    N_CACHED_TOKENS,
    N_INPUT_TOKENS,
    N_OUTPUT_TOKENS,
    RETRY_AFTER_S,
    Answer,
    Asked,
    Dialect,
    Event,
    Refusal,
    Scenario,
)

_OLDER = {"temperature", "top_p", "top_k"}  # untyped in the current SDK, still sent by many clients
_KNOWN = _OLDER | frozenset(MessageCreateParamsStreaming.__annotations__)
_USAGE = {"input_tokens": N_INPUT_TOKENS - N_CACHED_TOKENS, "cache_creation_input_tokens": 0,
          "cache_read_input_tokens": N_CACHED_TOKENS, "output_tokens": N_OUTPUT_TOKENS, "service_tier": "standard"}


def complain(body: dict[str, Any]) -> str | None:
    """What Anthropic would say against a request, or None."""
    for name in body:
        if name not in _KNOWN and not name.startswith("x_"):
            return f"{name}: Extra inputs are not permitted"
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    called: set[str] = set()
    for index, message in enumerate(body["messages"]):
        if message["role"] not in ("user", "assistant"):
            return f"messages.{index}.role: Input should be 'user' or 'assistant'"
        blocks = _blocks(message["content"])
        if any(block["type"] == "tool_result" and block["tool_use_id"] not in called for block in blocks):
            return f"messages.{index}: unexpected tool_use_id in tool_result: each must follow its tool_use"
        called = {block["id"] for block in blocks if block["type"] == "tool_use"}
    for tool in body.get("tools", ()):
        if "name" not in tool or tool.get("input_schema", {}).get("type") != "object":
            return "tools.0: name and an input_schema of type object are required"
    choice = body.get("tool_choice", {"type": "auto"})
    if choice["type"] not in ("auto", "any", "none") and not (choice["type"] == "tool" and "name" in choice):
        return "tool_choice.type: Input tag must be one of auto, any, tool, none"
    return None


def read(body: dict[str, Any]) -> Asked:
    """What matters of a request."""
    results = [block for block in _blocks(body["messages"][-1]["content"]) if block["type"] == "tool_result"]
    return Asked(
        model=body["model"], streams=bool(body.get("stream")),
        wants_json=(body.get("output_config") or {}).get("format", {}).get("type") == "json_schema",
        tools=tuple(tool["name"] for tool in body.get("tools", ())),
        tool_results=tuple("".join(part["text"] for part in _blocks(block["content"])) for block in results),
    )


def whole(asked: Asked, answer: Answer) -> dict[str, Any]:
    """A message."""
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.pieces else []
    content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
                for call in answer.calls]
    return _message(asked) | {"content": content, "stop_reason": _stop_reason(answer), "usage": _USAGE}


def events(asked: Asked, answer: Answer) -> Iterator[Event]:
    """The events of a stream, `message_stop` last."""
    yield _event("message_start", message=_message(asked) | {"usage": _USAGE | {"output_tokens": 1}})
    index = 0
    if answer.pieces:
        yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        yield _event("ping")
        for piece in answer.pieces:
            yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        yield _event("content_block_stop", index=index)
        index += 1
    for call in answer.calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield _event("content_block_start", index=index, content_block=block)
        yield _event("ping")
        for fragment in ("", *call.fragments):
            yield _event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": fragment})
        yield _event("content_block_stop", index=index)
        index += 1
    yield _event("message_delta", delta={"stop_reason": _stop_reason(answer), "stop_sequence": None},
                 usage={"output_tokens": N_OUTPUT_TOKENS})
    yield _event("message_stop")


def count_tokens(body: dict[str, Any]) -> dict[str, Any]:
    """A token count: one a character, so that it follows from the request."""
    return {"input_tokens": sum(len(part["text"]) for message in body["messages"] for part in _blocks(message["content"]))}


def _message(asked: Asked) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": asked.model, "content": [],
            "stop_reason": None, "stop_sequence": None}


def _event(kind: str, **fields: Any) -> Event:
    data = f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()
    return Event(data, kind == "content_block_delta")


def _stop_reason(answer: Answer) -> str:
    if answer.calls:
        return "tool_use"
    return "max_tokens" if answer.is_cut else "end_turn"


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def error(kind: str, message: str) -> dict[str, Any]:
    """Anthropic's error body."""
    return {"type": "error", "error": {"type": kind, "message": message, "details": None}, "request_id": "req_upstream"}


def refuse(message: str) -> Refusal:
    """A 400 for a malformed request."""
    return Refusal(400, error("invalid_request_error", message))


REFUSALS = {
    Scenario.CONTEXT_LENGTH: Refusal(400, error(
        "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")),
    Scenario.UNAUTHORISED: Refusal(401, error("authentication_error", "invalid x-api-key sk-upstream-key")),
    Scenario.RATE_LIMIT: Refusal(429, error("rate_limit_error", "This request would exceed your rate limit."),
                                 (("retry-after", str(RETRY_AFTER_S)),)),
    Scenario.OVERLOADED: Refusal(529, error("overloaded_error", "Overloaded")),
}

_OVERLOADED = error("overloaded_error", "Overloaded")
MESSAGES = Dialect("/v1/messages", complain, read, whole, events,
                   b"event: error\ndata: " + json.dumps(_OVERLOADED).encode() + b"\n\n", _OVERLOADED, REFUSALS, refuse)
