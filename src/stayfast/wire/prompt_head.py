"""The head of a prompt: its tools and instructions, which many requests share, and the digests by which they are known.

**Normalised blocks.** A digest is the sha256 of the blocks without what usually moves: dates, times, UUIDs, timestamps and
ids are masked, and tools are sorted by name. So a clock in a system prompt does not make a version of each request. The raw
bytes still tell where it moves: `locate_change`.

Positions are bytes of a block's JSON, as in the findings of `pipeline.prompt_cache.diagnostics`.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.prompt_versions import PromptPlace
from stayfast.core.types import Request
from stayfast.wire.prompt import LAYOUT_APIS, SYSTEM, TOOLS, PromptLayout, n_common_bytes

MAX_BYTES: Final = 512 * 1024  # of a body: about 128,000 tokens
_AROUND: Final = 64  # bytes before a change in which the item that it belongs to may begin
_DAY: Final = rb"(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}"
_TIME: Final = rb"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?"
_ITEMS: Final = (  # the first kind that matches names the change
    ("a date", rb"\b%b(?:[T ]%b)?(?!\d)" % (_DAY, _TIME)),
    ("a time", rb"\b%b" % _TIME),
    ("a UUID", rb"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"),
    ("a timestamp", rb"\b1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6})?\b"),
    ("an id", rb"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,}\b"),
    ("a number", rb"\d+(?:\.\d+)?"),
)
_PATTERNS: Final = tuple((kind, re.compile(pattern)) for kind, pattern in _ITEMS)
_MASKED: Final = re.compile(b"|".join(b"(?:%b)" % pattern for _, pattern in _ITEMS[:-1]))
_ALL_MASKED: Final = re.compile(b"|".join(b"(?:%b)" % pattern for _, pattern in _ITEMS))
_CALLED: Final = re.compile(rb'"name"\s*:\s*"([^"\\]{1,128})"')
_ENDS: Final = re.compile(rb"\\n|[.!?] |\",\"")
_ANY: Final = msgspec.json.Decoder()


class _ToolName(Struct, gc=False):
    type: Any = None
    name: Any = None
    function: Any = None


_TOOL: Final = msgspec.json.Decoder(_ToolName)


class HeadBlock(Struct, frozen=True, gc=False):
    section: int  # TOOLS or SYSTEM
    path: str
    data: bytes  # JSON, as received
    name: str = ""  # of a tool


class PromptHead(Struct, frozen=True):
    """The tools and instructions of one request, never empty. `data`: of all blocks. `n_prompt`: bytes of the whole prompt.
    `called`: names of tools that the conversation called.
    """

    blocks: tuple[HeadBlock, ...]
    data: bytes
    n_prompt: int
    called: tuple[str, ...] = ()

    def n_bytes_of(self, section: int) -> int:
        return sum(len(block.data) for block in self.blocks if block.section == section)


class HeadIds(Struct, frozen=True):
    """Digests of normalised blocks, in hex: of instructions and tools together, and of each; empty where there are none."""

    whole: str
    system: str
    tools: str


def read_head(request: Request) -> PromptHead | None:
    """The head of a validated request; None: it has none, it is too large, or its form is unknown."""
    if request.api not in LAYOUT_APIS or len(request.body) > MAX_BYTES:
        return None
    try:
        laid = PromptLayout(request.body, request.api)
        blocks = tuple([HeadBlock(block.section, laid.format_path(n), block.data,
                                  _name_of(block.data) if block.section == TOOLS else "")
                        for n, block in enumerate(laid.blocks[:laid.n_static])])
    except (ValueError, RecursionError):
        return None
    if not blocks:
        return None
    return PromptHead(blocks, b"".join([block.data for block in blocks]),
                      sum(len(block.head) + len(block.data) for block in laid.blocks), _find_calls(laid))


def digest_head(head: PromptHead) -> HeadIds:
    """Costs 35 us a kB."""
    system = [_mask(block.data) for block in head.blocks if block.section == SYSTEM]
    tools = [_mask(block.data) for block in sorted(head.blocks, key=lambda block: block.name) if block.section == TOOLS]
    return HeadIds(_digest([*tools, b"", *system]), _digest(system), _digest(tools))


def find_begin(head: PromptHead, body: bytes) -> bytes:
    """The beginning of a body up to the end of its instructions; empty: they are not found. Bodies of one program that
    begin with the same bytes have the same instructions.
    """
    system = [block.data for block in head.blocks if block.section == SYSTEM] or [block.data for block in head.blocks]
    return body[:max(at + len(data) if (at := body.find(data)) >= 0 else 0 for data in system)]


def _name_of(tool: bytes) -> str:
    parsed = _TOOL.decode(tool)
    name = parsed.function.get("name") if isinstance(parsed.function, dict) else parsed.name
    return name if isinstance(name, str) else str(parsed.type)


def _mask(data: bytes) -> bytes:
    return _MASKED.sub(b"#", data)


def _digest(parts: Sequence[bytes]) -> str:
    whole = sha256()
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return whole.hexdigest() if parts else ""


def _find_calls(laid: PromptLayout) -> tuple[str, ...]:
    """Names in the model's own turns: those of the tools it called, and of a few members that have no tool's name."""
    names: dict[str, None] = {}
    for block in laid.blocks[laid.n_static:]:
        if block.role == "assistant":
            for found in _CALLED.findall(block.head + block.data):
                names[found.decode(errors="replace")] = None
    return tuple(names)


def locate_change(before: PromptHead, after: PromptHead) -> PromptPlace | None:
    """The first byte of `after` that differs from `before`, moved to the begin of the item it belongs to (a date, an id).
    None: they are equal, or one begins with the other.
    """
    one, other = before.data, after.data
    n_same = first_difference(one, other)
    if n_same >= min(len(one), len(other)):
        return None
    tools = [sorted((block.name, block.data) for block in head.blocks if block.section == TOOLS) for head in (before, after)]
    at, kind = _find_item(one, other, n_same)
    n_left, number = at, 0
    while n_left >= len(after.blocks[number].data):
        n_left -= len(after.blocks[number].data)
        number += 1
    block = after.blocks[number]
    if block.section == TOOLS and tools[0] == tools[1]:
        kind, at, n_left = "order", at - n_left, 0
    return PromptPlace(block.path, n_left, kind, at / len(other), float(len(other) - at))


def first_difference(one: bytes, other: bytes) -> int:
    """The number of equal bytes at the beginning; cost is proportional to it."""
    n, step, most = 0, 64, min(len(one), len(other))
    while n < most and one[n:n + step] == other[n:n + step]:
        n += step
        step <<= 1
    low, high = n, min(n + step, most)  # equal up to low
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return min(low, most)


def _find_item(one: bytes, other: bytes, at: int) -> tuple[int, str]:
    """Where the item with the byte `at` begins in both texts, and its kind."""
    begin = max(0, at - _AROUND)
    for kind, pattern in _PATTERNS:
        for text in (other, one):
            for found in pattern.finditer(text[begin:at + _AROUND]):
                if found.start() <= at - begin < found.end():
                    return begin + found.start(), kind
    return at, "text"


def kind_of_change(before: bytes, after: bytes) -> str:
    """The kind of the item that makes two texts differ: text, unless they are equal but for dates, ids or numbers."""
    if _ALL_MASKED.sub(b"#", before) != _ALL_MASKED.sub(b"#", after):
        return "text"
    return _find_item(before, after, first_difference(before, after))[1]


def n_changed_bytes(before: bytes, after: bytes) -> tuple[int, int]:
    """The bytes between the equal beginning and the equal end: of the text before, and of that after."""
    n_same = n_common_bytes(before, after)
    return len(before) - n_same, len(after) - n_same


def split_pieces(data: bytes) -> dict[int, int]:
    """Hashes of the sentences and lines, with their bytes: texts that are changed in several places share most of them."""
    return {hash(piece): len(piece) for piece in _ENDS.split(data)}


def n_common_pieces(one: Mapping[int, int], other: Mapping[int, int]) -> int:
    """The bytes of the sentences and lines that both have."""
    return sum(one[key] for key in one.keys() & other.keys())


def read_instruction_texts(head: PromptHead) -> list[tuple[str, str]]:
    """The texts of the instructions: path and text."""
    found = []
    for block in head.blocks:
        if block.section == SYSTEM:
            value = _ANY.decode(block.data)
            text = value.get("text") if isinstance(value, dict) else value
            if isinstance(text, str):
                found.append((block.path, text))
    return found


def format_head(head: PromptHead) -> list[str]:
    """Lines for a reader: the texts of the instructions, and each tool as indented JSON, with a line for each path."""
    lines: list[str] = []
    texts = dict(read_instruction_texts(head))
    for block in head.blocks:
        lines.append(f"--- {block.path}")
        shown = texts.get(block.path)
        lines += (shown if shown is not None else msgspec.json.format(block.data, indent=2).decode()).splitlines()
    return lines
