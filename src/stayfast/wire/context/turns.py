"""The turns of a conversation in chat, messages and responses, and a body with fewer of them.

A turn is a user message with all that follows it, up to the next user message. User messages without anything between them
belong to one turn. A tool call and its result belong to one turn, even if a user message stands between them; so does the
reasoning of an answer. What stands before the first user message and is no instruction belongs to the first turn.

Nothing that remains is changed: items keep their bytes, and top-level members keep their bytes and their order. Thus the
tools and the system prompt, with which a provider's prompt cache begins, stay as they are. Instructions inside a
conversation (roles system and developer) outlive their turn: they move to the place of the summary, since a user message
that quotes them would have less authority. The summary is a user message: it repeats text of users, which must not gain
authority either. A short assistant message follows it, since messages and many engines' templates want roles that alternate.

Unknown forms have no turns (None): a history that the provider stores, items by reference, compacted items, unknown items.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.context import TurnText
from stayfast.core.types import Api, Request
from stayfast.wire.context.turn_texts import read_content_texts, read_turn_texts

NOTED: Final = "Noted."  # the assistant's message after a summary
_NAMES: Final = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}
_INSTRUCTIONS: Final = {Api.MESSAGES: "system", Api.RESPONSES: "instructions"}
_INSTRUCTION_ROLES: Final = ("system", "developer")
_ROLES: Final = (*_INSTRUCTION_ROLES, "user", "assistant", "tool", "function")
_ITEMS: Final = frozenset((  # of responses, without messages
    "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning", "web_search_call",
    "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call", "computer_call_output",
    "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"))
_STORED: Final = ("previous_response_id", "conversation", "prompt")  # of responses: the provider holds a part of the prompt
_MARKS: Final = ("cache_control", "prompt_cache_breakpoint")
_MARK_BYTES: Final = tuple(mark.encode() for mark in _MARKS)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_LIST: Final = msgspec.json.Decoder(list[Raw])
_ENCODER: Final = msgspec.json.Encoder()
_SORTED: Final = msgspec.json.Encoder(order="sorted")


class _Call(Struct, gc=False):
    id: Any = None


class _Block(Struct, gc=False):
    type: Any = None
    id: Any = None
    tool_use_id: Any = None


class _Item(Struct, gc=False):
    """What is read of a message or an item to find the turns."""

    role: Any = None
    type: Any = None
    content: Raw = Raw(b"")
    tool_calls: list[_Call] | None = None
    tool_call_id: Any = None
    function_call: Any = None
    name: Any = None
    id: Any = None
    call_id: Any = None
    approval_request_id: Any = None


_ITEM: Final = msgspec.json.Decoder(_Item)
_BLOCKS: Final = msgspec.json.Decoder(list[_Block])


class Turn:
    """One turn. `n`: from 1. `data`: its items as received, separated by commas. `at`: the index of its first item."""

    __slots__ = ("_api", "_digest", "_items", "_texts", "at", "n")

    def __init__(self, n: int, at: int, items: Sequence[Raw], api: Api) -> None:
        self.n = n
        self.at = at
        self._items = items
        self._api = api
        self._digest = ""
        self._texts: tuple[TurnText, ...] | None = None

    @property
    def data(self) -> bytes:
        return b",".join(bytes(item) for item in self._items)

    @property
    def items(self) -> Sequence[Raw]:
        return self._items

    @property
    def n_bytes(self) -> int:
        """The size of its JSON."""
        return sum(len(memoryview(item)) for item in self._items)

    @property
    def texts(self) -> tuple[TurnText, ...]:
        """Its texts, without reasoning, images and files."""
        if self._texts is None:
            self._texts = tuple(text for item in self._items for text in read_turn_texts(item, self.n, self._api))
        return self._texts

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of its content. White space of the JSON and markers for a prompt cache do not count: clients
        move their markers from turn to turn.
        """
        if not self._digest:
            content = [_unmark(msgspec.json.decode(item)) for item in self._items]
            self._digest = sha256(_SORTED.encode(content)).hexdigest()
        return self._digest

    def __repr__(self) -> str:
        return f"<Turn {self.n}: {len(self._items)} items>"


class Turns:
    """A body as its system part and its turns. `n_system`: the leading items that are instructions."""

    __slots__ = ("_api", "_fields", "_items", "_starts", "n_system", "turns")

    def __init__(self, api: Api, fields: dict[str, Raw], items: list[Raw], n_system: int, starts: Sequence[int]) -> None:
        """`starts`: the index of the first item of each turn."""
        self._api = api
        self._fields = fields
        self._items = items
        self._starts = (*starts, len(items))
        self.n_system = n_system
        self.turns = tuple(Turn(n + 1, start, items[start:self._starts[n + 1]], api) for n, start in enumerate(starts))

    @property
    def system(self) -> tuple[TurnText, ...]:
        """The texts of the instructions before the first turn."""
        found = [text for item in self._items[:self.n_system] for text in read_turn_texts(item, 0, self._api)]
        name = _INSTRUCTIONS.get(self._api)
        if name is not None and name in self._fields:
            found[:0] = read_content_texts(self._fields[name], "system", 0)
        return tuple(found)

    def digest_of(self, first: int, after: int) -> str:
        """Hexadecimal SHA-256 of the turns [first, after): the same history, the same summary."""
        return sha256("\n".join(turn.digest for turn in self.turns[first:after]).encode()).hexdigest()

    def texts_of(self, first: int, after: int) -> list[TurnText]:
        """The texts of the turns [first, after)."""
        return [text for turn in self.turns[first:after] for text in turn.texts]

    def replace(self, first: int, after: int, summary: str, pins: Sequence[str] = ()) -> bytes:
        """The body with one user message instead of the turns [first, after): the summary, if any, then `pins` as a list.

        `first` < `after`, both indices of `turns`. `pins`: what the summary lacks. Raises ValueError for an empty range.
        """
        self._check_range(first, after)
        text = "\n\n".join(part for part in (summary, render_pins(pins)) if part)
        moved = self._instructions_in(first, after)
        message = [self._write_message("user", text)]
        if after < len(self.turns):
            message.append(self._write_message("assistant", NOTED))
        if self._api is Api.MESSAGES:  # where a message of the system follows one of the user
            message[1:1] = moved
        else:
            message[:0] = moved
        return self._write(self._items[:self._starts[first]] + message + self._items[self._starts[after]:])

    def drop(self, first: int, after: int) -> bytes:
        """The body without the turns [first, after). Raises ValueError for an empty range, and if no turn would remain."""
        self._check_range(first, after)
        if after - first == len(self.turns):
            raise ValueError("a body without turns has no prompt")
        moved = self._instructions_in(first, after)
        before, rest = self._items[:self._starts[first]], self._items[self._starts[after]:]
        if self._api is Api.MESSAGES and rest:
            return self._write(before + rest[:1] + moved + rest[1:])
        return self._write(before + moved + rest)

    def _check_range(self, first: int, after: int) -> None:
        if not 0 <= first < after <= len(self.turns):
            raise ValueError(f"no turns from {first} to {after}")

    def _instructions_in(self, first: int, after: int) -> list[Raw]:
        return [item for item in self._items[self._starts[first]:self._starts[after]]
                if bytes(memoryview(item)[:1]) == b"{" and _ITEM.decode(item).role in _INSTRUCTION_ROLES]

    def _write_message(self, role: str, text: str) -> Raw:
        message = {"role": role, "content": text}
        return Raw(_ENCODER.encode({"type": "message", **message} if self._api is Api.RESPONSES else message))

    def _write(self, items: Iterable[Raw]) -> bytes:
        return _ENCODER.encode({**self._fields, _NAMES[self._api]: list(items)})

    def __repr__(self) -> str:
        return f"<Turns {self._api.value}: {len(self.turns)}>"


def split_turns(request: Request) -> Turns | None:
    """The turns of a request that `request_body.decode` has accepted; None if its form is unknown. 1 ms for 100 kB."""
    name = _NAMES.get(request.api)
    if name is None:
        return None
    try:
        fields = _OBJECT.decode(request.body)
        raw = fields.get(name, Raw(b"null"))
        if request.api is Api.RESPONSES:
            if any(bytes(fields.get(field, b"null")) not in (b"null", b"{}") for field in _STORED):
                return None
            if bytes(memoryview(raw)[:1]) == b'"':
                return Turns(request.api, fields, [raw], 0, [0])
        items = _LIST.decode(raw)
        heads = [_ITEM.decode(item) for item in items]
        return _split(request.api, fields, items, heads)
    except msgspec.DecodeError:
        return None


def _split(api: Api, fields: dict[str, Raw], items: list[Raw], heads: Sequence[_Item]) -> Turns | None:
    if not all(_is_known(head, api) for head in heads):
        return None
    n_system = next((at for at, head in enumerate(heads) if head.role not in _INSTRUCTION_ROLES), len(heads))
    starts = list(_find_starts(heads, n_system, _find_last_uses(heads)))
    if not starts:
        return None
    return Turns(api, fields, items, n_system, starts)


def _is_known(head: _Item, api: Api) -> bool:
    if api is not Api.RESPONSES:
        return isinstance(head.role, str) and head.role in _ROLES
    if head.type is None or head.type == "message":
        return isinstance(head.role, str) and head.role in _ROLES
    return isinstance(head.type, str) and head.type in _ITEMS


def _find_starts(heads: Sequence[_Item], n_system: int, last_uses: Sequence[int]) -> Iterator[int]:
    """The index of the first item of each turn. `last_uses`: for each item the last one with a result of its calls."""
    open_until, has_answer, has_user = 0, False, False
    for at, head in enumerate(heads):
        if at < n_system:
            continue
        is_user = head.role == "user" and not list(_results_of(head))
        if at == n_system or (is_user and has_answer and has_user and at > open_until):
            yield at
            has_answer, has_user = False, False
        has_user = has_user or is_user
        has_answer = has_answer or (not is_user and head.role not in _INSTRUCTION_ROLES)
        open_until = max(open_until, last_uses[at])


def _find_last_uses(heads: Sequence[_Item]) -> list[int]:
    """For each item the index of the last result of one of its calls, or its own."""
    last_uses, calls = list(range(len(heads))), dict[Any, int]()
    for at, head in enumerate(heads):
        for key in _results_of(head):
            caller = calls.get(key)
            if caller is not None:
                last_uses[caller] = at
        for key in _calls_of(head):
            calls[key] = at
    return last_uses


def _calls_of(head: _Item) -> Iterator[str]:
    """The ids of an item's calls."""
    for call in head.tool_calls or ():
        yield f"id {call.id}"
    if head.function_call is not None:
        yield "function"
    if head.type is not None and head.call_id is not None and not str(head.type).endswith("_output"):
        yield f"id {head.call_id}"
    if head.type == "mcp_approval_request":
        yield f"id {head.id}"
    for block in _blocks_of(head):
        if block.id is not None and str(block.type).endswith("tool_use"):
            yield f"id {block.id}"


def _results_of(head: _Item) -> Iterator[str]:
    """The ids of the calls whose results an item holds."""
    if head.role == "tool":
        yield f"id {head.tool_call_id}"
    elif head.role == "function":
        yield "function"
    if head.type is not None and str(head.type).endswith("_output"):
        yield f"id {head.call_id}"
    if head.type == "mcp_approval_response":
        yield f"id {head.approval_request_id}"
    for block in _blocks_of(head):
        if block.tool_use_id is not None:
            yield f"id {block.tool_use_id}"


def _blocks_of(head: _Item) -> list[_Block]:
    """The blocks of a message that may hold tool calls or results."""
    content = bytes(head.content)
    return _BLOCKS.decode(content) if content[:1] == b"[" and b"tool_use" in content else []


def _unmark(value: Any) -> Any:
    """A JSON value without markers for a prompt cache, and a single plain text part as its text."""
    if isinstance(value, list):
        found = [_unmark(part) for part in value]
        if len(found) == 1 and isinstance(found[0], dict) and found[0].keys() == {"type", "text"}:
            return found[0]["text"]
        return found
    if isinstance(value, dict):
        return {name: _unmark(part) for name, part in value.items() if name not in _MARKS}
    return value


def render_pins(pins: Sequence[str]) -> str:
    """Verbatim clauses as text of a message; empty without clauses."""
    return "PINNED (verbatim):\n" + "\n".join(f"- {pin}" for pin in pins) if pins else ""
