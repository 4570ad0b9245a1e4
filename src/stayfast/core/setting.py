"""The declaration of one setting at its field: `name: Annotated[type, SettingDoc(...)] = default` in a frozen dataclass.

Problem: bounds that are repeated in checks, schema and documentation drift apart. Rule: they are declared once, at the
field. `check_bounds` applies them wherever a record is made; `stayfast.settings` reads them for files, the schema and the
page. A field without a `SettingDoc` cannot be set from a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from re import fullmatch
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """Meaning and bounds of a setting. Bounds are inclusive, except `more_than`. `pattern` must match the whole text; `form`
    describes it in words.
    """

    doc: str
    minimum: float | None = None
    maximum: float | None = None
    more_than: float | None = None
    pattern: str | None = None
    form: str | None = None
    words: tuple[str, ...] = ()  # the only allowed texts, if the type is not a Literal
    or_number: bool = False  # a bare number is accepted as such a text
    is_secret: bool = False  # a wrong value is never quoted
    is_inline: bool = False  # a record whose settings are listed among its parent's
    is_short: bool = False  # a short form, rewritten before decoding: never among the effective settings

    def find_violation(self, value: object) -> str | None:
        """What the value must be ("must be ..."), or None if it is within bounds and matches the pattern."""
        if isinstance(value, str):
            return f"must be {self.form}" if self.pattern is not None and not fullmatch(self.pattern, value) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        is_inside = ((self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)
                     and (self.more_than is None or value > self.more_than))
        return None if is_inside else f"must be {self.describe_bounds()}"

    def describe_bounds(self) -> str:
        """The bounds in words; empty if there are none."""
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:.15g} to {self.maximum:.15g}"
        low = f"more than {self.more_than:g}" if self.more_than is not None else ""
        if self.minimum is not None:
            low = f"at least {self.minimum:.15g}"
        high = f"at most {self.maximum:.15g}" if self.maximum is not None else ""
        return " and ".join(part for part in (low, high) if part)


class Secret:
    """A text that only `reveal()` returns; formatting and logging show stars. Immutable, compared by value."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself; call this only where it is sent."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Secret cannot be pickled: it would leave the process in clear text")


@cache
def read_declarations(cls: Any) -> Mapping[str, tuple[Any, SettingDoc]]:
    """The type and the `SettingDoc` of each declared field of a dataclass, in the order of the fields."""
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for field in fields(cls):
        hint = hints[field.name]
        doc = next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, SettingDoc)), None)
        if doc is not None:
            found[field.name] = (get_args(hint)[0], doc)
    return found


def check_bounds(record: Any) -> None:
    """Check a record against its declarations, in `__post_init__`. Raises ValueError that begins with the setting's name.
    Every value of a mapping is checked; None passes if the type allows it.
    """
    cls: Any = type(record)
    for name, (hint, doc) in read_declarations(cls).items():
        value = getattr(record, name)
        values = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
        for path, item in values.items():
            complaint = None if item is None and NoneType in get_args(hint) else _complaint(hint, doc, item)
            if complaint is not None:
                raise ValueError(f"{path} {complaint}" + ("" if doc.is_secret else f", not {item!r}"))


def _complaint(hint: Any, doc: SettingDoc, item: object) -> str | None:
    """What the value must be: one of several words, a number within bounds, or either."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    literals = next((get_args(option) for option in options if get_origin(option) is Literal), ())
    words = (*doc.words, "") if doc.words else literals  # the empty text stands for no choice
    if item in words:
        return None
    number = next((kind for kind in options if kind in (int, float)), None)
    has_bounds = (doc.minimum, doc.maximum, doc.more_than) != (None, None, None)
    if number is None or not has_bounds:
        return f"must be one of {', '.join(filter(None, words))}" if words else doc.find_violation(item)
    is_number = isinstance(item, int | number) and not isinstance(item, bool)
    complaint = doc.find_violation(item) if is_number else f"must be {describe_number(number, doc)}"
    return complaint and f"must be {' or '.join((*words, describe_number(number, doc)))}" if words else complaint


def describe_number(kind: type, doc: SettingDoc) -> str:
    """A number and its bounds in words, for an error message."""
    return f"a {'whole ' if kind is int else ''}number {doc.describe_bounds()}".rstrip()
