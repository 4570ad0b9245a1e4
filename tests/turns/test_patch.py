"""JSON Patch: what `diff` writes leads from one document to the other, also in another library; wrong patches are told."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.turns.patch import PatchError, apply_patch, diff, is_equal, pointer

KEYS = st.text("ab/~0-é", max_size=3)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False, width=16) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
# what takes True for 1 cannot judge both
OTHERS_JSON = st.recursive(st.none() | st.integers(2, 5) | st.text("ab", max_size=2),
                           lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))
PATHS = st.lists(st.sampled_from(["", "0", "1", "01", "-", "a", "b", "~0", "~", "é", "99999999999999999999"]),
                 max_size=3).map(lambda parts: "".join("/" + part for part in parts))
OPERATIONS = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), "path": PATHS, "from": PATHS},
    optional={"value": OTHERS_JSON})


@given(JSON, JSON)
def test_a_diff_leads_from_one_to_the_other(old: Any, new: Any) -> None:
    """And leaves the old one as it was; of the same there is nothing to say."""
    before = copy.deepcopy(old)
    operations = diff(old, new)
    assert is_equal(apply_patch(old, operations), new)
    assert is_equal(old, before)
    assert (operations == []) is is_equal(old, new)


@given(OTHERS_JSON, OTHERS_JSON)
def test_another_library_comes_to_the_same(old: Any, new: Any) -> None:
    """Our diff applied by it, its diff applied by us."""
    assert jsonpatch.apply_patch(old, diff(old, new)) == new
    assert apply_patch(old, jsonpatch.make_patch(old, new).patch) == new


@given(OTHERS_JSON, st.lists(OPERATIONS, max_size=3))
def test_any_patch_is_applied_or_told(document: Any, operations: list[dict[str, Any]]) -> None:
    """Nothing but PatchError comes out; where both take it, both come to the same."""
    before = copy.deepcopy(document)
    try:
        ours = apply_patch(document, operations)
    except PatchError:
        assert document == before
        return
    try:
        theirs = jsonpatch.apply_patch(document, operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError, IndexError, KeyError):
        return
    assert ours == theirs


@pytest.mark.parametrize(("document", "operation", "expected"), [
    ({"a": [1, 2]}, {"op": "add", "path": "/a/1", "value": 9}, {"a": [1, 9, 2]}),
    ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
    ({"a": 1}, {"op": "replace", "path": "", "value": None}, None),
    ({"a/b": {"~": 1}}, {"op": "remove", "path": "/a~1b/~0"}, {"a/b": {}}),
    ({"a": 1, "b": {}}, {"op": "move", "from": "/a", "path": "/b/c"}, {"b": {"c": 1}}),
    ({"a": [1]}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": [1], "b": [1]}),
    ({"a": 1}, {"op": "test", "path": "/a", "value": 1.0}, {"a": 1}),
])
def test_each_operation(document: Any, operation: dict[str, Any], expected: Any) -> None:
    """As the RFC has it."""
    assert apply_patch(document, [operation]) == expected


@pytest.mark.parametrize(("operation", "why"), [
    ({"op": "add", "path": "/a/3", "value": 1}, "there is no element 3"),
    ({"op": "add", "path": "/a/01", "value": 1}, "'01' is no index"),
    ({"op": "remove", "path": "/a/-"}, "'-' is no index"),
    ({"op": "replace", "path": "/b", "value": 1}, "there is nothing at 'b'"),
    ({"op": "add", "path": "/n/b", "value": 1}, "neither an object nor a list"),
    ({"op": "add", "path": "a", "value": 1}, "begin with a slash"),
    ({"op": "add", "path": "/~~01", "value": 1}, "neither ~0 nor ~1"),
    ({"op": "add", "path": "/~2", "value": 1}, "neither ~0 nor ~1"),
    ({"op": "add", "path": "/b"}, "it needs a value"),
    ({"op": "remove", "path": ""}, "the whole document"),
    ({"op": "move", "from": "/a", "path": "/a/0"}, "into itself"),
    ({"op": "test", "path": "/n", "value": True}, "is another one"),
    ({"op": "grow", "path": "/n"}, "op must be"),
    (["add"], "it is no object"),
])
def test_a_wrong_patch_is_told(operation: Any, why: str) -> None:
    """By its number and what is wrong with it."""
    with pytest.raises(PatchError, match=why):
        apply_patch({"a": [0], "n": 1}, [operation])


class Untouchable(list[int]):
    """Nobody may look into it."""

    def __len__(self) -> int:
        raise AssertionError("it was compared")


def test_what_is_the_very_same_is_not_compared() -> None:
    """A number that is put beside 20,000 documents does not cost a walk through them."""
    docs = Untouchable()
    assert diff({"docs": docs, "n": 1}, {"docs": docs, "n": 2}) == [{"op": "replace", "path": "/n", "value": 2}]
    assert diff([docs, 1], [docs, 2]) == [{"op": "replace", "path": "/1", "value": 2}]


def test_an_appended_element_is_one_operation() -> None:
    """Whatever stands before it, and after one that was put in."""
    long = list(range(1000))
    assert diff(long, [*long, 7]) == [{"op": "add", "path": "/1000", "value": 7}]
    assert diff(long, [-1, *long]) == [{"op": "add", "path": "/0", "value": -1}]
    assert diff([1, 2, 3], [1, 3]) == [{"op": "remove", "path": "/1"}]
    assert pointer("a/b", 0, "~") == "/a~1b/0/~0"
