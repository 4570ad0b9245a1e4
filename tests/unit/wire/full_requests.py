"""A request of each dialect with every field that can be translated, and helpers to translate requests."""

import json
from typing import Any

from stayfast.core.types import Api
from stayfast.wire.request_body import encode
from tests.unit.wire.recorded import request

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


FULL: dict[Api, dict[str, Any]] = {
    Api.CHAT: {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look:"},
                                         {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
            {"role": "assistant", "content": "Well.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"K"}'}},
                {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"B"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"},
            {"role": "tool", "tool_call_id": "c2", "content": "rain"},
            {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS, "strict": True}},
        "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 50, "reasoning_effort": "high", "user": "u1"},
    Api.RESPONSES: {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look:"},
                                         {"type": "input_image", "image_url": "data:image/png;base64,aGk="}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"K"}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city":"B"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": "rain"},
            {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS, "strict": None}],
        "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS, "strict": True}},
        "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 50, "reasoning": {"effort": "high"}, "user": "u1"},
    Api.MESSAGES: {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "aGk="}}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Well."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "K"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {"city": "B"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sun"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?"}]}],
        "tools": [{"name": "weather", "description": "d", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": PARAMETERS}},
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "metadata": {"user_id": "u1"}},
}


def sent(client: Api, to: Api, **fields: Any) -> dict[str, Any]:
    """The body for the upstream, parsed."""
    said = json.loads(encode(request(client, **fields), to, "up", stream=False))
    assert isinstance(said, dict)
    return said


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages with one user message of parts."""
    return [{"role": "user", "content": list(parts)}]
