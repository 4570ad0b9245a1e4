"""The texts of messages and items in chat, messages and responses, by role.

Reasoning, images and files are left out. The arguments of a tool call are text of the assistant, after the tool's name. A
result counts as an error if its dialect marks it so. Chat and responses have no such mark, so there the text decides: a
JSON object with an `error`, or `ok` or `success` that is false, or an exit code that is not 0; or a text that begins with an
error. When wrong: a tool that reports failures in words of its own.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.context import TurnText
from stayfast.core.types import Api

_TEXT_TYPES: Final = ("text", "input_text", "output_text")
_RESULT_ROLES: Final = ("tool", "function")
_FAILURE: Final = re.compile(
    r"\s*(?:error\b|fatal\b|traceback \(most recent|exception\b|\w+(?:error|exception):|failed\b|command failed"
    r"|(?:process )?exit(?:ed)?(?: with)?(?: (?:code|status))?[ :=]+[1-9])", re.IGNORECASE)
_FALSE_IF_FAILED: Final = ("ok", "success", "succeeded")
_CODES: Final = ("exit_code", "exitCode", "returncode", "return_code")


def read_turn_texts(item: Raw, turn: int, api: Api) -> Iterator[TurnText]:
    """The texts of a message or an item. Never raises for one of unknown form."""
    parsed = msgspec.json.decode(item)
    if isinstance(parsed, str):
        yield TurnText("user", parsed, turn)
    elif not isinstance(parsed, dict):
        return
    elif api is Api.RESPONSES and parsed.get("type") not in (None, "message"):
        yield from _read_item(parsed, turn)
    else:
        yield from _read_message(parsed, turn)


def read_content_texts(content: Raw, role: str, turn: int) -> list[TurnText]:
    """The texts of a string or a list of parts."""
    return [TurnText(role, text, turn) for text in _plain_texts(msgspec.json.decode(content))]


def is_failure(text: str) -> bool:
    """Whether the text of a tool's result reports a failure."""
    if _FAILURE.match(text):
        return True
    if not text.lstrip().startswith("{"):
        return False
    try:
        parsed = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return bool(parsed.get("error") or parsed.get("is_error") or parsed.get("isError")
                or any(parsed.get(name) is False for name in _FALSE_IF_FAILED)
                or any(parsed.get(name) not in (None, 0) for name in _CODES))


def _read_message(message: dict[str, Any], turn: int) -> Iterator[TurnText]:
    role, content = str(message.get("role")), message.get("content")
    if role in _RESULT_ROLES:
        text = "\n".join(_plain_texts(content))
        yield TurnText("tool", text, turn, is_tool_result=True, is_error=is_failure(text))
        return
    for block in content if isinstance(content, list) else ():
        yield from _read_block(block, role, turn)
    if isinstance(content, str):
        yield TurnText(role, content, turn)
    if isinstance(message.get("refusal"), str):
        yield TurnText(role, message["refusal"], turn)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        yield from _read_call(function, "arguments", turn)
    yield from _read_call(message.get("function_call"), "arguments", turn)


def _read_block(block: Any, role: str, turn: int) -> Iterator[TurnText]:
    if not isinstance(block, dict):
        return
    kind = block.get("type")
    if kind == "tool_result" or str(kind).endswith("_tool_result"):
        text = "\n".join(_plain_texts(block.get("content")))
        yield TurnText("tool", text, turn, is_tool_result=True, is_error=block.get("is_error") is True or is_failure(text))
    elif str(kind).endswith("tool_use"):
        yield from _read_call(block, "input", turn)
    elif kind in _TEXT_TYPES and isinstance(block.get("text"), str):
        yield TurnText(role, block["text"], turn)
    elif kind == "refusal" and isinstance(block.get("refusal"), str):
        yield TurnText(role, block["refusal"], turn)


def _read_item(item: dict[str, Any], turn: int) -> Iterator[TurnText]:
    """The texts of an item of responses that is no message."""
    kind = str(item.get("type"))
    if kind.endswith("_output"):
        text = "\n".join(_plain_texts(item.get("output")))
        is_error = item.get("status") in ("failed", "incomplete") or is_failure(text)
        yield TurnText("tool", text, turn, is_tool_result=True, is_error=is_error)
        return
    if kind == "custom_tool_call":
        yield from _read_call(item, "input", turn)
    elif kind.endswith("_call"):
        yield from _read_call(item, "arguments" if "arguments" in item else "action", turn)
    if kind == "mcp_call" and (item.get("output") or item.get("error")):
        text = str(item.get("error") or item.get("output"))
        yield TurnText("tool", text, turn, is_tool_result=True, is_error=bool(item.get("error")) or is_failure(text))


def _read_call(call: Any, member: str, turn: int) -> Iterator[TurnText]:
    if isinstance(call, dict):
        arguments = call.get(member)
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
        yield TurnText("assistant", f"{call.get('name') or call.get('type')}({text})", turn)


def _plain_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and part.get("type") in _TEXT_TYPES and isinstance(part.get("text"), str):
                yield part["text"]
            elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
                yield part["refusal"]
    elif isinstance(content, dict):
        yield msgspec.json.encode(content).decode()
