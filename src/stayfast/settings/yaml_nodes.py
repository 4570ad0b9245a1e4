"""YAML as a tree of nodes with their locations.

Scalars keep their text, so `http: 1.1`, `auth: off` and a model named 4.10 are not converted by YAML 1.1. Duplicate keys and
tags are errors; anchors, aliases and `<<` merges work.

`${VAR}` and `${VAR:-default}` in values are references to environment variables, which keep secrets out of the file. As in a
shell, `:-` also covers an empty variable. `$${` is a literal `${`.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from stayfast.settings.problems import Path, Problem, SettingsError, SourceLocation

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = frozenset(f"tag:yaml.org,2002:{word}" for word in (
    "str", "int", "float", "bool", "null", "timestamp", "value", "merge", "map", "seq"))
_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """A scalar as text. `is_plain`: without quotes."""

    text: str
    location: SourceLocation
    is_plain: bool = True

    @property
    def is_null(self) -> bool:
        return self.is_plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class YamlList:
    items: tuple["Node", ...]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class YamlEntry:
    location: SourceLocation  # of the key
    value: "Node"


@dataclass(slots=True)
class YamlMapping:
    """A mapping. Mutable only while settings are loaded."""

    location: SourceLocation
    entries: dict[str, YamlEntry] = field(default_factory=dict)

    def set_scalar(self, path: tuple[str, ...], text: str, source: str) -> None:
        """Set the scalar at `path`; missing mappings are created."""
        place = SourceLocation(source)
        if len(path) == 1:
            self.entries[path[0]] = YamlEntry(place, YamlScalar(text, place))
            return
        entry = self.entries.get(path[0])
        if entry is None or (isinstance(entry.value, YamlScalar) and entry.value.is_null):
            entry = self.entries[path[0]] = YamlEntry(place, YamlMapping(place))
        if isinstance(entry.value, YamlMapping):  # otherwise the decoder reports the wrong type
            entry.value.set_scalar(path[1:], text, source)


Node = YamlScalar | YamlList | YamlMapping


@dataclass(frozen=True, slots=True)
class Override:
    """A setting from outside the file. `source`: the variable or the flag."""

    path: tuple[str, ...]
    text: str
    source: str


def location_of(root: Node, path: Path) -> SourceLocation:
    """The location of the setting at `path`, or of its nearest parent in the file."""
    place, node = root.location, root
    for step in path:
        if isinstance(node, YamlMapping) and step in node.entries:
            node = node.entries[str(step)].value
        elif isinstance(node, YamlList) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
        else:
            break
        place = node.location
    return place


def node_at(node: Node | None, *names: str) -> Node | None:
    """The node at a path of keys; None if there is none."""
    for name in names:
        entry = node.entries.get(name) if isinstance(node, YamlMapping) else None
        if entry is None:
            return None
        node = entry.value
    return node


def entries_at(tree: YamlMapping, name: str) -> dict[str, Node]:
    """The values of the mapping at a key; empty if there is none."""
    value = node_at(tree, name)
    return {key: entry.value for key, entry in value.entries.items()} if isinstance(value, YamlMapping) else {}


def parse(text: str, source: str) -> tuple[YamlMapping, list[Problem]]:
    """The tree of a YAML text, and its problems. Raises SettingsError if the text is not a YAML mapping."""
    try:
        loader = _Loader(text)
        try:
            top = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = SourceLocation(source, mark.line + 1, mark.column + 1) if mark is not None else SourceLocation(source)
        is_reference = place.line is not None and "${" in "".join(text.splitlines()[place.line - 1:place.line])
        hint = '; inside { } write "${...}" with quotes' if is_reference else ""
        raise SettingsError([Problem(place, (), f"not YAML: {error.problem}{hint}")]) from None
    except yaml.YAMLError as error:  # for example a character that YAML does not allow
        raise SettingsError([Problem(SourceLocation(source), (), f"not YAML: {error}".splitlines()[0])]) from None
    reader = _Reader(source)
    root = reader.node(top, ()) if top is not None else YamlMapping(SourceLocation(source, 1, 1))
    if isinstance(root, YamlScalar) and root.is_null:
        root = YamlMapping(root.location)
    if not isinstance(root, YamlMapping):
        problem = Problem(root.location, (), "must be a mapping (server, upstreams, routes, ...)")
        raise SettingsError([*reader.problems, problem])
    return root, reader.problems


class _Reader:
    """Converts PyYAML's nodes. An alias yields the node of its anchor, so aliases cannot multiply the size."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen: dict[int, Node | None] = {}
        self.problems: list[Problem] = []

    def _location(self, node: yaml.Node) -> SourceLocation:
        return SourceLocation(self._source, node.start_mark.line + 1, node.start_mark.column + 1)

    def _add_problem(self, node: yaml.Node, path: Path, message: str) -> None:
        self.problems.append(Problem(self._location(node), path, message))

    def node(self, node: yaml.Node, path: Path) -> Node:
        if id(node) in self._seen:
            known = self._seen[id(node)]
            if known is not None:
                return known
            self._add_problem(node, path, "an anchor must not contain itself")
            return YamlScalar("", self._location(node))
        self._seen[id(node)] = None
        made = self._seen[id(node)] = self._convert(node, path)
        return made

    def _convert(self, node: yaml.Node, path: Path) -> Node:
        if node.tag not in _TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._add_problem(node, path, f"YAML tags such as {tag} are not supported")
        if isinstance(node, yaml.SequenceNode):
            return YamlList(tuple(self.node(item, (*path, n)) for n, item in enumerate(node.value)), self._location(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return YamlScalar(node.value, self._location(node), not getattr(node, "style", None))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> YamlMapping:
        made = YamlMapping(self._location(node))
        merged: dict[str, YamlEntry] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._add_problem(key, path, "a key must be a scalar")
            elif key.tag == "tag:yaml.org,2002:merge":
                for mapping in self._read_merge_source(value, path):
                    merged = {**mapping.entries, **merged}
            elif key.value in made.entries:
                first = made.entries[key.value].location
                self._add_problem(key, (*path, key.value), f"duplicate key, first in line {first.line}")
            else:
                made.entries[key.value] = YamlEntry(self._location(key), self.node(value, (*path, key.value)))
        made.entries = {**merged, **made.entries}
        return made

    def _read_merge_source(self, value: yaml.Node, path: Path) -> Iterator[YamlMapping]:
        source = self.node(value, (*path, "<<"))
        for mapping in source.items if isinstance(source, YamlList) else (source,):
            if isinstance(mapping, YamlMapping):
                yield mapping
            else:
                self._add_problem(value, path, "<< takes mappings only")


_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expand_references(text: str, environment: AnyMapping[str, str]) -> str:
    """Replace the references in `text`. Raises ValueError, which names the unset variable but never a value."""
    return _REFERENCE.sub(lambda found: _resolve_reference(found, environment), text) if "${" in text else text


def has_reference(text: str) -> bool:
    """Whether the text has a reference; then its expansion must not be shown."""
    return any(found.group(1) is not None for found in _REFERENCE.finditer(text))


def referenced_names(text: str) -> list[str]:
    """The environment variables that the text refers to."""
    return [found.group(1).partition(":-")[0] for found in _REFERENCE.finditer(text) if found.group(1) is not None]


def _resolve_reference(found: re.Match[str], environment: AnyMapping[str, str]) -> str:
    if found.group() == "$${":
        return "${"
    if found.group(1) is None:
        raise ValueError("${ without }")
    name, has_default, default = found.group(1).partition(":-")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{found.group()} is not a reference: write ${{NAME}} or ${{NAME:-default}}")
    value = environment.get(name, "")
    if not value and not has_default:
        raise ValueError(f"the environment variable {name} is {'empty' if name in environment else 'not set'}")
    return value or default
