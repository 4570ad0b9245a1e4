"""The fewest tokens of an answer to a schema."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.context.schema_size import least_tokens

OBJECT: dict[str, Any] = {"type": "object", "properties": {"sentiment": {"enum": ["positive", "negative"]},
                                                           "score": {"type": "integer"}},
                          "required": ["sentiment", "score"]}


@pytest.mark.parametrize(("schema", "n_tokens"), [
    (None, 1), ({}, 1), ({"type": "string"}, 1), (True, 1),
    (OBJECT, 4),  # {"sentiment":"positive","score":1}: 24 tokens at the embedded engine
    ({"type": "array", "minItems": 100, "items": OBJECT}, 400),
    ({"type": "array", "items": OBJECT}, 1),
    ({"type": "object", "properties": {"a": OBJECT}}, 1),  # not required
    ({"anyOf": [OBJECT, {"type": "null"}]}, 1),
    ({"allOf": [OBJECT, {"type": "object"}]}, 4),
    ({"$defs": {"o": OBJECT}, "$ref": "#/$defs/o"}, 4),
    ({"$defs": {"n": {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#/$defs/n"}}}},
      "$ref": "#/$defs/n"}, 2),  # endless, of which only the first is counted
    ({"const": "-" * 1000}, 1),  # a vocabulary may have one token for it
    ({"const": "abcdefgh" * 100}, 51),
    ({"type": ["object", "null"], "required": ["a", "b"]}, 1),
    ({"type": "object", "required": "a"}, 1), ({"$ref": "http://elsewhere"}, 1), ({"enum": []}, 1),
])
def test_least_tokens_is_a_lower_bound(schema: object, n_tokens: int) -> None:
    assert least_tokens(schema) == n_tokens


def test_least_tokens_of_a_schema_that_doubles_at_each_level_ends() -> None:
    definitions = {f"d{n}": {"type": "array", "minItems": 2, "items": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2}}
                   for n in range(40)}
    assert least_tokens({"$defs": definitions, "$ref": "#/$defs/d0"}) >= 1


VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=12),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                      max_leaves=8)


def schema_of(value: object) -> dict[str, Any]:
    """The tightest schema of a value."""
    match value:
        case dict():
            return {"type": "object", "properties": {key: schema_of(part) for key, part in value.items()},
                    "required": list(value)}
        case list() if value:
            return {"type": "array", "minItems": len(value), "items": {"anyOf": [schema_of(part) for part in value]}}
        case _:
            return {"const": value}


@given(VALUES)
def test_least_tokens_never_exceeds_a_valid_answer(value: object) -> None:
    n_bytes = len(msgspec.json.encode(value))
    n_names = str(msgspec.json.encode(value)).count('":')
    assert least_tokens(schema_of(value)) <= max(1, -(-n_bytes // 16), 2 * n_names)
