"""A prompt as providers and engines see it: its session, the order of its blocks, and cache markers on them.

**Order.** A prefix cache matches a prompt from its beginning, so all blocks after the first difference are recomputed. The
blocks are the tools, the instructions, and the parts of each message. Two things break a prefix without need: tools in an
arbitrary order, and a date or id in front of long, fixed instructions. So tools are sorted by name, and instruction blocks
with a date, UUID or timestamp move behind the others. Only whole blocks move; no text changes.

**Markers.** A marker means "cache the prompt up to here": `cache_control` on any block of messages,
`prompt_cache_breakpoint` on the parts of user and instruction messages in OpenAI's protocols (not on tools or the model's
own messages). All values keep their bytes: a marked block gets one more member, and a marked plain text becomes one text
part. `instructions` of a responses request cannot be marked; if the response is not stored, they become the equivalent
developer message.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.core.types import Api

LAYOUT_APIS: Final = frozenset((Api.CHAT, Api.RESPONSES, Api.MESSAGES))
TOOLS, SYSTEM, MESSAGES = range(3)
_MARKS: Final = (b'"cache_control"', b'"prompt_cache_breakpoint"', b'"prompt_cache_options"')
_INSTRUCTION_ROLES: Final = frozenset(("system", "developer"))
_OPENAI_MARKABLE_ROLES: Final = frozenset(("system", "developer", "user"))
_MODEL_ITEMS: Final = frozenset(("reasoning", "function_call", "custom_tool_call", "web_search_call", "file_search_call"))
_NAMES: Final = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}
_TEXTS: Final = {Api.CHAT: "text", Api.MESSAGES: "text", Api.RESPONSES: "input_text"}
_MEMBERS: Final = {Api.CHAT: "prompt_cache_breakpoint", Api.MESSAGES: "cache_control",
                   Api.RESPONSES: "prompt_cache_breakpoint"}
_MARKABLE: Final = {
    Api.MESSAGES: frozenset(("text", "image", "document", "tool_use", "tool_result", "search_result")),
    Api.CHAT: frozenset(("text", "image_url", "input_audio", "file")),
    Api.RESPONSES: frozenset(("input_text", "input_image", "input_file")),
}
_VOLATILE: Final = (
    ("a time", rb"\d{1,2}:\d{2}(?::\d{2})?"),
    ("a date", rb"\b(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)"),
    ("a UUID", rb"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"),
    ("a timestamp", rb"\b1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6})?\b"),
    ("an id", rb"\b[0-9a-fA-F]{16,}\b"),
    ("a number", rb"\d+"),
)
_PATTERNS: Final = tuple((kind, re.compile(pattern)) for kind, pattern in _VOLATILE)
_DATED: Final = re.compile(b"|".join(b"(?:%b)" % pattern for _, pattern in _VOLATILE[1:4]))
_AROUND: Final = 48  # bytes on either side of a difference that are searched for its kind
ABSENT: Final = Raw(b"")


class _ClientFields(Struct, gc=False):
    """The fields of all dialects that identify a session, undecoded."""

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
    """The fields that are read of a tool, message or part."""

    type: Any = None
    role: Any = None
    text: Any = None
    name: Any = None
    function: Any = None
    defer_loading: Any = None


class RequestPrompt(Struct, frozen=True, gc=False):
    prompt: bytes  # JSON, in the order in which engines read it
    session_id: bytes  # identifies the conversation, else its user; may be empty
    previous_response_id: str  # the previous_response_id, or ""


_SESSION: Final = msgspec.json.Decoder(_ClientFields)
_BODY: Final = msgspec.json.Decoder(_Body)
_HEAD: Final = msgspec.json.Decoder(_Head)
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_LIST: Final = msgspec.json.Decoder(list[Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_encode: Final = msgspec.json.Encoder().encode
_NO_FIELDS: Final = _ClientFields()
_NO_SESSION: Final = RequestPrompt(b"", b"", "")


def read_prompt(body: bytes) -> RequestPrompt:
    """Prompt and session of a body that `decode` has accepted."""
    parsed = _BODY.decode(body)
    prompt = b"".join((parsed.tools, parsed.system, parsed.instructions, parsed.messages, parsed.prompt, parsed.input))
    return RequestPrompt(prompt, _read_session_id(parsed), _text_in(parsed.previous_response_id))


def read_session(body: bytes) -> RequestPrompt:
    """Like `read_prompt`, with an empty prompt."""
    parsed = _SESSION.decode(body)
    if parsed == _NO_FIELDS:
        return _NO_SESSION
    return RequestPrompt(b"", _read_session_id(parsed), _text_in(parsed.previous_response_id))


def _read_session_id(parsed: _ClientFields) -> bytes:
    for raw in (parsed.session_id, parsed.conversation, parsed.prompt_cache_key):
        if raw is not ABSENT and _is_present(raw):
            return bytes(raw)
    if parsed.metadata is not ABSENT and (user_id := _user_id_in(parsed.metadata)):
        return user_id.encode()
    for raw in (parsed.safety_identifier, parsed.user):
        if raw is not ABSENT and _is_present(raw):
            return bytes(raw)
    return b""


def _text_in(raw: Raw) -> str:
    """The value if it is text, else "": a field of another protocol is not validated."""
    try:
        return _TEXT.decode(raw) if raw is not ABSENT else ""
    except msgspec.DecodeError:
        return ""


def _user_id_in(metadata: Raw) -> str:
    try:
        return _text_in(_OBJECT.decode(metadata).get("user_id", ABSENT))
    except msgspec.DecodeError:
        return ""


def _is_present(raw: Raw) -> bool:
    return bytes(raw) not in (b"null", b'""')


class OrderedPrompt(Struct, frozen=True, gc=False):
    body: bytes  # with its blocks in order
    head: bytes  # tools and instructions, which similar requests share
    first: bytes  # the first message after them, which identifies a conversation
    tools: tuple[str, ...]  # names, sorted


def order_blocks(body: bytes, api: Api, *, sort_tools: bool, move_volatile: bool) -> OrderedPrompt:
    """Sort the tools by name, and move instruction blocks with a date, UUID or timestamp behind the others. The body keeps
    its bytes if nothing moves. Raises ValueError for an unreadable prompt.
    """
    members: dict[str, Raw] = _OBJECT.decode(body)
    is_changed = _sort_member(members, "tools", _tool_name) if sort_tools else False
    if move_volatile and api is Api.MESSAGES:
        is_changed |= _sort_member(members, "system", _is_dated)
    elif move_volatile and api is Api.CHAT:
        n_leading = _count_leading(_parse_list(members.get("messages")))
        is_changed |= _sort_member(members, "messages", _is_dated, n_leading=n_leading)
    messages = _parse_list(members.get(_NAMES[api]))
    n_leading = _count_leading(messages) if api is not Api.MESSAGES else 0
    head = [bytes(members[name]) for name in ("tools", "system", "instructions") if name in members]
    head += map(bytes, messages[:n_leading])
    first = bytes(messages[n_leading]) if n_leading < len(messages) else bytes(members.get("input", b""))
    names = sorted(map(_tool_name, _parse_list(members.get("tools"))))
    return OrderedPrompt(_encode(members) if is_changed else body, b"".join(head), first, tuple(names))


def _sort_member(members: dict[str, Raw], name: str, key: Callable[[Raw], Any], *, n_leading: int | None = None) -> bool:
    """Sort a member's list, or its first `n_leading` items. Returns whether the order changed."""
    before = _parse_list(members.get(name))
    after = sorted(before[:n_leading], key=key)
    if all(one is other for one, other in zip(after, before, strict=False)):
        return False
    members[name] = Raw(_encode([*after, *before[len(after):]]))
    return True


def _count_leading(messages: list[Raw]) -> int:
    """The number of instruction messages at the beginning."""
    for n, message in enumerate(messages):
        role = _HEAD.decode(message).role
        if not isinstance(role, str) or role not in _INSTRUCTION_ROLES:
            return n
    return len(messages)


def _is_dated(block: Raw) -> bool:
    return _DATED.search(bytes(block)) is not None


def _tool_name(tool: Raw) -> str:
    parsed = _HEAD.decode(tool)
    name = parsed.function.get("name") if isinstance(parsed.function, dict) else parsed.name
    return name if isinstance(name, str) else str(parsed.type)


def find_first_difference(one: bytes, other: bytes) -> tuple[int, str]:
    """The offset of the first difference, and its kind, such as "a date"; never text of the prompts."""
    at = _n_common(one, other, min(len(one), len(other)))
    begin = max(0, at - _AROUND)
    for kind, pattern in _PATTERNS:
        for text in (one, other):
            if any(found.start() <= at - begin < found.end() for found in pattern.finditer(text[begin:at + _AROUND])):
                return at, kind
    return at, "text"


def n_common_bytes(one: bytes, other: bytes) -> int:
    """The number of equal bytes at the beginning and at the end."""
    most = min(len(one), len(other))
    n_first = _n_common(one, other, most)
    return n_first + _n_common(one, other, most - n_first, from_end=True)


def _n_common(one: bytes, other: bytes, most: int, *, from_end: bool = False) -> int:
    """The number of equal bytes at one end, at most `most`. Galloping search: the cost is proportional to the result."""
    ends = (len(one), len(other)) if from_end else (0, 0)
    n, step, grows = 0, 64, True
    while step:
        is_equal = n + step <= most and _step_slice(one, ends[0], n, step) == _step_slice(other, ends[1], n, step)
        n += step if is_equal else 0
        grows = grows and is_equal
        step = step << 1 if grows else step >> 1
    return n


def _step_slice(text: bytes, end: int, n: int, step: int) -> bytes:
    return text[end - n - step:end - n] if end else text[n:n + step]


class PromptBlock(Struct, frozen=True, gc=False):
    section: int  # TOOLS, SYSTEM or MESSAGES
    at: int  # index of the tool or message
    part: int  # index in the message's content; -1 if the content is no list
    data: bytes  # JSON, as received
    head: bytes = b""  # of a message's first block: the message without its content
    role: str = ""


class PromptLayout:
    """The blocks of a body. The first `n_static` are tools and instructions. The model continues after block `n_end`, and
    continued after block `n_before` in its previous turn (0: no previous turn).
    """

    __slots__ = ("_fields", "api", "blocks", "n_before", "n_end", "n_static")

    def __init__(self, body: bytes, api: Api) -> None:
        """`api`: chat, responses or messages. Raises ValueError for a prompt of unknown form."""
        self.api = api
        self._fields: dict[str, Raw] = _OBJECT.decode(body)
        self.blocks = [PromptBlock(TOOLS, at, -1, bytes(tool))
                       for at, tool in enumerate(_parse_objects(self._fields.get("tools")))]
        self._add_instructions()
        self._add_messages()
        self.n_static = sum(1 for block in self.blocks if block.section != MESSAGES)
        self.n_end, self.n_before = _find_turn_ends(self.blocks)

    def format_path(self, n: int) -> str:
        """The path of a block in the body, such as `messages[0].content[1]`."""
        block = self.blocks[n]
        if block.section == TOOLS:
            return f"tools[{block.at}]"
        part = "" if block.part < 0 else f"[{block.part}]"
        if block.at < 0:
            return "instructions" if self.api is Api.RESPONSES else f"system{part}"
        return f"{_NAMES[self.api]}[{block.at}].content{part}"

    def n_markable_blocks(self, n: int) -> int:
        """The largest number of blocks, at most `n`, whose last block can have a marker; 0: none."""
        while n and not self._can_mark(self.blocks[n - 1]):
            n -= 1
        return n

    def _can_mark(self, block: PromptBlock) -> bool:
        if block.section == TOOLS:
            return self.api is Api.MESSAGES and not _HEAD.decode(block.data).defer_loading
        if not block.role or (self.api is not Api.MESSAGES and block.role not in _OPENAI_MARKABLE_ROLES):
            return False
        if block.data[:1] == b'"':
            return len(block.data) > 2
        if block.part < 0:
            return False
        part = _HEAD.decode(block.data)
        if not isinstance(part.type, str) or part.type not in _MARKABLE[self.api]:
            return False
        return part.type != _TEXTS[self.api] or bool(part.text)

    def write_with_markers(self, marks: Mapping[int, bytes], extra_fields: Mapping[str, bytes]) -> bytes:
        """The body with markers and extra top-level members. `marks`: the JSON value of each marker, by the number of blocks
        before it, whose last block must be markable.
        """
        fields: dict[str, Any] = {**{name: Raw(value) for name, value in extra_fields.items()}, **self._fields}
        for n in sorted(marks, reverse=True):  # instructions last: the inserted message shifts the others
            block = self.blocks[n - 1]
            marked = self._add_mark(block.data, marks[n])
            if block.section == TOOLS:
                _mutable_list(fields, "tools")[block.at] = marked
            elif block.at >= 0:
                items = _mutable_list(fields, _NAMES[self.api])
                items[block.at] = item = dict(_OBJECT.decode(raw) if isinstance(raw := items[block.at], Raw) else raw)
                item["content"] = _replace_part(item["content"], block.part, marked)
            elif self.api is Api.MESSAGES:
                fields["system"] = _replace_part(fields["system"], block.part, marked)
            else:
                del fields["instructions"]
                _mutable_list(fields, "input").insert(0, {"role": "developer", "content": [marked]})
        return _encode(fields)

    def make_prefix_request(self, n: int, mark: bytes) -> bytes:
        """A messages request that only fills the cache with the first `n` blocks, all static: it generates no tokens."""
        fields = _OBJECT.decode(self.write_with_markers({n: mark}, {}))
        head = {name: fields[name] for name in ("model", "tools", "system") if name in fields}
        return _encode({**head, "max_tokens": 0, "messages": [{"role": "user", "content": "."}]})

    def _add_mark(self, data: bytes, mark: bytes) -> Raw:
        if data[:1] == b'"':
            data = b'{"type":"%b","text":%b}' % (_TEXTS[self.api].encode(), data)
        return Raw(b'%b,"%b":%b}' % (data[:-1], _MEMBERS[self.api].encode(), mark))

    def _add_instructions(self) -> None:
        """Add the blocks of `system` or `instructions`."""
        name = {Api.MESSAGES: "system", Api.RESPONSES: "instructions"}.get(self.api)
        raw = self._fields.get(name) if name is not None else None
        if raw is not None and bytes(raw) != b"null":
            can_mark = self.api is Api.MESSAGES or (
                bytes(self._fields.get("store", b"")) == b"false" and bytes(self._fields.get("input", b""))[:1] == b"[")
            self._add_content(SYSTEM, -1, raw, b"", "system" if can_mark else "")

    def _add_messages(self) -> None:
        raw = self._fields.get(_NAMES[self.api])
        if raw is not None and bytes(raw)[:1] == b'"':
            self.blocks.append(PromptBlock(MESSAGES, 0, -1, bytes(raw)))
            return
        place = MESSAGES if self.api is Api.MESSAGES else SYSTEM  # elsewhere instructions are the first messages
        for at, item in enumerate(_parse_objects(raw)):
            head = _HEAD.decode(item)
            role = head.role if isinstance(head.role, str) else ""
            if isinstance(head.type, str) and head.type in _MODEL_ITEMS:
                role = "assistant"
            if role not in _INSTRUCTION_ROLES:
                place = MESSAGES
            message = _OBJECT.decode(item)
            content = message.pop("content", None)
            if content is None:
                self.blocks.append(PromptBlock(place, at, -1, bytes(item), role=role))
            else:
                self._add_content(place, at, content, _encode(message), role)

    def _add_content(self, place: int, at: int, content: Raw, head: bytes, role: str) -> None:
        parts = _parse_objects(content)
        if not parts:
            self.blocks.append(PromptBlock(place, at, -1, bytes(content), head, role))
        for index, part in enumerate(parts):
            self.blocks.append(PromptBlock(place, at, index, bytes(part), b"" if index else head, role))

    def __repr__(self) -> str:
        return f"<PromptLayout {self.api.value}: {len(self.blocks)} blocks, {self.n_static} of them static>"


def has_cache_markers(body: bytes) -> bool:
    """Whether the client set cache markers or options itself."""
    return any(mark in body for mark in _MARKS)


def marker_field(api: Api) -> str:
    """The member name of a marker in chat, responses or messages."""
    return _MEMBERS[api]


def _find_turn_ends(blocks: list[PromptBlock]) -> tuple[int, int]:
    """The number of blocks before the model's next turn, and before its previous turn."""
    end = len(blocks)
    while end and blocks[end - 1].role == "assistant":
        end -= 1
    before = end
    while before and blocks[before - 1].role != "assistant":
        before -= 1
    while before and blocks[before - 1].role == "assistant":
        before -= 1
    return end, before


def _parse_list(raw: Raw | None) -> list[Raw]:
    return _LIST.decode(raw) if raw is not None and bytes(raw)[:1] == b"[" else []


def _parse_objects(raw: Raw | None) -> list[Raw]:
    """A list of objects; empty if `raw` is no list. Raises ValueError if an item is no object."""
    found = _parse_list(raw)
    if any(bytes(item)[:1] != b"{" for item in found):
        raise ValueError("expected objects")
    return found


def _mutable_list(fields: dict[str, Any], name: str) -> list[Any]:
    """A member's list, decoded in place so that it can be changed."""
    if isinstance(fields[name], Raw):
        fields[name] = _parse_list(fields[name])
    found: list[Any] = fields[name]
    return found


def _replace_part(content: Any, part: int, marked: Raw) -> list[Any]:
    if part < 0:
        return [marked]
    parts = _parse_list(content) if isinstance(content, Raw) else content
    parts[part] = marked
    return parts
