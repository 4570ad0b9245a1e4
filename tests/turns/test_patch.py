"""JSON Patch: `diff` and `apply_patch` against each other, and against the library jsonpatch."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.turns.patch import apply_patch, diff, is_equal, pointer

KEYS = st.text("ab/~0-é", max_size=3)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False, width=16) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
# jsonpatch compares as Python does, where True == 1
LIBRARY_JSON = st.recursive(st.none() | st.integers(2, 5) | st.text("ab", max_size=2),
                           lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))

@given(JSON, JSON)
def test_diff_applied_gives_the_new_document(old: Any, new: Any) -> None:
    """The old document is not changed; equal documents have an empty diff."""
    before = copy.deepcopy(old)
    operations = diff(old, new)
    assert is_equal(apply_patch(old, operations), new)
    assert is_equal(old, before)
    assert (operations == []) is is_equal(old, new)


@given(LIBRARY_JSON, LIBRARY_JSON)
def test_diff_applied_by_the_library_gives_the_new_document(old: Any, new: Any) -> None:
    """The library jsonpatch, an independent implementation, accepts the operations."""
    assert jsonpatch.apply_patch(old, diff(old, new)) == new


@pytest.mark.parametrize(("document", "operation", "expected"), [
    ({"a": [1, 2]}, {"op": "add", "path": "/a/1", "value": 9}, {"a": [1, 9, 2]}),
    ({"a": 1}, {"op": "replace", "path": "", "value": None}, None),
    ({"a/b": {"~": 1}}, {"op": "remove", "path": "/a~1b/~0"}, {"a/b": {}}),
])
def test_apply_patch_each_operation(document: Any, operation: dict[str, Any], expected: Any) -> None:
    assert apply_patch(document, [operation]) == expected


@pytest.mark.parametrize("operation", [{"op": "add", "path": "/a/b", "value": 1}, {"op": "remove", "path": "/a/3"},
                                       {"op": "replace", "path": "/n/b/c", "value": 1}])
def test_apply_patch_operation_that_does_not_fit_raises(operation: dict[str, Any]) -> None:
    with pytest.raises((KeyError, IndexError, ValueError)):
        apply_patch({"a": [0], "n": {}}, [operation])


class Untouchable(list[int]):
    """Fails when compared."""

    def __len__(self) -> int:
        raise AssertionError("it was compared")


def test_diff_identical_objects_are_not_compared() -> None:
    """Setting one field does not walk through the other fields."""
    docs = Untouchable()
    assert diff({"docs": docs, "n": 1}, {"docs": docs, "n": 2}) == [{"op": "replace", "path": "/n", "value": 2}]
    assert diff([docs, 1], [docs, 2]) == [{"op": "replace", "path": "/1", "value": 2}]


def test_diff_appended_or_removed_element_is_one_operation() -> None:
    long = list(range(1000))
    assert diff(long, [*long, 7]) == [{"op": "add", "path": "/1000", "value": 7}]
    assert diff(long, [-1, *long]) == [{"op": "add", "path": "/0", "value": -1}]
    assert diff([1, 2, 3], [1, 3]) == [{"op": "remove", "path": "/1"}]
    assert pointer("a/b", 0, "~") == "/a~1b/0/~0"
