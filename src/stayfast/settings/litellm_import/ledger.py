"""What becomes of each value of a source file: every value ends in exactly one of three lists.

The values of the source are entered before anything is read. A reader marks what it uses; a mark of a section covers all
values below it that have no stronger mark. What has no mark at the end was not read, and is listed as not taken. So no
reader can drop a value silently.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePath

from stayfast.settings.problems import Path, SourceLocation, format_path
from stayfast.settings.yaml_nodes import Node, YamlList, YamlMapping, YamlScalar

MAX_VALUES = 100_000  # aliases of aliases multiply
UNKNOWN = "not a setting that the import knows"


class ImportVerdict(IntEnum):
    """The three lists, the weakest first."""

    TAKEN = 0
    DIFFERENT = 1
    NOT_TAKEN = 2


@dataclass(frozen=True, slots=True)
class SourceValue:
    """One value of the source. `path` begins with the number of its file."""

    path: Path
    location: SourceLocation

    @property
    def name(self) -> str:
        """Its path within its file, such as router_settings.num_retries."""
        return format_path(self.path[1:])


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of a value, or of a section. `becomes`: the settings, in words. `why`: empty if there is none."""

    verdict: ImportVerdict
    becomes: str
    why: str


@dataclass(frozen=True, slots=True)
class MarkedValues:
    """The values below `root` that share a mark."""

    root: SourceValue
    mark: Mark
    values: tuple[SourceValue, ...]


class TooManyValues(ValueError):
    """A source with more than MAX_VALUES values."""


class ValueLedger:
    """The values of all source files and their marks."""

    def __init__(self) -> None:
        self._values: dict[Path, SourceValue] = {}
        self._marks: dict[Path, tuple[SourceValue, Mark]] = {}
        self._below: dict[Path, list[Path]] = {}  # the values at and below each path

    def enter(self, path: Path, node: Node, location: SourceLocation) -> None:
        """Enter every value at and below a node. Raises TooManyValues."""
        left = [(path, node, location)]
        while left:
            where, what, place = left.pop()
            below = list(_children(where, what))
            if below:
                left += below
                continue
            if len(self._values) >= MAX_VALUES:
                raise TooManyValues(f"more than {MAX_VALUES} values")
            self._values[where] = SourceValue(where, place)
            for n in range(len(where) + 1):
                self._below.setdefault(where[:n], []).append(where)

    def mark(self, root: SourceValue, mark: Mark) -> None:
        """Mark all values at and below a path. Of two marks the stronger applies, of equal ones the later."""
        for path in self._below.get(root.path, ()):
            known = self._marks.get(path)
            if known is None or known[1].verdict <= mark.verdict:
                self._marks[path] = root, mark

    def add(self, value: SourceValue, mark: Mark) -> None:
        """Enter and mark something that is no value, such as a duplicate key."""
        self._values[value.path] = value
        self._marks[value.path] = value, mark

    @property
    def values(self) -> Sequence[SourceValue]:
        """All values, in the order of the files."""
        return sorted(self._values.values(), key=lambda value: (value.path[0], value.location.line or 0,
                                                                value.location.column or 0))

    def mark_of(self, value: SourceValue) -> Mark:
        """Its mark; of one that was not read: not taken."""
        known = self._marks.get(value.path)
        return known[1] if known is not None else Mark(ImportVerdict.NOT_TAKEN, "", UNKNOWN)

    def groups(self) -> list[MarkedValues]:
        """The values by their marks, in the order of the files; unread ones by the widest section without a mark."""
        found: dict[tuple[Path, Mark], list[SourceValue]] = {}
        roots: dict[Path, SourceValue] = {}
        used = {path[:n] for path in self._marks for n in range(1, len(path) + 1)}
        for value in self.values:
            known = self._marks.get(value.path)
            root = known[0] if known is not None else _widest(value, used)
            roots.setdefault(root.path, root)
            found.setdefault((root.path, self.mark_of(value)), []).append(value)
        return [MarkedValues(roots[path], mark, tuple(values)) for (path, mark), values in found.items()]


def _children(path: Path, node: Node) -> Iterator[tuple[Path, Node, SourceLocation]]:
    if isinstance(node, YamlMapping):
        for name, entry in node.entries.items():
            yield (*path, name), entry.value, entry.location
    elif isinstance(node, YamlList):
        for n, item in enumerate(node.items):
            yield (*path, n), item, item.location


def _widest(value: SourceValue, used: set[Path]) -> SourceValue:
    """The section around an unread value in which nothing was read."""
    n = next((n for n in range(2, len(value.path)) if value.path[:n] not in used), len(value.path))
    return SourceValue(value.path[:n], value.location)


class SourceNode:
    """A node of a source file with its place in the ledger. Reading it marks nothing."""

    __slots__ = ("_ledger", "location", "node", "path")

    def __init__(self, node: Node, path: Path, location: SourceLocation, ledger: ValueLedger) -> None:
        self.node = node
        self.path = path
        self.location = location
        self._ledger = ledger

    @property
    def name(self) -> str:
        """Its own key; of an item of a list, its position."""
        return str(self.path[-1])

    @property
    def place(self) -> str:
        """File and line, for a comment."""
        return f"{PurePath(self.location.source).name}:{self.location.line}"

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, YamlMapping)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, YamlList)

    @property
    def text(self) -> str | None:
        """The text of a scalar; None: null, a mapping or a list."""
        return self.node.text if isinstance(self.node, YamlScalar) and not self.node.is_null else None

    @property
    def is_plain(self) -> bool:
        return isinstance(self.node, YamlScalar) and self.node.is_plain

    @property
    def is_null(self) -> bool:
        return isinstance(self.node, YamlScalar) and self.node.is_null

    @property
    def is_empty(self) -> bool:
        """Whether it is null, or a mapping or list of nothing."""
        return self.is_null or (not isinstance(self.node, YamlScalar) and not self.entries() and not self.items())

    def get(self, name: str) -> "SourceNode | None":
        """The value of a key; None if this is no mapping or has no such key."""
        return self.entries().get(name)

    def entries(self) -> dict[str, "SourceNode"]:
        """The values of a mapping by key; empty for anything else."""
        if not isinstance(self.node, YamlMapping):
            return {}
        return {str(path[-1]): SourceNode(node, path, place, self._ledger)
                for path, node, place in _children(self.path, self.node)}

    def items(self) -> list["SourceNode"]:
        """The items of a list; empty for anything else."""
        if not isinstance(self.node, YamlList):
            return []
        return [SourceNode(node, path, place, self._ledger) for path, node, place in _children(self.path, self.node)]

    def take(self, becomes: str) -> None:
        """Mark this and all below as taken."""
        self._mark(ImportVerdict.TAKEN, becomes, "")

    def differ(self, becomes: str, why: str) -> None:
        """Mark this and all below as taken differently."""
        self._mark(ImportVerdict.DIFFERENT, becomes, why)

    def refuse(self, why: str) -> None:
        """Mark this and all below as not taken."""
        self._mark(ImportVerdict.NOT_TAKEN, "", why)

    def _mark(self, verdict: ImportVerdict, becomes: str, why: str) -> None:
        self._ledger.mark(SourceValue(self.path, self.location), Mark(verdict, becomes, why))

    def __repr__(self) -> str:
        return f"<SourceNode {format_path(self.path)} at {self.place}>"
