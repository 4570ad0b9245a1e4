"""A JSON schema in the fields of engines: as a grammar without optional blanks, and as `guided_json` for older vLLM.

Problem: llama.cpp's own grammar of a schema allows two newlines and twenty blanks between any two tokens. A small model, for
which all tokens are about as likely, writes them: an answer of 24 tokens becomes 84, and ends at its limit in blanks. Rule:
`response_format` becomes `grammar`, with the schema itself as an LLGuidance grammar in compact JSON. The order of the
properties, `required` and everything else of the schema stay; objects have no properties beyond those that they name, as in
llama.cpp's own. It is left as it was

    with tools                       llama.cpp refuses a grammar of one's own with tools
    with keywords beyond KEYWORDS    LLGuidance refuses some, and llama.cpp then drops the grammar without an error

Source: LLGuidance's `x-guidance` options; measured with xllamacpp 2026.10. When wrong: a server without LLGuidance refuses
the grammar; the setting is for the embedded engine, which has it.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.conversation import RawObject

KEYWORDS: Final = frozenset((
    "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum", "const", "anyOf",
    "$ref", "$defs", "definitions", "minLength", "maxLength", "minimum", "maximum", "title", "description", "default",
    "examples"))
_MAPS: Final = ("properties", "$defs", "definitions")
_OPTIONS: Final = {"whitespace_flexible": False}
_MAX_DEPTH: Final = 64
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def write_compact_grammar(fields: RawObject) -> None:
    """Replace `response_format` of a chat body by `grammar`, where that means the same."""
    if _has_value(fields, "tools") or _has_value(fields, "grammar"):
        return
    schema = _schema_of(fields)
    if schema is not None and is_plain(schema):
        del fields["response_format"]
        text = _ENCODER.encode({"x-guidance": _OPTIONS, **_close(schema)}).decode()
        fields["grammar"] = Raw(_ENCODER.encode(f"%llguidance {{}}\nstart: %json {text}\n"))


def write_guided_json(fields: RawObject) -> None:
    """Replace `response_format` of a chat body by vLLM's older `guided_json`."""
    schema = _schema_of(fields)
    if schema is not None and not _has_value(fields, "guided_json"):
        del fields["response_format"]
        fields["guided_json"] = Raw(_ENCODER.encode(schema))


def _schema_of(fields: RawObject) -> dict[str, Any] | None:
    try:
        form = _ANY.decode(fields.get("response_format", b"null"))
    except _ERRORS:
        return None
    named = form.get("json_schema") if isinstance(form, dict) and form.get("type") == "json_schema" else None
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else None


def is_plain(schema: object, depth: int = 0) -> bool:
    """Whether a schema has only KEYWORDS, at every level."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or depth > _MAX_DEPTH or not schema.keys() <= KEYWORDS:
        return False
    return all(is_plain(part, depth + 1) for part in _parts(schema))


def _close(schema: Any) -> Any:
    """The schema with no other properties than those that its objects name, as llama.cpp reads it."""
    if not isinstance(schema, dict):
        return schema
    closed = {name: {key: _close(part) for key, part in value.items()} if name in _MAPS
              else [_close(part) for part in value] if name == "anyOf"
              else _close(value) if name in ("items", "additionalProperties") else value
              for name, value in schema.items()}
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _parts(schema: dict[str, Any]) -> list[object]:
    parts: list[object] = []
    for name in _MAPS:
        if name in schema:
            members = schema[name]
            parts += members.values() if isinstance(members, dict) else [None]
    parts += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    if "anyOf" in schema:
        parts += schema["anyOf"] if isinstance(schema["anyOf"], list) else [None]
    return parts


def _has_value(fields: RawObject, name: str) -> bool:
    return bytes(fields.get(name, b"null")) not in (b"null", b"[]")
