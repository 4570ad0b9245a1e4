"""Any JSON, and JSON with one value replaced by it, for tests of parsers."""

from typing import Any

from hypothesis import strategies as st

NUMBER = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
LEAF = st.none() | st.booleans() | NUMBER | st.text(max_size=8)
JSON = st.recursive(LEAF,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                    max_leaves=8)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside `value`."""
    found = [here]
    if isinstance(value, dict):
        found += [path for key, inner in value.items() for path in paths(inner, (*here, key))]
    if isinstance(value, list):
        found += [path for at, inner in enumerate(value) for path in paths(inner, (*here, at))]
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """`value` with `new` at `path`."""
    if not path:
        return new
    if isinstance(value, dict):
        return value | {path[0]: replaced(value[path[0]], path[1:], new)}
    return [replaced(inner, path[1:], new) if at == path[0] else inner for at, inner in enumerate(value)]
