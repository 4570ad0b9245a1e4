"""Puts chunks together into the whole answer, fields unknown here included: text joins, lists grow, the rest replaces."""

from typing import Any

import msgspec

from stayfast.wire.deltas import Json

_NEVER_JOINED = ("role", "id", "type", "name")


class ChatFold:
    """Chat or completions chunks to one body. One task owns it."""

    __slots__ = ("_choices", "_is_chat", "_said")

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._said: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, said: Json) -> None:
        choices = said.get("choices") or []
        for name, value in said.items():
            if name not in ("choices", "object", "obfuscation") and (value is not None or name not in self._said):
                self._said[name] = value
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
        head = {name: value for name, value in self._said.items() if name != "usage"}
        body: Json = {"id": "", **head, "object": kind, "choices": choices}
        if self._said.get("usage") is not None:
            body["usage"] = self._said["usage"]
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
