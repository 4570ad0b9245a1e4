"""Snapshots for tests: random ones, and a large one."""

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from stayfast.core.snapshot import WINDOWS_S, Snapshot, Spread, TrafficRow, UpstreamRow

NAMES = st.sampled_from(["", "chat", "a", "b"])
NUMBERS = st.one_of(st.just(0.0), st.floats(0.0, 1e6), st.floats(0.0, 1.0))
SETTINGS: dict[str, Any] = {"routes": {"chat": {"hedge": {"mode": "off"}, "timeouts": {}}, "a": None}, "upstreams": []}


def _of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.one_of(*(_of(part) for part in parts))
    if origin is tuple:
        return st.lists(_of(parts[0]), max_size=2).map(tuple) if parts[-1] is Ellipsis else st.tuples(*map(_of, parts))
    if origin is dict:
        return st.just({}) if parts[1] is Any else st.dictionaries(NAMES, _of(parts[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return struct_of(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: NAMES, bool: st.booleans(), int: st.one_of(st.integers(0, 2), st.integers(0, 10**6)), float: NUMBERS,
        type(None): st.none()}
    return simple[hint]


def struct_of(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Random structs, every field by its type."""
    special: dict[str, st.SearchStrategy[Any]] = {"window_s": st.sampled_from(WINDOWS_S), "settings": st.sampled_from(
        [{}, SETTINGS, {"routes": 1}])}
    hints = get_type_hints(cls)
    return st.builds(cls, **{name: special[name] if name in special else _of(hint) for name, hint in hints.items()})


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Any snapshot, however contradictory."""
    return struct_of(Snapshot)


def large_snapshot(n: int = 1000, scale: float = 1.0) -> Snapshot:
    """20 routes, each on 10 upstreams, with long tails in every window."""
    slow = Spread(n, 0.4 * scale, 2.0 * scale, 8.0 * scale, 20.0 * scale)
    names = [f"provider-{number}" for number in range(10)]
    rows = [TrafficRow(f"route-{number}", upstream, window_s, n, n, ttft_s=slow, e2e_s=slow, usable_s=slow)
            for number in range(20) for upstream in ("", *names) for window_s in WINDOWS_S]
    return Snapshot(1e9, traffic=tuple(rows), upstreams=tuple(UpstreamRow(name, n_attempts=n) for name in names),
                    settings={"routes": {f"route-{number}": {"hedge": {"mode": "off"}} for number in range(20)}})
