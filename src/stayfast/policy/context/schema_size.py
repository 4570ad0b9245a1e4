"""The fewest tokens that a complete answer to a JSON schema can have.

Problem: an answer that must be JSON and is cut at its limit is worth nothing, and is paid for. Rule: a lower bound of the
shortest valid document, counted so that it is never too high:

    object      2 + for each required property: quotes, name, colon and value; commas between them
    array       2 + minItems times the shortest item;        a string 2 + minLength;      a number 1; true 4; null 4
    enum, const the shortest of the values as compact JSON;  anyOf, oneOf: the shortest branch;  allOf: the longest part
    $ref        what it names, within the document; 1 for what refers to itself, or is not understood

    tokens >= max(bytes / BYTES_OF_TOKEN, 2 * required names)

A run of one character counts as one byte, as vocabularies have tokens for it. Tokenizers of GPT, Llama and Qwen split
letters from punctuation, so the name of a property and the punctuation after it are two tokens at least.
Source: JSON Schema 2020-12; the pre-tokenizers of cl100k and o200k. When wrong: it is low, so requests pass that will be
cut; only a vocabulary with words of more than BYTES_OF_TOKEN bytes, and these in the schema, could fit into fewer.
"""

from itertools import groupby
from typing import Any, Final

import msgspec

BYTES_OF_TOKEN: Final = 16
MAX_DEPTH: Final = 32
MAX_NODES: Final = 20_000
_SIMPLE: Final = {"string": 2, "number": 1, "integer": 1, "boolean": 4, "null": 4}


def least_tokens(schema: object) -> int:
    """A lower bound of the tokens of a valid answer; 1 for a schema that is not understood."""
    if not isinstance(schema, dict):
        return 1
    sizes = _Sizes(schema)
    n_bytes, n_names = sizes.of(schema, 0)
    return max(1, -(-n_bytes // BYTES_OF_TOKEN), 2 * n_names)


class _Sizes:
    """Sizes of the parts of one schema: bytes, and property names. Stops at MAX_NODES, where every part has size 0."""

    __slots__ = ("_n_left", "_root", "_seen")

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._seen: set[str] = set()  # references that are being followed
        self._n_left = MAX_NODES

    def of(self, schema: object, depth: int) -> tuple[int, int]:
        self._n_left -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._n_left < 0:
            return 1, 0
        found = [self._own(schema, depth)]
        if isinstance(ref := schema.get("$ref"), str):
            found.append(self._referred(ref, depth))
        for name in ("anyOf", "oneOf"):
            branches = schema.get(name)
            if isinstance(branches, list) and branches:
                found.append(_least([self.of(branch, depth + 1) for branch in branches]))
        if isinstance(parts := schema.get("allOf"), list):
            found += [self.of(part, depth + 1) for part in parts]
        return max(n_bytes for n_bytes, _ in found), max(n_names for _, n_names in found)

    def _own(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        if "const" in schema:
            return _n_bytes(schema["const"]), 0
        if isinstance(values := schema.get("enum"), list) and values:
            return min(_n_bytes(value) for value in values), 0
        kinds = schema.get("type")
        if isinstance(kinds, list) and kinds:
            return _least([self._of_kind(kind, schema, depth) for kind in kinds])
        return self._of_kind(kinds, schema, depth) if kinds is not None else (1, 0)

    def _of_kind(self, kind: object, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        if kind == "object":
            return self._of_object(schema, depth)
        if kind == "array":
            n_items = _count(schema.get("minItems"))
            if not n_items:
                return 2, 0
            n_bytes, n_names = self.of(schema.get("items"), depth + 1)
            return 2 + n_items * (n_bytes + 1) - 1, n_items * n_names
        n_bytes = _SIMPLE.get(kind, 1) if isinstance(kind, str) else 1
        return n_bytes, 0  # minLength: of one character, repeated

    def _of_object(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(required, list):
            return 2, 0
        names = {name for name in required if isinstance(name, str)}
        n_bytes, n_names = 2 + max(0, len(names) - 1), len(names)
        for name in names:
            known = properties.get(name) if isinstance(properties, dict) else None
            size, n_inside = self.of(known, depth + 1)
            n_bytes += _n_bytes(name) + 1 + size
            n_names += n_inside
        return n_bytes, n_names

    def _referred(self, ref: str, depth: int) -> tuple[int, int]:
        if ref in self._seen or not ref.startswith("#"):
            return 1, 0
        target: object = self._root
        for part in ref[1:].split("/")[1:]:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        self._seen.add(ref)
        try:
            return self.of(target, depth + 1)
        finally:
            self._seen.discard(ref)


def _least(sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """Each the least of all, as the branch with the fewest bytes may not have the fewest names."""
    return min(n_bytes for n_bytes, _ in sizes), min(n_names for _, n_names in sizes)


def _n_bytes(value: object) -> int:
    """The bytes of a value as JSON, runs of one character as one."""
    return sum(1 for _ in groupby(msgspec.json.encode(value)))


def _count(value: object) -> int:
    return min(value, 1_000_000) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
