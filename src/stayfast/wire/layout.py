"""A prompt as a provider's prefix cache sees it: blocks in the order in which they are rendered, and marks on some of them.

A cache of prefixes knows a prompt by its beginning, so one block that differs makes all that follows new. The blocks are
the tools, then the instructions, then each message's parts. A mark says "remember all up to here": `cache_control` on any
block of Anthropic's, `prompt_cache_breakpoint` on a part of what somebody says to OpenAI's models (never on tools, nor on
what the model said itself). Values keep their bytes: what is marked gets one member more, and a plain text that is marked
becomes the one text part that it stands for. `instructions` of a response cannot bear a mark; where nothing of the response
is stored they become the developer message that they stand for, else they stay.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.core.types import Api

LAID_OUT: Final = frozenset((Api.CHAT, Api.RESPONSES, Api.MESSAGES))
TOOLS, SYSTEM, MESSAGES = range(3)
_MARKS: Final = (b'"cache_control"', b'"prompt_cache_breakpoint"', b'"prompt_cache_options"')
_LEADING: Final = frozenset(("system", "developer"))
_SPEAKERS: Final = frozenset(("system", "developer", "user"))  # whose parts OpenAI's marks may stand on
_OWN: Final = frozenset(("reasoning", "function_call", "custom_tool_call", "web_search_call", "file_search_call"))
_NAMES: Final = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}
_TEXTS: Final = {Api.CHAT: "text", Api.MESSAGES: "text", Api.RESPONSES: "input_text"}
_MEMBERS: Final = {Api.CHAT: "prompt_cache_breakpoint", Api.MESSAGES: "cache_control",
                   Api.RESPONSES: "prompt_cache_breakpoint"}
_MARKABLE: Final = {
    Api.MESSAGES: frozenset(("text", "image", "document", "tool_use", "tool_result", "search_result")),
    Api.CHAT: frozenset(("text", "image_url", "input_audio", "file")),
    Api.RESPONSES: frozenset(("input_text", "input_image", "input_file")),
}


class _Head(Struct, gc=False):
    """What is looked at of a tool, a message or a part, whatever its type is."""

    type: Any = None
    role: Any = None
    text: Any = None
    defer_loading: Any = None


_HEAD: Final = msgspec.json.Decoder(_Head)
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_LIST: Final = msgspec.json.Decoder(list[Raw])
_encode: Final = msgspec.json.Encoder().encode


class Block(Struct, frozen=True, gc=False):
    """One block. `at`: which tool or message it is, or is of; `part`: which part of its content, -1 where that is no list.
    """

    place: int
    at: int
    part: int
    data: bytes  # JSON, as it came
    head: bytes = b""  # at a message's first block: all of it but the content
    role: str = ""


class Laid:
    """A body in blocks; `n_static` of them are tools and instructions, `n_end` is where the model is to go on, `n_before`
    where it went on the last time (0: this is the first)."""

    __slots__ = ("_said", "api", "blocks", "n_before", "n_end", "n_static")

    def __init__(self, body: bytes, api: Api) -> None:
        """For an API of `LAID_OUT`. Raises ValueError for what is no prompt in a shape known here."""
        self.api = api
        self._said: dict[str, Raw] = _OBJECT.decode(body)
        self.blocks = [Block(TOOLS, at, -1, bytes(tool)) for at, tool in enumerate(_objects(self._said.get("tools")))]
        self._add_instructions()
        self._add_messages()
        self.n_static = sum(1 for block in self.blocks if block.place != MESSAGES)
        self.n_end, self.n_before = _turns(self.blocks)

    def where(self, n: int) -> str:
        """A block's place in the body, as its developer would say it."""
        block = self.blocks[n]
        if block.place == TOOLS:
            return f"tools[{block.at}]"
        part = "" if block.part < 0 else f"[{block.part}]"
        if block.at < 0:
            return "instructions" if self.api is Api.RESPONSES else f"system{part}"
        return f"{_NAMES[self.api]}[{block.at}].content{part}"

    def markable(self, n: int) -> int:
        """How many of the first `n` blocks a mark can cover: the last of them is one that may bear it. 0: none."""
        while n and not self._may_bear(self.blocks[n - 1]):
            n -= 1
        return n

    def _may_bear(self, block: Block) -> bool:
        if block.place == TOOLS:
            return self.api is Api.MESSAGES and not _HEAD.decode(block.data).defer_loading
        if not block.role or (self.api is not Api.MESSAGES and block.role not in _SPEAKERS):
            return False
        if block.data[:1] == b'"':
            return len(block.data) > 2
        if block.part < 0:
            return False
        part = _HEAD.decode(block.data)
        if not isinstance(part.type, str) or part.type not in _MARKABLE[self.api]:
            return False
        return part.type != _TEXTS[self.api] or bool(part.text)

    def write(self, marks: Mapping[int, bytes], beside: Mapping[str, bytes]) -> bytes:
        """The body with a mark (its value as JSON) at the end of its first so many blocks, for each number of blocks that
        `markable` has named, and with some members at the top level beside its own.
        """
        said: dict[str, Any] = {**{name: Raw(value) for name, value in beside.items()}, **self._said}
        for n in sorted(marks, reverse=True):  # instructions last: they push the messages down
            block = self.blocks[n - 1]
            marked = self._marked(block.data, marks[n])
            if block.place == TOOLS:
                _listed(said, "tools")[block.at] = marked
            elif block.at >= 0:
                items = _listed(said, _NAMES[self.api])
                items[block.at] = item = dict(_object(items[block.at]))
                item["content"] = _with(item["content"], block.part, marked)
            elif self.api is Api.MESSAGES:
                said["system"] = _with(said["system"], block.part, marked)
            else:
                del said["instructions"]
                _listed(said, "input").insert(0, {"role": "developer", "content": [marked]})
        return _encode(said)

    def opening(self, n: int, mark: bytes) -> bytes:
        """A messages request that only has its first `n` blocks, all static, remembered: it asks for no answer."""
        said = _OBJECT.decode(self.write({n: mark}, {}))
        kept = {name: said[name] for name in ("model", "tools", "system") if name in said}
        return _encode({**kept, "max_tokens": 0, "messages": [{"role": "user", "content": "."}]})

    def _marked(self, data: bytes, mark: bytes) -> Raw:
        if data[:1] == b'"':
            data = b'{"type":"%b","text":%b}' % (_TEXTS[self.api].encode(), data)
        return Raw(b'%b,"%b":%b}' % (data[:-1], _MEMBERS[self.api].encode(), mark))

    def _add_instructions(self) -> None:
        """Those that stand beside the messages."""
        name = {Api.MESSAGES: "system", Api.RESPONSES: "instructions"}.get(self.api)
        raw = self._said.get(name) if name is not None else None
        if raw is not None and bytes(raw) != b"null":
            is_ours = self.api is Api.MESSAGES or (
                bytes(self._said.get("store", b"")) == b"false" and bytes(self._said.get("input", b""))[:1] == b"[")
            self._add_content(SYSTEM, -1, raw, b"", "system" if is_ours else "")

    def _add_messages(self) -> None:
        raw = self._said.get(_NAMES[self.api])
        if raw is not None and bytes(raw)[:1] == b'"':
            self.blocks.append(Block(MESSAGES, 0, -1, bytes(raw)))
            return
        place = MESSAGES if self.api is Api.MESSAGES else SYSTEM  # elsewhere the leading messages may be instructions
        for at, item in enumerate(_objects(raw)):
            said = _HEAD.decode(item)
            role = said.role if isinstance(said.role, str) else ""
            if isinstance(said.type, str) and said.type in _OWN:
                role = "assistant"
            if role not in _LEADING:
                place = MESSAGES
            message = _OBJECT.decode(item)
            content = message.pop("content", None)
            if content is None:
                self.blocks.append(Block(place, at, -1, bytes(item), role=role))
            else:
                self._add_content(place, at, content, _encode(message), role)

    def _add_content(self, place: int, at: int, content: Raw, head: bytes, role: str) -> None:
        parts = _objects(content)
        if not parts:
            self.blocks.append(Block(place, at, -1, bytes(content), head, role))
        for index, part in enumerate(parts):
            self.blocks.append(Block(place, at, index, bytes(part), b"" if index else head, role))

    def __repr__(self) -> str:
        return f"<Laid {self.api.value}: {len(self.blocks)} blocks, {self.n_static} of them static>"


def has_marks(body: bytes) -> bool:
    """Whether a body says itself what is to be remembered."""
    return any(mark in body for mark in _MARKS)


def mark_of(api: Api) -> str:
    """The name of the member that a mark is, for an API of `LAID_OUT`."""
    return _MEMBERS[api]


def _turns(blocks: list[Block]) -> tuple[int, int]:
    """How many blocks there are up to where the model goes on, and up to where it went on the last time."""
    end = len(blocks)
    while end and blocks[end - 1].role == "assistant":
        end -= 1
    before = end
    while before and blocks[before - 1].role != "assistant":
        before -= 1
    while before and blocks[before - 1].role == "assistant":
        before -= 1
    return end, before


def _list(raw: Raw | None) -> list[Raw]:
    return _LIST.decode(raw) if raw is not None and bytes(raw)[:1] == b"[" else []


def _objects(raw: Raw | None) -> list[Raw]:
    """A list of objects, empty for what is no list; ValueError where one of them is something else."""
    found = _list(raw)
    if any(bytes(item)[:1] != b"{" for item in found):
        raise ValueError("expected objects")
    return found


def _object(item: Any) -> Mapping[str, Any]:
    return _OBJECT.decode(item) if isinstance(item, Raw) else item


def _listed(said: dict[str, Any], name: str) -> list[Any]:
    """A member's list, to be changed in place."""
    if isinstance(said[name], Raw):
        said[name] = _list(said[name])
    found: list[Any] = said[name]
    return found


def _with(content: Any, part: int, marked: Raw) -> list[Any]:
    """A content with one part as it is marked."""
    if part < 0:
        return [marked]
    parts = _list(content) if isinstance(content, Raw) else content
    parts[part] = marked
    return parts
