"""The order of a prompt that can be remembered: tools by name, and instructions that move with the hour last.

Tools that come out of a set, or of servers that answer in any order, make the same prompt a new one each time; so do a date
or an id above ten thousand words that never change. What is moved is whole blocks; no text is touched.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.core.types import Api

_LEADING: Final = frozenset(("system", "developer"))
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


class _Named(Struct, gc=False):
    name: Any = None
    type: Any = None
    function: Any = None
    role: Any = None


_NAMED: Final = msgspec.json.Decoder(_Named)
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_LIST: Final = msgspec.json.Decoder(list[Raw])
_encode: Final = msgspec.json.Encoder().encode


def in_stable_order(body: bytes, api: Api, *, sorts_tools: bool, moves_volatile: bool) -> bytes:
    """The body with its tools by name and, where that is wished, whole blocks of instructions that hold a date, a UUID or a
    timestamp behind those that do not; the very same bytes where nothing moves. Raises ValueError for what cannot be read.
    """
    said: dict[str, Any] = _OBJECT.decode(body)
    changed = _sort(said, "tools", _tool_name) if sorts_tools else False
    if moves_volatile:
        if api is Api.MESSAGES:
            changed |= _sort(said, "system", _is_of_the_hour)
        elif api is Api.CHAT:
            changed |= _move_leading(said)
    return _encode(said) if changed else body


def tool_names(body: bytes) -> tuple[str, ...]:
    """The names of a body's tools, sorted."""
    return tuple(sorted(_tool_name(tool) for tool in _listed(_OBJECT.decode(body).get("tools"))))


def head_of(body: bytes, api: Api) -> tuple[bytes, bytes]:
    """Tools and instructions, which requests of one kind begin with; and the first message after them, with which one
    conversation does.
    """
    said = _OBJECT.decode(body)
    parts = [bytes(said[name]) for name in ("tools", "system", "instructions") if name in said]
    for item in _listed(said.get("input" if api is Api.RESPONSES else "messages")):
        if api is Api.MESSAGES or not _is_leading(item):
            return b"".join(parts), bytes(item)
        parts.append(bytes(item))
    return b"".join(parts), bytes(said.get("input", b""))


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


def _sort(said: dict[str, Any], name: str, key: Callable[[Raw], Any]) -> bool:
    before = _listed(said.get(name))
    after = sorted(before, key=key)
    is_changed = any(one is not other for one, other in zip(before, after, strict=True))
    if is_changed:
        said[name] = after
    return is_changed


def _move_leading(said: dict[str, Any]) -> bool:
    messages = _listed(said.get("messages"))
    n_leading = 0
    while n_leading < len(messages) and _is_leading(messages[n_leading]):
        n_leading += 1
    leading = sorted(messages[:n_leading], key=_is_of_the_hour)
    if all(one is other for one, other in zip(leading, messages[:n_leading], strict=True)):
        return False
    said["messages"] = [*leading, *messages[n_leading:]]
    return True


def _is_leading(message: Raw) -> bool:
    role = _NAMED.decode(message).role
    return isinstance(role, str) and role in _LEADING


def _is_of_the_hour(block: Raw) -> bool:
    return _OF_THE_HOUR.search(bytes(block)) is not None


def _tool_name(tool: Raw) -> str:
    said = _NAMED.decode(tool)
    name = said.function.get("name") if isinstance(said.function, dict) else said.name
    return name if isinstance(name, str) else str(said.type)


def _listed(raw: Raw | None) -> list[Raw]:
    return _LIST.decode(raw) if raw is not None and bytes(raw)[:1] == b"[" else []
