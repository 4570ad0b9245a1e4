"""OpenAI's responses as the tests' upstream speaks them."""

import json
from collections.abc import Iterator
from typing import Any

from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from tests.clients.script import (
    N_CACHED_TOKENS,
    N_INPUT_TOKENS,
    N_OUTPUT_TOKENS,
    Answer,
    Asked,
    Dialect,
    Event,
)
from tests.clients.speak_chat import REFUSALS, refuse

_KNOWN = frozenset(ResponseCreateParamsStreaming.__annotations__)
_TEXT_PARTS = {"user": "input_text", "system": "input_text", "developer": "input_text", "assistant": "output_text"}
_OVERLOADED = {"code": "server_error", "message": "The server is overloaded."}
_ERROR_EVENT = {"type": "error", "sequence_number": 9, "error": _OVERLOADED | {"type": "server_error", "param": None}}
_USAGE = {
    "input_tokens": N_INPUT_TOKENS, "input_tokens_details": {"cached_tokens": N_CACHED_TOKENS, "cache_write_tokens": 0},
    "output_tokens": N_OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": N_INPUT_TOKENS + N_OUTPUT_TOKENS,
}


def complain(body: dict[str, Any]) -> str | None:
    """What OpenAI would say against a request, or None."""
    for name in body:
        if name not in _KNOWN and not name.startswith("x_"):
            return f"Unknown parameter: '{name}'."
    called: set[str] = set()
    for index, item in enumerate(_items(body["input"])):
        complaint = _complain_of_item(item, called)
        if complaint:
            return f"Invalid input[{index}]: {complaint}"
    for tool in body.get("tools", ()):
        if tool.get("type") != "function" or "name" not in tool or "parameters" not in tool:
            return "Missing required parameter: 'tools[0].name' or 'tools[0].parameters'."
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none", "required") and not (choice["type"] == "function" and "name" in choice):
        return "Invalid value: 'tool_choice'."
    output = body.get("text", {}).get("format", {})
    if output.get("type") == "json_schema" and not {"name", "schema"} <= output.keys():
        return "Missing required parameter: 'text.format.name' or 'text.format.schema'."
    return None


def _complain_of_item(item: dict[str, Any], called: set[str]) -> str | None:
    match item.get("type", "message"):
        case "message":
            wanted = _TEXT_PARTS.get(item["role"])
            parts = () if isinstance(item["content"], str) else item["content"]
            if wanted is None or any(part["type"].endswith("_text") and part["type"] != wanted for part in parts):
                return f"role {item['role']} takes parts of type {wanted}"
        case "function_call":
            called.add(item["call_id"])
        case "function_call_output":
            if item["call_id"] not in called:
                return "no function_call has this call_id"
        case other:
            return f"type {other} is not known here"
    return None


def read(body: dict[str, Any]) -> Asked:
    """What matters of a request."""
    results = []
    for item in reversed(_items(body["input"])):
        if item.get("type") != "function_call_output":
            break
        results.append(item["output"] if isinstance(item["output"], str) else "".join(p["text"] for p in item["output"]))
    return Asked(
        model=body["model"], streams=bool(body.get("stream")),
        wants_json=(body.get("text") or {}).get("format", {}).get("type") in ("json_object", "json_schema"),
        tools=tuple(tool["name"] for tool in body.get("tools", ())), tool_results=tuple(reversed(results)),
    )


def whole(asked: Asked, answer: Answer) -> dict[str, Any]:
    """A finished response."""
    details = {"reason": "max_output_tokens"} if answer.is_cut else None
    return _response(asked, "incomplete" if answer.is_cut else "completed") | {
        "output": list(_output(answer)), "usage": _USAGE, "incomplete_details": details, "completed_at": 1_750_000_001}


def events(asked: Asked, answer: Answer) -> Iterator[Event]:
    """The events of a stream, numbered; the finished response last."""
    for n_event, (kind, fields) in enumerate(_steps(asked, answer)):
        data = {"type": kind, "sequence_number": n_event} | fields
        yield Event(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode(), kind.endswith(".delta"))


def _steps(asked: Asked, answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": _response(asked, "in_progress")}
    yield "response.in_progress", {"response": _response(asked, "in_progress")}
    for index, item in enumerate(_output(answer)):
        nothing: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        started = item | {"status": "in_progress"} | nothing
        yield "response.output_item.added", {"output_index": index, "item": started}
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield from _text_steps(answer, at | {"content_index": 0})
        else:
            call = next(call for call in answer.calls if call.id == item["call_id"])
            for fragment in call.fragments:
                yield "response.function_call_arguments.delta", at | {"delta": fragment}
            yield "response.function_call_arguments.done", at | {"arguments": call.arguments}
        yield "response.output_item.done", {"output_index": index, "item": item}
    done = whole(asked, answer)
    yield f"response.{done['status']}", {"response": done}


def _text_steps(answer: Answer, at: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    part = {"type": "output_text", "annotations": [], "logprobs": []}
    yield "response.content_part.added", at | {"part": part | {"text": ""}}
    for piece in answer.pieces:
        yield "response.output_text.delta", at | {"delta": piece, "logprobs": [], "obfuscation": "x7"}
    yield "response.output_text.done", at | {"text": answer.text, "logprobs": []}
    yield "response.content_part.done", at | {"part": part | {"text": answer.text}}


def _output(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.pieces:
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.text}
        yield {"type": "message", "id": "msg_1", "role": "assistant",
               "status": "incomplete" if answer.is_cut else "completed", "content": [part]}
    for call in answer.calls:
        yield {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": call.name,
               "arguments": call.arguments, "status": "completed"}


def _response(asked: Asked, status: str) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1_750_000_000, "status": status, "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "model": asked.model, "output": [],
        "parallel_tool_calls": True, "previous_response_id": None, "store": True, "temperature": 1.0, "tool_choice": "auto",
        "tools": [], "top_p": 1.0, "truncation": "disabled", "usage": None,
    }


def _items(given: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


RESPONSES = Dialect("/v1/responses", complain, read, whole, events,
                    b"event: error\ndata: " + json.dumps(_ERROR_EVENT).encode() + b"\n\n",
                    _response(Asked("gpt"), "failed") | {"error": _OVERLOADED}, REFUSALS, refuse)
