"""A prompt as providers and engines read it: whose it is, in which order its blocks stand, and marks on some of them.

**Order.** A cache of prefixes knows a prompt by its beginning, so one block that differs makes all that follows new. The
blocks are the tools, then the instructions, then each message's parts. Tools that come out of a set, or of servers that
answer in any order, make the same prompt a new one each time; so do a date or an id above ten thousand words that never
change. So tools go by name, and instructions that move with the hour last. Whole blocks are moved; no text is touched.

**Marks.** A mark says "remember all up to here": `cache_control` on any block of Anthropic's, `prompt_cache_breakpoint` on a
part of what somebody says to OpenAI's models (never on tools, nor on what the model said itself). Values keep their bytes:
what is marked gets one member more, and a plain text that is marked becomes the one text part that it stands for.
`instructions` of a response cannot bear a mark; where nothing of the response is stored they become the developer message
that they stand for, else they stay.
"""

import re
from collections.abc import Callable, Mapping
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
_MOVING: Final = (
    ("a time", rb"\d{1,2}:\d{2}(?::\d{2})?"),
    ("a date", rb"\b(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)"),
    ("a UUID", rb"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"),
    ("a timestamp", rb"\b1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6})?\b"),
    ("an id", rb"\b[0-9a-fA-F]{16,}\b"),
    ("a number", rb"\d+"),
)
_PATTERNS: Final = tuple((word, re.compile(pattern)) for word, pattern in _MOVING)
_OF_THE_HOUR: Final = re.compile(b"|".join(b"(?:%b)" % pattern for _, pattern in _MOVING[1:4]))
_AROUND: Final = 48  # bytes to either side of a difference in which its kind is looked for
ABSENT: Final = Raw(b"")


class _ClientFields(Struct, gc=False):
    """The fields that matter, of all dialects, unread."""

    session_id: Raw = ABSENT  # vLLM, SGLang
    conversation: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    metadata: Raw = ABSENT
    safety_identifier: Raw = ABSENT
    user: Raw = ABSENT
    previous_response_id: Raw = ABSENT


class _Body(_ClientFields, gc=False):
    tools: Raw = ABSENT
    system: Raw = ABSENT
    instructions: Raw = ABSENT
    messages: Raw = ABSENT
    prompt: Raw = ABSENT
    input: Raw = ABSENT


class _Head(Struct, gc=False):
    """What is looked at of a tool, a message or a part, whatever its type is."""

    type: Any = None
    role: Any = None
    text: Any = None
    defer_loading: Any = None


class _Metadata(Struct, gc=False):
    user_id: Raw = ABSENT


class _Named(Struct, gc=False):
    name: Any = None
    type: Any = None
    function: Any = None
    role: Any = None


class RequestPrompt(Struct, frozen=True, gc=False):
    """`prompt`: as JSON, in the order in which engines read it. `session`: what names the conversation, else its user;
    empty where nothing does. `previous`: the response that this one goes on from."""

    prompt: bytes
    session: bytes
    previous: str


_WHOSE: Final = msgspec.json.Decoder(_ClientFields)
_BODY: Final = msgspec.json.Decoder(_Body)
_HEAD: Final = msgspec.json.Decoder(_Head)
_NAMED: Final = msgspec.json.Decoder(_Named)
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_LIST: Final = msgspec.json.Decoder(list[Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_METADATA: Final = msgspec.json.Decoder(_Metadata)
_encode: Final = msgspec.json.Encoder().encode
_NOBODY: Final = _ClientFields()
_NOTHING: Final = RequestPrompt(b"", b"", "")


def read_prompt(body: bytes) -> RequestPrompt:
    """What a body that `wire.json_input.decode` has accepted says."""
    parsed = _BODY.decode(body)
    prompt = b"".join((parsed.tools, parsed.system, parsed.instructions, parsed.messages, parsed.prompt, parsed.input))
    return RequestPrompt(prompt, _session(parsed), _previous(parsed))


def read_session(body: bytes) -> RequestPrompt:
    """The same without its prompt, which is left empty."""
    parsed = _WHOSE.decode(body)
    return _NOTHING if parsed == _NOBODY else RequestPrompt(b"", _session(parsed), _previous(parsed))


def _previous(parsed: _ClientFields) -> str:
    return _text_in(parsed.previous_response_id)


def _session(parsed: _ClientFields) -> bytes:
    for raw in (parsed.session_id, parsed.conversation, parsed.prompt_cache_key):
        if raw is not ABSENT and _is_present(raw):
            return bytes(raw)
    if parsed.metadata is not ABSENT:
        user_id = _user_id_in(parsed.metadata)
        if user_id:
            return user_id.encode()
    for raw in (parsed.safety_identifier, parsed.user):
        if raw is not ABSENT and _is_present(raw):
            return bytes(raw)
    return b""


def _text_in(raw: Raw) -> str:
    """The value, where it is text. Fields that the request's own protocol does not have may hold anything."""
    try:
        return _TEXT.decode(raw) if raw is not ABSENT else ""
    except msgspec.DecodeError:
        return ""


def _user_id_in(metadata: Raw) -> str:
    try:
        return _text_in(_METADATA.decode(metadata).user_id)
    except msgspec.DecodeError:
        return ""


def _is_present(raw: Raw) -> bool:
    return bytes(raw) not in (b"null", b'""')


class OrderedPrompt(Struct, frozen=True, gc=False):
    """A body whose blocks are in their order. `head`: tools and instructions, which requests of one kind begin with.
    `first`: the message after them, with which one conversation begins. `tools`: their names, sorted.
    """

    body: bytes
    head: bytes
    first: bytes
    tools: tuple[str, ...]


def order_blocks(body: bytes, api: Api, *, sort_tools: bool, move_volatile: bool) -> OrderedPrompt:
    """The body with its tools by name and, where that is wished, whole blocks of instructions that hold a date, a UUID or a
    timestamp behind those that do not; the very same bytes where nothing moves. Raises ValueError for what cannot be read.
    """
    members: dict[str, Raw] = _OBJECT.decode(body)
    is_changed = _sort(members, "tools", _tool_name) if sort_tools else False
    if move_volatile and api is Api.MESSAGES:
        is_changed |= _sort(members, "system", _is_of_the_hour)
    elif move_volatile and api is Api.CHAT:
        is_changed |= _sort(members, "messages", _is_of_the_hour, n_leading=_count_leading(_list(members.get("messages"))))
    messages = _list(members.get(_NAMES[api]))
    n_leading = _count_leading(messages) if api is not Api.MESSAGES else 0
    head = [bytes(members[name]) for name in ("tools", "system", "instructions") if name in members]
    head += map(bytes, messages[:n_leading])
    first = bytes(messages[n_leading]) if n_leading < len(messages) else bytes(members.get("input", b""))
    names = sorted(map(_tool_name, _list(members.get("tools"))))
    return OrderedPrompt(_encode(members) if is_changed else body, b"".join(head), first, tuple(names))


def _sort(members: dict[str, Raw], name: str, key: Callable[[Raw], Any], *, n_leading: int | None = None) -> bool:
    """Put a member's list in order, or its first so many; returns whether something moved."""
    before = _list(members.get(name))
    after = sorted(before[:n_leading], key=key)
    if all(one is other for one, other in zip(after, before, strict=False)):
        return False
    members[name] = Raw(_encode([*after, *before[len(after):]]))
    return True


def _count_leading(messages: list[Raw]) -> int:
    """How many messages are instructions, as they come before all others."""
    for n, message in enumerate(messages):
        role = _NAMED.decode(message).role
        if not isinstance(role, str) or role not in _LEADING:
            return n
    return len(messages)


def _is_of_the_hour(block: Raw) -> bool:
    return _OF_THE_HOUR.search(bytes(block)) is not None


def _tool_name(tool: Raw) -> str:
    parsed = _NAMED.decode(tool)
    name = parsed.function.get("name") if isinstance(parsed.function, dict) else parsed.name
    return name if isinstance(name, str) else str(parsed.type)


def difference(one: bytes, other: bytes) -> tuple[int, str]:
    """The first byte in which they differ, and what stands there in a word or two of ours: never a part of either."""
    at = _n_common(one, other, min(len(one), len(other)))
    begin = max(0, at - _AROUND)
    for word, pattern in _PATTERNS:
        for text in (one, other):
            if any(found.start() <= at - begin < found.end() for found in pattern.finditer(text[begin:at + _AROUND])):
                return at, word
    return at, "text"


def n_alike(one: bytes, other: bytes) -> int:
    """How many bytes they have in common at their beginning and at their end."""
    most = min(len(one), len(other))
    n_first = _n_common(one, other, most)
    return n_first + _n_common(one, other, most - n_first, from_end=True)


def _n_common(one: bytes, other: bytes, most: int, *, from_end: bool = False) -> int:
    """At one end, not more than `most`. In steps that grow as long as they are alike: it costs what is alike."""
    ends = (len(one), len(other)) if from_end else (0, 0)
    n, step, grows = 0, 64, True
    while step:
        is_alike = n + step <= most and _slice(one, ends[0], n, step) == _slice(other, ends[1], n, step)
        n += step if is_alike else 0
        grows = grows and is_alike
        step = step << 1 if grows else step >> 1
    return n


def _slice(text: bytes, end: int, n: int, step: int) -> bytes:
    return text[end - n - step:end - n] if end else text[n:n + step]


class PromptBlock(Struct, frozen=True, gc=False):
    """One block. `at`: which tool or message it is, or is of; `part`: which part of its content, -1 where that is no list.
    """

    place: int
    at: int
    part: int
    data: bytes  # JSON, as it came
    head: bytes = b""  # at a message's first block: all of it but the content
    role: str = ""


class PromptLayout:
    """A body in blocks; `n_static` of them are tools and instructions, `n_end` is where the model is to go on, `n_before`
    where it went on the last time (0: this is the first)."""

    __slots__ = ("_fields", "api", "blocks", "n_before", "n_end", "n_static")

    def __init__(self, body: bytes, api: Api) -> None:
        """For an API of `LAID_OUT`. Raises ValueError for what is no prompt in a shape known here."""
        self.api = api
        self._fields: dict[str, Raw] = _OBJECT.decode(body)
        self.blocks = [PromptBlock(TOOLS, at, -1, bytes(tool)) for at,
                       tool in enumerate(_objects(self._fields.get("tools")))]
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

    def _may_bear(self, block: PromptBlock) -> bool:
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

    def write(self, marks: Mapping[int, bytes], extra_fields: Mapping[str, bytes]) -> bytes:
        """The body with a mark (its value as JSON) at the end of its first so many blocks, for each number of blocks that
        `markable` has named, and with some members at the top level beside its own.
        """
        fields: dict[str, Any] = {**{name: Raw(value) for name, value in extra_fields.items()}, **self._fields}
        for n in sorted(marks, reverse=True):  # instructions last: they push the messages down
            block = self.blocks[n - 1]
            marked = self._marked(block.data, marks[n])
            if block.place == TOOLS:
                _listed(fields, "tools")[block.at] = marked
            elif block.at >= 0:
                items = _listed(fields, _NAMES[self.api])
                items[block.at] = item = dict(_OBJECT.decode(raw) if isinstance(raw := items[block.at], Raw) else raw)
                item["content"] = _with(item["content"], block.part, marked)
            elif self.api is Api.MESSAGES:
                fields["system"] = _with(fields["system"], block.part, marked)
            else:
                del fields["instructions"]
                _listed(fields, "input").insert(0, {"role": "developer", "content": [marked]})
        return _encode(fields)

    def opening(self, n: int, mark: bytes) -> bytes:
        """A messages request that only has its first `n` blocks, all static, remembered: it asks for no answer."""
        fields = _OBJECT.decode(self.write({n: mark}, {}))
        opening_fields = {name: fields[name] for name in ("model", "tools", "system") if name in fields}
        return _encode({**opening_fields, "max_tokens": 0, "messages": [{"role": "user", "content": "."}]})

    def _marked(self, data: bytes, mark: bytes) -> Raw:
        if data[:1] == b'"':
            data = b'{"type":"%b","text":%b}' % (_TEXTS[self.api].encode(), data)
        return Raw(b'%b,"%b":%b}' % (data[:-1], _MEMBERS[self.api].encode(), mark))

    def _add_instructions(self) -> None:
        """Those that stand beside the messages."""
        name = {Api.MESSAGES: "system", Api.RESPONSES: "instructions"}.get(self.api)
        raw = self._fields.get(name) if name is not None else None
        if raw is not None and bytes(raw) != b"null":
            is_ours = self.api is Api.MESSAGES or (
                bytes(self._fields.get("store", b"")) == b"false" and bytes(self._fields.get("input", b""))[:1] == b"[")
            self._add_content(SYSTEM, -1, raw, b"", "system" if is_ours else "")

    def _add_messages(self) -> None:
        raw = self._fields.get(_NAMES[self.api])
        if raw is not None and bytes(raw)[:1] == b'"':
            self.blocks.append(PromptBlock(MESSAGES, 0, -1, bytes(raw)))
            return
        place = MESSAGES if self.api is Api.MESSAGES else SYSTEM  # elsewhere the leading messages may be instructions
        for at, item in enumerate(_objects(raw)):
            head = _HEAD.decode(item)
            role = head.role if isinstance(head.role, str) else ""
            if isinstance(head.type, str) and head.type in _OWN:
                role = "assistant"
            if role not in _LEADING:
                place = MESSAGES
            message = _OBJECT.decode(item)
            content = message.pop("content", None)
            if content is None:
                self.blocks.append(PromptBlock(place, at, -1, bytes(item), role=role))
            else:
                self._add_content(place, at, content, _encode(message), role)

    def _add_content(self, place: int, at: int, content: Raw, head: bytes, role: str) -> None:
        parts = _objects(content)
        if not parts:
            self.blocks.append(PromptBlock(place, at, -1, bytes(content), head, role))
        for index, part in enumerate(parts):
            self.blocks.append(PromptBlock(place, at, index, bytes(part), b"" if index else head, role))

    def __repr__(self) -> str:
        return f"<PromptLayout {self.api.value}: {len(self.blocks)} blocks, {self.n_static} of them static>"


def has_marks(body: bytes) -> bool:
    """Whether a body says itself what is to be remembered."""
    return any(mark in body for mark in _MARKS)


def mark_of(api: Api) -> str:
    """The name of the member that a mark is, for an API of `LAID_OUT`."""
    return _MEMBERS[api]


def _turns(blocks: list[PromptBlock]) -> tuple[int, int]:
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


def _listed(fields: dict[str, Any], name: str) -> list[Any]:
    """A member's list, to be changed in place."""
    if isinstance(fields[name], Raw):
        fields[name] = _list(fields[name])
    found: list[Any] = fields[name]
    return found


def _with(content: Any, part: int, marked: Raw) -> list[Any]:
    """A content with one part as it is marked."""
    if part < 0:
        return [marked]
    parts = _list(content) if isinstance(content, Raw) else content
    parts[part] = marked
    return parts
