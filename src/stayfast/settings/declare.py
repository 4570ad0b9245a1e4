"""One declaration a setting: the field of a frozen dataclass, its type, its default and an `About`.

Problem: a checker, a JSON Schema and a page of documentation that are kept by hand tell three stories after a month.
Rule: all three are derived from the dataclasses' own fields. Where a dataclass lives on a lower floor and knows nothing
of settings, `DESCRIBED` holds its fields' `About`s; a field without one cannot be set from a file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from stayfast.settings.about import About
from stayfast.settings.described import DESCRIBED
from stayfast.settings.secret import Secret


@dataclass(frozen=True, slots=True)
class Plain:
    """A scalar: string, secret, integer, number or boolean."""

    kind: Literal["string", "secret", "integer", "number", "boolean"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    enum: type[StrEnum] | None = None


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value or null."""

    inner: "Shape"


@dataclass(frozen=True, slots=True)
class Many:
    """A list."""

    item: "Shape"


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping from names that the user chooses."""

    item: "Shape"


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass: a mapping with known keys."""

    cls: type[Any]


@dataclass(frozen=True, slots=True)
class Variants:
    """One of several dataclasses, told apart by the word in `kind`. open_to: whose subclasses may be added to them."""

    by_kind: tuple[tuple[str, type[Any]], ...]
    open_to: type[Any] | None = None

    def with_kinds(self, kinds: Iterable[type[Any]]) -> "Variants":
        """These and, where they are open to them, the given ones."""
        if self.open_to is None:
            return self
        added = [cls for cls in kinds if issubclass(cls, self.open_to)]
        return Variants(self.by_kind + tuple((word, cls) for cls in added for word in kinds_of(cls)))


Shape = Plain | Choice | Maybe | Many | Table | Record | Variants

_PLAIN: Mapping[Any, Plain] = {
    str: Plain("string"), Secret: Plain("secret"), int: Plain("integer"), float: Plain("number"), bool: Plain("boolean"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that a file may hold. `into` is the parent's field, and its class, when it belongs to an inlined record."""

    name: str
    shape: Shape
    default: Any  # dataclasses.MISSING: must be given
    about: About
    into: tuple[str, type[Any]] | None = None


def shape_of(hint: Any) -> Shape:
    """The shape of a field's type; TypeError for a type that settings cannot hold."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return shape_of(args[0])
    if origin is Literal:
        return Choice(tuple(args))
    if origin is tuple and args[1:] == (...,):
        return Many(shape_of(args[0]))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping) and args[0] is str:
        return Table(shape_of(args[1]))
    if origin in (Union, UnionType):
        return _shape_of_union(args)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Choice(tuple(word.value for word in hint), hint)
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return Record(hint)
    raise TypeError(f"settings cannot hold a {hint!r}")


def _shape_of_union(args: tuple[Any, ...]) -> Shape:
    others = [arg for arg in args if arg is not NoneType]
    if len(others) == 1:
        return Maybe(shape_of(others[0]))
    by_kind = tuple((word, cls) for cls in others for word in kinds_of(cls))
    return Variants(by_kind, next((cls for cls in others if not kinds_of(cls)), None))


def kinds_of(cls: type[Any]) -> tuple[str, ...]:
    """The words of its `kind`; empty where that is any text."""
    return get_args(get_type_hints(cls)["kind"])


@cache
def settings_of(record: Record) -> tuple[Setting, ...]:
    """The settings that a record's mapping may hold, in the order of its fields, inlined ones in their parent's place."""
    cls = record.cls
    described = DESCRIBED.get(cls, {})
    hints, annotated = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    found: list[Setting] = []
    for field in fields(cls):
        notes = [note for note in get_args(annotated[field.name])[1:] if isinstance(note, About)]
        about = notes[0] if notes else described.get(field.name)
        if about is None:
            continue
        shape = Choice(about.words) if about.words else shape_of(hints[field.name])
        if about.is_inline and isinstance(shape, Record):
            found += [Setting(inner.name, inner.shape, inner.default, inner.about, (field.name, shape.cls))
                      for inner in settings_of(shape)]
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append(Setting(field.name, shape, default, about))
    return tuple(found)


def check_bounds(record: Any) -> None:
    """Hold a record to its own declarations; ValueError naming the field. For `__post_init__`."""
    for setting in settings_of(Record(type(record))):
        complaint = setting.about.complaint(getattr(record, setting.name, None)) if setting.into is None else None
        if complaint is not None:
            raise ValueError(f"{setting.name} {complaint}, not {getattr(record, setting.name)}")
