"""The text of simulated answers: readable words, reproducible from the seed. One word is one token."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_PASSAGE: Final = (
    "Average latency is a lie: what users feel is the tail. One slow answer in a hundred is the one they remember, and a "
    "page that asks ten models waits for the slowest of them. A queue grows without a sound until it is the whole wait. "
    "Every retry that cannot finish in time is load, and every stream that nobody reads is money. So give each request one "
    "deadline, spend it stage by stage, hand on what is left, and stop the work when the reader has gone. Measure from the "
    "moment somebody meant to ask, count the errors among the slow, and never let a healthy mock tell you how fast you are. "
    "This answer was simulated. "
)
_WORDS: Final = tuple(f"{word} " for word in _PASSAGE.split())
N_WORDS: Final = len(_WORDS)
_TWICE: Final = _WORDS * 2
_BYTES: Final = tuple(word.encode() for word in _TWICE)
CHARACTERS_A_TOKEN: Final = 4
_WORD_BYTES: Final = 8  # bytes of a word with its space that count as one token
_MAX_DEPTH: Final = 12


def make_words(start: int, n: int) -> str:
    """`n` words of the passage from the `start`-th, repeated as needed."""
    start %= N_WORDS
    if n <= N_WORDS:
        return "".join(_TWICE[start : start + n])
    return "".join(_WORDS[(start + at) % N_WORDS] for at in range(n))


def word_bytes(start: int, n: int) -> bytes:
    """The same as UTF-8. No character needs an escape in JSON."""
    start %= N_WORDS
    if n <= N_WORDS:
        return b"".join(_BYTES[start : start + n])
    return make_words(start, n).encode()


def count_tokens(text: str) -> int:
    """Tokens of a prompt: one per word, as in answers, plus one per four bytes above eight bytes per word on average (code,
    other scripts, data).
    """
    if not text:
        return 0
    n_words = text.count(" ") + text.count("\n") + 1
    n_bytes = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return n_words + max(0, n_bytes - _WORD_BYTES * n_words) // CHARACTERS_A_TOKEN


def split_tokens(text: str) -> list[str]:
    """The text in pieces of about a token each."""
    return [text[at : at + CHARACTERS_A_TOKEN] for at in range(0, len(text), CHARACTERS_A_TOKEN)]


def make_json(schema: Mapping[str, Any] | None, start: int) -> str:
    """A JSON object that fits `schema` if it is simple; without a schema, words under "answer"."""
    value = {"answer": make_words(start, 8).strip()} if schema is None else _value_for(schema, schema, start, 0)
    return msgspec.json.encode(value).decode()


def _value_for(schema: Any, root: Mapping[str, Any], start: int, depth: int) -> Any:
    """A minimal value for a schema: required properties only, and the first of several options."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if isinstance(schema.get("$ref"), str):
        return _value_for(_resolve_ref(schema["$ref"], root), root, start, depth + 1)
    for name in ("enum", "anyOf", "oneOf", "allOf"):
        options = schema.get(name)
        if isinstance(options, list) and options:
            return options[0] if name == "enum" else _value_for(options[0], root, start, depth + 1)
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    return _value_of_type(kind, schema, root, start, depth)


def _value_of_type(kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], start: int, depth: int) -> Any:
    if kind == "string":
        return make_words(start + depth, 3).strip()
    if kind in ("integer", "number"):
        least = schema.get("minimum", 1)
        return least if isinstance(least, int | float) else 1
    if kind == "boolean":
        return True
    if kind == "array":
        n_items = schema.get("minItems", 1)
        n_items = min(n_items, 100) if isinstance(n_items, int) else 1
        return [_value_for(schema.get("items", {"type": "string"}), root, start, depth + 1) for _ in range(n_items)]
    properties = schema.get("properties")
    if kind == "object" or isinstance(properties, Mapping):
        properties = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else list(properties)
        return {name: _value_for(properties.get(name, {"type": "string"}), root, start, depth + 1) for name in names}
    return None


def _resolve_ref(ref: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in ref.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
