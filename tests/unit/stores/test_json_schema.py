"""Values and schemas of clients."""

from stayfast.stores.json_schema import fits_schema

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}


def test_value_fits_types_enums_and_required_members() -> None:
    assert fits_schema(SCHEMA, {"city": "Rome"})
    assert not fits_schema(SCHEMA, {"city": "Bonn"})
    assert not fits_schema(SCHEMA, {})
    assert not fits_schema(SCHEMA, ["Rome"])


def test_schema_that_is_invalid_or_elsewhere_checks_nothing() -> None:
    assert fits_schema({"type": 12}, {})
    assert fits_schema({"$ref": "http://127.0.0.1:1/schema"}, {})
    assert fits_schema({"$ref": "file:///etc/passwd"}, {})
    assert fits_schema({"type": "string", "pattern": "(?=a)a"}, "b")  # look-ahead is not of linear time


def test_pattern_that_backtracks_is_quick() -> None:
    assert not fits_schema({"type": "string", "pattern": "^(a+)+$"}, "a" * 50_000 + "b")
