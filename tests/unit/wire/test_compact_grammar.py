"""JSON schemas in the fields of engines."""

from typing import Any

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.wire.compact_grammar import is_plain
from stayfast.wire.quirks import BodyQuirks, Quirk

SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["zeta", "alpha"],
    "properties": {"zeta": {"type": "string"}, "alpha": {"$ref": "#/$defs/n"}},
    "$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}}}


def body_of(schema: object, **more: object) -> dict[str, Any]:
    return {"model": "m", "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}, **more}


def changed(quirk: Quirk, body: dict[str, Any]) -> dict[str, Any]:
    found = msgspec.json.decode(BodyQuirks((quirk,)).apply(msgspec.json.encode(body), Api.CHAT))
    assert isinstance(found, dict)
    return found


def test_compact_json_is_a_grammar_in_the_order_of_the_schema() -> None:
    found = changed(Quirk.COMPACT_JSON, body_of(SCHEMA))
    assert "response_format" not in found
    head, _, text = found["grammar"].partition("%json ")
    grammar = msgspec.json.decode(text)
    assert head == "%llguidance {}\nstart: "
    assert list(grammar["properties"]) == ["zeta", "alpha"]
    assert grammar["required"] == ["zeta", "alpha"]
    assert grammar["x-guidance"] == {"whitespace_flexible": False}
    assert grammar["additionalProperties"] is grammar["$defs"]["n"]["additionalProperties"] is False


@pytest.mark.parametrize("body", [
    body_of(SCHEMA, tools=[{"type": "function"}]), body_of(SCHEMA, grammar="root ::= 1"),
    body_of({"type": "string", "format": "date"}), body_of({"type": "object", "properties": {"a": {"not": {}}}}),
    body_of({"anyOf": [{"type": "null"}, {"pattern": "a"}]}), body_of(5),
    {"response_format": {"type": "json_object"}}, {"response_format": "text"}, {"response_format": None}])
def test_compact_json_leaves_what_it_does_not_know(body: dict[str, Any]) -> None:
    assert changed(Quirk.COMPACT_JSON, body) == body


def test_guided_json_is_the_schema() -> None:
    assert changed(Quirk.GUIDED_JSON, body_of(SCHEMA)) == {"model": "m", "guided_json": SCHEMA}
    assert changed(Quirk.GUIDED_JSON, body_of(SCHEMA, guided_json={})) == body_of(SCHEMA, guided_json={})


def test_is_plain_of_an_endless_schema_is_false() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    assert not is_plain(schema)
