"""JSON Patch (RFC 6902): what has changed in a turn's state, as it goes to its readers.

    diff({"a": [1, 2]}, {"a": [1], "b": 3})  ->  [{"op": "remove", "path": "/a/1"}, {"op": "add", "path": "/b", "value": 3}]
    patched(state, operations)               ->  the new state; the old one is as it was

`patched` takes all six operations; `diff` writes add, remove and replace. Of lists what is the same at both ends is left
alone, so that an appended or a removed element is one operation. `true` is not 1, as in JSON and unlike in Python.
When wrong: an element that moved is written again, never as a `move`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

Json = Any
Operation = dict[str, Json]
_WRONG_ESCAPE: Final = re.compile("~(?![01])")


class PatchError(ValueError):
    """A patch that does not fit its document, or is none. It names the operation and the path, no values."""


def apply_patch(document: Json, operations: Sequence[Operation]) -> Json:
    """The document after all of them; what is unchanged is shared with the old one. Raises PatchError; then none is done."""
    for number, operation in enumerate(operations):
        try:
            document = _one(document, operation)
        except PatchError as error:
            raise PatchError(f"operation {number}: {error}") from None
    return document


def diff(old: Json, new: Json) -> list[Operation]:
    """What makes `old` into `new`: `patched(old, diff(old, new))` is the same as `new`."""
    return list(_changes("", old, new))


def is_equal(one: Json, other: Json) -> bool:
    """Whether both are the same JSON value."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def pointer(*parts: str | int) -> str:
    """The JSON Pointer (RFC 6901) to what these keys and indexes lead to."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def _changes(path: str, old: Json, new: Json) -> Iterator[Operation]:
    if old is new:  # most of a state, where one field is put
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key not in new:
                yield {"op": "remove", "path": path + pointer(key)}
        for key, value in new.items():
            if key in old:
                yield from _changes(path + pointer(key), old[key], value)
            else:
                yield {"op": "add", "path": path + pointer(key), "value": value}
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_changes(path, old, new)
    elif not is_equal(old, new):
        yield {"op": "replace", "path": path, "value": new}


def _list_changes(path: str, old: list[Json], new: list[Json]) -> Iterator[Operation]:
    n_both = min(len(old), len(new))
    first = next((at for at in range(n_both) if not is_equal(old[at], new[at])), n_both)
    n_after = next((back for back in range(n_both - first) if not is_equal(old[-1 - back], new[-1 - back])), n_both - first)
    n_old, n_new = len(old) - n_after, len(new) - n_after  # where the ends that are the same begin
    for at in range(first, min(n_old, n_new)):
        yield from _changes(path + pointer(at), old[at], new[at])
    for at in reversed(range(n_new, n_old)):
        yield {"op": "remove", "path": path + pointer(at)}
    for at in range(n_old, n_new):
        yield {"op": "add", "path": path + pointer(at), "value": new[at]}


def _one(document: Json, operation: Operation) -> Json:
    if not isinstance(operation, dict):
        raise PatchError("it is no object")
    what = operation.get("op")
    path = _parts(operation, "path")
    match what:
        case "add":
            return _put(document, path, _value(operation), is_new=True)
        case "replace":
            return _put(document, path, _value(operation), is_new=False)
        case "remove":
            return _without(document, path)
        case "move" | "copy":
            source = _parts(operation, "from")
            value = _found(document, source)
            if what == "copy":
                return _put(document, path, value, is_new=True)
            if path[:len(source)] == source and path != source:
                raise PatchError(f"{operation['from']} cannot be moved into itself")
            return document if path == source else _put(_without(document, source), path, value, is_new=True)
        case "test":
            if not is_equal(_found(document, path), _value(operation)):
                raise PatchError(f"the value at {operation['path'] or 'the top'} is another one")
            return document
        case _:
            raise PatchError("op must be add, remove, replace, move, copy or test")


def _value(operation: Operation) -> Json:
    if "value" not in operation:
        raise PatchError("it needs a value")
    return operation["value"]


def _parts(operation: Operation, name: str) -> list[str]:
    path = operation.get(name)
    if not isinstance(path, str) or (path and path[0] != "/"):
        raise PatchError(f'{name} must be "" or begin with a slash')
    if _WRONG_ESCAPE.search(path):
        raise PatchError(f"{name} has a ~ that is neither ~0 nor ~1")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _at(values: list[Json], part: str, n: int) -> int:
    """An index below `n`."""
    if not (part.isascii() and part.isdigit() and (part == "0" or part[0] != "0")):
        raise PatchError(f"{part!r} is no index of a list")
    if len(part) > 9 or int(part) >= n:
        raise PatchError(f"there is no element {part}")
    return int(part)


def _found(document: Json, path: Sequence[str]) -> Json:
    for part in path:
        document = _child(document, part)
    return document


def _child(parent: Json, part: str) -> Json:
    if isinstance(parent, list):
        return parent[_at(parent, part, len(parent))]
    if not isinstance(parent, dict) or part not in parent:
        raise PatchError(f"there is nothing at {part!r}")
    return parent[part]


def _put(parent: Json, path: Sequence[str], value: Json, *, is_new: bool) -> Json:
    if not path:
        return value
    part = path[0]
    if len(path) > 1:
        return _with(parent, part, _put(_child(parent, part), path[1:], value, is_new=is_new))
    if not is_new:
        _child(parent, part)
        return _with(parent, part, value)
    if isinstance(parent, dict):
        return {**parent, part: value}
    if isinstance(parent, list):
        at = len(parent) if part == "-" else _at(parent, part, len(parent) + 1)
        return [*parent[:at], value, *parent[at:]]
    raise PatchError(f"what is above {part!r} is neither an object nor a list")


def _with(parent: Json, part: str, value: Json) -> Json:
    """A copy of `parent` where one child, which is there, is another."""
    if isinstance(parent, dict):
        return {**parent, part: value}
    at = int(part)
    return [*parent[:at], value, *parent[at + 1:]]


def _without(parent: Json, path: Sequence[str]) -> Json:
    if not path:
        raise PatchError("the whole document cannot be removed")
    part = path[0]
    child = _child(parent, part)
    if len(path) > 1:
        return _with(parent, part, _without(child, path[1:]))
    if isinstance(parent, dict):
        return {key: value for key, value in parent.items() if key != part}
    at = int(part)
    return [*parent[:at], *parent[at + 1:]]
