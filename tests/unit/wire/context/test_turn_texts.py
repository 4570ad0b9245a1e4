"""The texts of messages and items, and which results are failures."""

import json
from typing import Any

import pytest
from msgspec import Raw

from stayfast.core.types import Api
from stayfast.wire.context.turn_texts import is_failure, read_turn_texts


def texts(api: Api, item: Any) -> list[tuple[str, str, bool]]:
    """Role, text and whether it is an error."""
    return [(text.role, text.text, text.is_error) for text in read_turn_texts(Raw(json.dumps(item).encode()), 3, api)]


@pytest.mark.parametrize(("api", "item", "expected"), [
    (Api.CHAT, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, [("assistant", "no", False)]),
    (Api.CHAT, {"role": "assistant", "content": None, "refusal": "no"}, [("assistant", "no", False)]),
    (Api.CHAT, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
     [("assistant", "f({})", False)]),
    (Api.CHAT, {"role": "function", "name": "f", "content": "Error: no such file"}, [("tool", "Error: no such file", True)]),
    (Api.CHAT, {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "fine"}]},
     [("tool", "fine", False)]),
    (Api.MESSAGES, {"role": "assistant", "content": [{"type": "thinking", "thinking": "17", "signature": "s"},
                                                     {"type": "text", "text": "a"}]}, [("assistant", "a", False)]),
    (Api.MESSAGES, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "is_error": True,
                                                 "content": [{"type": "text", "text": "r"}]}]}, [("tool", "r", True)]),
    (Api.RESPONSES, {"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "x"},
     [("assistant", "f(x)", False)]),
    (Api.RESPONSES, {"type": "local_shell_call", "call_id": "1", "action": {"command": ["ls"]}},
     [("assistant", 'local_shell_call({"command":["ls"]})', False)]),
    (Api.RESPONSES, {"type": "mcp_call", "id": "1", "name": "f", "arguments": "{}", "error": "gone"},
     [("assistant", "f({})", False), ("tool", "gone", True)]),
    (Api.RESPONSES, {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "r"}],
                     "status": "incomplete"}, [("tool", "r", True)]),
    (Api.RESPONSES, {"type": "reasoning", "id": "1", "summary": [{"type": "summary_text", "text": "17"}]}, []),
    (Api.CHAT, 17, []), (Api.CHAT, {"role": "user", "content": 17}, []), (Api.MESSAGES, {"content": [17]}, [])])
def test_read_turn_texts_of_each_kind_of_item(api: Api, item: Any, expected: list[Any]) -> None:
    """The words of users, models and tools; no reasoning."""
    assert texts(api, item) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("Error: disk full", True), ("Traceback (most recent call last):\n ...", True), ("ValueError: x", True),
    ('{"error": {"code": 7}}', True), ('{"ok": false}', True), ('{"exit_code": 2, "out": ""}', True),
    ("exit code: 1", True), ("Process exited with code 3", True), ("failed to open", True),
    ('{"error": null, "ok": true}', False), ("exit code 0", False), ("0 errors, 14 passed", False), ("{not json", False),
    ("errors.py\nfailures.py", False), ("", False)])
def test_is_failure_by_text(text: str, *, expected: bool) -> None:
    """A mark in JSON, or a text that begins with an error."""
    assert is_failure(text) is expected
