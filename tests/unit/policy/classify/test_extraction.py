"""policy.classify.extraction: values by format, pattern, words and number, with their places."""

from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.classify.extraction import FORMATS, extract_by_rules

TEXT = ("Order 8812-X of 2026-11-22 by ann.lee+x@shop.example, 3 items, Express delivery, see https://shop.example/o?id=1 "
        "from 10.0.0.7, id 123e4567-e89b-12d3-a456-426614174000.")


@pytest.mark.parametrize(("schema", "value"), [
    ({"type": "string", "format": "email"}, "ann.lee+x@shop.example"), ({"format": "date"}, "2026-11-22"),
    ({"format": "uri"}, "https://shop.example/o?id=1"), ({"format": "ipv4"}, "10.0.0.7"),
    ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000"), ({"pattern": "^[0-9]{4}-[A-Z]$"}, "8812-X"),
    ({"enum": ["standard", "express"]}, "express"), ({"type": "integer"}, 3),
])
def test_extract_by_rules_value_is_found_at_its_place(schema: dict[str, Any], value: Any) -> None:
    found = extract_by_rules(TEXT, {"properties": {"x": schema}})
    assert found.values == {"x": value}
    start, end = found.spans["x"]
    assert TEXT[start:end].lower() == str(value).lower()


def test_extract_by_rules_what_no_rule_finds_is_missing() -> None:
    found = extract_by_rules("no values", {"properties": {"mail": {"format": "email"}, "name": {"type": "string"},
                                                          "n": {"type": "integer"}, "m": {"type": "number"}}})
    assert found.values == {}
    assert found.missing == ("mail", "name", "n", "m")


def test_extract_by_rules_two_numbers_are_left_to_a_model() -> None:
    found = extract_by_rules("3 of 5", {"properties": {"n": {"type": "integer"}, "of": {"type": "integer"}}})
    assert found.missing == ("n", "of")


@pytest.mark.parametrize("schema", [{}, {"properties": {}}, {"properties": 3}, {"properties": {"x": {"pattern": "("}}}])
def test_extract_by_rules_unusable_schema_is_a_value_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="schema"):
        extract_by_rules("text", schema)


@given(st.text(alphabet="a@.-:/0123456789 xX,", max_size=300))
def test_extract_by_rules_any_text_has_values_at_their_places(text: str) -> None:
    found = extract_by_rules(text, {"properties": {name: {"format": name} for name in FORMATS}})
    assert all(text[start:end] == found.values[name] for name, (start, end) in found.spans.items())


@pytest.mark.parametrize("attack", ["a@", "a.", "1.", "12345678-", "http://", "a-a@a-", "2026-"])
def test_extract_by_rules_hostile_text_takes_little_time(attack: str) -> None:
    began = process_time()
    extract_by_rules(attack * 10_000, {"properties": {name: {"format": name} for name in FORMATS}})
    assert process_time() - began < 1.0
