"""Values of a JSON Schema's properties in a text, by rules: formats, patterns, lists of words and numbers.

Problem: a model takes a second to copy an e-mail address out of a text. Rule: each property is searched by its schema's
keywords: `pattern`, `format` (email, uri, date, uuid, ipv4), `enum` (as a whole word, in any case), or a number, where it is
the only numeric property. The first place in the text counts. What no rule finds is `missing`, for a model.
Source: the keywords are those of JSON Schema 2020-12 (Validation); the expressions are ours, narrower than the RFCs.
When wrong: a text with two addresses has the first one, whichever is meant. Other formats and nested objects have no rule.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

MAX_CHARS: Final = 20_000
FORMATS: Final[Mapping[str, re.Pattern[str]]] = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"),
    "uri": re.compile(r"https?://[^\s<>\"')\]]{1,2000}"),
    "date": re.compile(r"(?<!\d)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?!\d)"),
    "uuid": re.compile(r"(?<![0-9A-Fa-f-])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f-])"),
    "ipv4": re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])"),
}
_NUMBER: Final = re.compile(r"(?<![\w.,-])-?\d{1,15}(?:\.\d{1,12})?(?!\w|[-.]\w)")
_NUMERIC: Final = ("integer", "number")


class ExtractedValues(Struct, frozen=True):
    """spans: start and end of each value that a rule found, in characters. missing: properties without a value."""

    values: dict[str, Any]
    spans: dict[str, tuple[int, int]]
    missing: tuple[str, ...]


def extract_by_rules(text: str, schema: Mapping[str, Any]) -> ExtractedValues:
    """schema: of an object, with `properties`. Raises ValueError for another one, or for an invalid pattern."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise ValueError("the schema must be one of an object, with properties")
    text = text[:MAX_CHARS]
    n_numeric = sum(isinstance(each, Mapping) and each.get("type") in _NUMERIC for each in properties.values())
    values: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    for name, each in properties.items():
        found = _find(text, each, is_only_number=n_numeric == 1) if isinstance(each, Mapping) else None
        if found is not None:
            values[name], spans[name] = found
    return ExtractedValues(values, spans, tuple(name for name in properties if name not in values))


def _find(text: str, schema: Mapping[str, Any], *, is_only_number: bool) -> tuple[Any, tuple[int, int]] | None:
    pattern, words, kind = schema.get("pattern"), schema.get("enum"), schema.get("type")
    if isinstance(pattern, str):
        try:
            found = re.search(pattern.removeprefix("^").removesuffix("$"), text)
        except re.error as wrong:
            raise ValueError(f"the schema's pattern {pattern!r} is not a regular expression: {wrong}") from None
        return (found[0], found.span()) if found is not None and found[0] else None
    if isinstance(words, list):
        places = [(found.start(), -len(word), word, found.span()) for word in words if isinstance(word, str) and word
                  and (found := re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)) is not None]
        return (min(places)[2], min(places)[3]) if places else None
    expression = FORMATS.get(str(schema.get("format")))
    if expression is None and kind in _NUMERIC and is_only_number:
        expression = _NUMBER
    found = expression.search(text) if expression is not None else None
    if found is None:
        return None
    if expression is not _NUMBER:
        return found[0], found.span()
    value = float(found[0])
    if kind == "integer" and not value.is_integer():
        return None
    return (int(found[0]) if kind == "integer" and "." not in found[0] else value if kind == "number" else int(value)
            ), found.span()
