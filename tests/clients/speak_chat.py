"""The chat completions of the tests' upstream, and its completions, embeddings and models."""

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

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

_KNOWN = frozenset(CompletionCreateParamsStreaming.__annotations__)  # of a TypedDict: its bases' too
_USAGE = {
    "prompt_tokens": N_INPUT_TOKENS, "completion_tokens": N_OUTPUT_TOKENS,
    "total_tokens": N_INPUT_TOKENS + N_OUTPUT_TOKENS,
    "prompt_tokens_details": {"cached_tokens": N_CACHED_TOKENS, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0,
                                  "rejected_prediction_tokens": 0},
}
_OVERLOADED = {"error": {"message": "The server is overloaded.", "type": "server_error", "param": None, "code": None}}


def complain(body: dict[str, Any]) -> str | None:
    """What OpenAI would say against a request, or None."""
    for name in body:
        if name not in _KNOWN and not name.startswith("x_"):
            return f"Unrecognized request argument supplied: {name}"
    called: set[str] = set()
    for index, message in enumerate(body["messages"]):
        if message["role"] not in ("system", "developer", "user", "assistant", "tool"):
            return f"Invalid value: {message['role']} at messages[{index}].role"
        called |= {call["id"] for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and message.get("tool_call_id") not in called:
            return f"messages[{index}]: no tool call has this tool_call_id"
    for tool in body.get("tools", ()):
        if tool.get("type") != "function" or "name" not in tool.get("function", {}):
            return "Invalid tools: expected functions with a name"
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none", "required") and not (choice["type"] == "function" and "name" in choice["function"]):
        return "Invalid value: 'tool_choice'."
    output = body.get("response_format", {})
    if output.get("type") == "json_schema" and not {"name", "schema"} <= output["json_schema"].keys():
        return "Missing required parameter: 'response_format.json_schema.name' or 'response_format.json_schema.schema'."
    return None


def read(body: dict[str, Any]) -> Asked:
    """What matters of a request."""
    results = []
    for message in reversed(body["messages"]):
        if message["role"] != "tool":
            break
        results.append(_text(message["content"]))
    return Asked(
        model=body["model"], streams=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        wants_json=body.get("response_format", {}).get("type") in ("json_object", "json_schema"),
        tools=tuple(tool["function"]["name"] for tool in body.get("tools", ())),
        tool_results=tuple(reversed(results)),
    )


def whole(asked: Asked, answer: Answer) -> dict[str, Any]:
    """A chat.completion."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text if answer.pieces else None, "refusal": None,
                               "annotations": []}
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_750_000_000, "model": asked.model,
        "service_tier": "default", "system_fingerprint": None, "usage": _USAGE,
        "choices": [{"index": 0, "finish_reason": _finish_reason(answer), "logprobs": None, "message": message}],
    }


def events(asked: Asked, answer: Answer) -> Iterator[Event]:
    """The chunks of a stream, `[DONE]` last."""
    yield _chunk(asked, {"role": "assistant", "content": "" if answer.pieces else None, "refusal": None})
    for piece in answer.pieces:
        yield _chunk(asked, {"content": piece}, is_content=True)
    for index, call in enumerate(answer.calls):
        start = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield _chunk(asked, {"tool_calls": [start]}, is_content=True)
        for fragment in call.fragments:
            yield _chunk(asked, {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}, is_content=True)
    yield _chunk(asked, {}, finish_reason=_finish_reason(answer))
    if asked.include_usage:
        yield _data(_envelope(asked) | {"choices": [], "usage": _USAGE})
    yield Event(b"data: [DONE]\n\n")


def _chunk(asked: Asked, delta: dict[str, Any], *, is_content: bool = False, finish_reason: str | None = None) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    usage = {"usage": None} if asked.include_usage else {}
    return _data(_envelope(asked) | {"choices": [choice]} | usage, is_content=is_content)


def _envelope(asked: Asked) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_750_000_000, "model": asked.model,
            "service_tier": "default", "system_fingerprint": None, "obfuscation": "x7"}


def _data(value: dict[str, Any], *, is_content: bool = False) -> Event:
    return Event(b"data: " + json.dumps(value).encode() + b"\n\n", is_content)


def _finish_reason(answer: Answer) -> str:
    if answer.calls:
        return "tool_calls"
    return "length" if answer.is_cut else "stop"


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def error(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(message: str) -> Refusal:
    """A 400 for a malformed request."""
    return Refusal(400, error(message, "invalid_request_error"))


REFUSALS = {
    Scenario.CONTEXT_LENGTH: Refusal(400, error(
        "This model's maximum context length is 128000 tokens.", "invalid_request_error", "context_length_exceeded",
        "messages")),
    Scenario.UNAUTHORISED: Refusal(401, error(
        "Incorrect API key provided: sk-upstre**-key.", "invalid_request_error", "invalid_api_key")),
    Scenario.RATE_LIMIT: Refusal(429, error(
        "Rate limit reached on tokens per min (TPM).", "tokens", "rate_limit_exceeded"),
        (("retry-after", str(RETRY_AFTER_S)),)),
    Scenario.OVERLOADED: Refusal(503, error(
        "The server is overloaded.", "service_unavailable_error", "server_is_overloaded")),
}

CHAT = Dialect("/v1/chat/completions", complain, read, whole, events, b"data: " + json.dumps(_OVERLOADED).encode() + b"\n\n",
               _OVERLOADED, REFUSALS, refuse)


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """A text_completion that quotes its prompt."""
    return {"id": "cmpl-1", "object": "text_completion", "created": 1_750_000_000, "model": body["model"], "usage": _USAGE,
            "choices": [{"index": 0, "text": f"{body['prompt']}!", "logprobs": None, "finish_reason": "stop"}]}


def completion_events(body: dict[str, Any]) -> Iterator[Event]:
    """The same as a stream."""
    envelope = {"id": "cmpl-1", "object": "text_completion", "created": 1_750_000_000, "model": body["model"]}
    for text, finish_reason in ((body["prompt"], None), ("!", None), ("", "stop")):
        yield _data(envelope | {"choices": [
            {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}]}, is_content=bool(text))
    yield Event(b"data: [DONE]\n\n")


def rerank(body: dict[str, Any]) -> dict[str, Any]:
    """The longest document first, in the form of Cohere and Jina."""
    order = sorted(range(len(body["documents"])), key=lambda index: -len(body["documents"][index]))
    return {"id": "rerank-1", "model": body["model"], "usage": {"total_tokens": N_INPUT_TOKENS},
            "results": [{"index": index, "relevance_score": len(body["documents"][index]) / 100}
                        for index in order[:body.get("top_n")]]}


def embeddings(body: dict[str, Any]) -> dict[str, Any]:
    """One vector an input, of its length: floats, or base64 of little-endian float32 where asked for."""
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = [[len(text) / 8, 0.5, -0.25] for text in inputs]
    as_base64 = body.get("encoding_format") == "base64"
    return {
        "object": "list", "model": body["model"],
        "usage": {"prompt_tokens": N_INPUT_TOKENS, "total_tokens": N_INPUT_TOKENS},
        "data": [
            {"object": "embedding", "index": index,
             "embedding": base64.b64encode(struct.pack("<3f", *vector)).decode() if as_base64 else vector}
            for index, vector in enumerate(vectors)
        ],
    }
