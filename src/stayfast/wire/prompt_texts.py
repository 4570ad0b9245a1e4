"""A body with other texts in place of its instructions or of the results of its tools.

Everything else keeps its bytes: members their order, messages and parts their other members, cache markers included. A text
that would become blank stays, since providers reject empty parts.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from stayfast.core.types import Api

Edit = Callable[[str], str]  # a text to send instead; the same object: unchanged
_NAMES: Final = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}
_INSTRUCTIONS: Final = {Api.MESSAGES: "system", Api.RESPONSES: "instructions"}
_INSTRUCTION_ROLES: Final = frozenset(("system", "developer"))
_RESULT_ROLES: Final = frozenset(("tool", "function"))
_TEXT_TYPES: Final = frozenset(("text", "input_text"))
_OUTPUTS: Final = frozenset(("function_call_output", "custom_tool_call_output"))
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_LIST: Final = msgspec.json.Decoder(list[Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_ENCODER: Final = msgspec.json.Encoder()
_Item = dict[str, Raw]


def edit_texts(body: bytes, api: Api, *, instructions: Edit, results: Edit) -> bytes:
    """The body of a chat, messages or responses request with edited texts; the same object if nothing changes. Texts are
    edited in the order in which models read them. Raises ValueError for a body of unknown form.
    """
    fields, is_changed = _OBJECT.decode(body), False
    for name, edit in ((_INSTRUCTIONS.get(api, ""), _edit_content(instructions)),
                       (_NAMES[api], _edit_items(instructions, results))):
        raw = fields.get(name)
        if raw is not None and (edited := edit(raw)) is not raw:
            fields[name], is_changed = edited, True
    return _ENCODER.encode(fields) if is_changed else body


def _edit_items(instructions: Edit, results: Edit) -> Callable[[Raw], Raw]:
    edit_instruction, edit_result = _edit_content(instructions), _edit_content(results)

    def edit(raw: Raw) -> Raw:
        return _edit_each(raw, lambda item: _edit_item(item, edit_instruction, edit_result))

    return edit


def _edit_item(item: _Item, instruction: Callable[[Raw], Raw], result: Callable[[Raw], Raw]) -> bool:
    """Edit a message or an item in place. Returns whether it changed."""
    role, kind = _word(item.get("role")), _word(item.get("type"))
    if role in _INSTRUCTION_ROLES:
        return _edit_member(item, "content", instruction)
    if role in _RESULT_ROLES:
        return _edit_member(item, "content", result)
    if kind in _OUTPUTS:
        return _edit_member(item, "output", result)
    return _edit_member(item, "content", lambda raw: _edit_each(raw, lambda part: _edit_tool_result(part, result)))


def _edit_tool_result(part: _Item, result: Callable[[Raw], Raw]) -> bool:
    return _word(part.get("type")) == "tool_result" and _edit_member(part, "content", result)


def _edit_content(edit: Edit) -> Callable[[Raw], Raw]:
    """An edit of a content: a text, or a list of parts with texts."""
    def edit_text(raw: Raw) -> Raw:
        if bytes(raw)[:1] != b'"':
            return raw
        text = _TEXT.decode(raw)
        edited = edit(text)
        return raw if edited is text or not edited.strip() else Raw(_ENCODER.encode(edited))

    def edit_part(part: _Item) -> bool:
        return _word(part.get("type")) in _TEXT_TYPES and _edit_member(part, "text", edit_text)

    return lambda raw: edit_text(raw) if bytes(raw)[:1] == b'"' else _edit_each(raw, edit_part)


def _edit_each(raw: Raw, edit: Callable[[_Item], bool]) -> Raw:
    """The list with its objects edited; the same object if none changes, or if this is no list."""
    if bytes(raw)[:1] != b"[":
        return raw
    items, is_changed = _LIST.decode(raw), False
    for number, one in enumerate(items):
        if bytes(one)[:1] == b"{":
            item = _OBJECT.decode(one)
            if edit(item):
                items[number], is_changed = Raw(_ENCODER.encode(item)), True
    return Raw(_ENCODER.encode(items)) if is_changed else raw


def _edit_member(item: _Item, name: str, edit: Callable[[Raw], Raw]) -> bool:
    raw = item.get(name)
    if raw is None or (edited := edit(raw)) is raw:
        return False
    item[name] = edited
    return True


def _word(raw: Raw | None) -> str:
    """A short text, else "": a field of another form is not edited."""
    return _TEXT.decode(raw) if raw is not None and bytes(raw)[:1] == b'"' else ""
