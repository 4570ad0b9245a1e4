"""The declaration of one setting, beside its field: `name: Annotated[type, SettingDoc(...)] = default` in a frozen
dataclass.

Problem: bounds that stand in a dataclass's checks, and once more in the tables that a schema and a page of documentation are
made of, drift apart. Rule: they stand at the field alone. `check_bounds` holds a record to them wherever it is made;
`stayfast.settings` reads them for files, the schema and the page. A field without an `SettingDoc` cannot be set from a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from re import fullmatch
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """What a setting means and what it may be. Bounds are inclusive, but for `more_than`. `pattern` must match the whole
    text, and `form` says it in words.
    """

    doc: str
    minimum: float | None = None
    maximum: float | None = None
    more_than: float | None = None
    pattern: str | None = None
    form: str | None = None
    words: tuple[str, ...] = ()  # the only texts allowed, where the type does not say so
    or_number: bool = False  # a bare number is such a text, too
    is_secret: bool = False  # a wrong value is never quoted
    is_inline: bool = False  # a record whose settings stand among its parent's

    def complaint(self, value: object) -> str | None:
        """What the value should have been, or None where the bounds and the pattern hold."""
        if isinstance(value, str):
            return f"must be {self.form}" if self.pattern is not None and not fullmatch(self.pattern, value) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        is_inside = ((self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)
                     and (self.more_than is None or value > self.more_than))
        return None if is_inside else f"must be {self.bounds()}"

    def bounds(self) -> str:
        """The bounds in words; empty without any."""
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:.15g} to {self.maximum:.15g}"
        low = f"more than {self.more_than:g}" if self.more_than is not None else ""
        if self.minimum is not None:
            low = f"at least {self.minimum:.15g}"
        high = f"at most {self.maximum:.15g}" if self.maximum is not None else ""
        return " and ".join(part for part in (low, high) if part)


class Secret:
    """Text that only `reveal()` gives out: stars wherever it is formatted or logged. Immutable, compared by value."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself; call it where the text goes on the wire and nowhere else."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Secret is not pickled: it would leave the process in the clear")


@cache
def declarations(cls: Any) -> Mapping[str, tuple[Any, SettingDoc]]:
    """The type and the `SettingDoc` of each field of a dataclass that has one, in the order of the fields."""
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for field in fields(cls):
        hint = hints[field.name]
        about = next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, SettingDoc)), None)
        if about is not None:
            found[field.name] = (get_args(hint)[0], about)
    return found


def check_bounds(record: Any) -> None:
    """Hold a record to its declarations, for `__post_init__`. Raises ValueError that begins with the name of the setting. Of
    a mapping each value is checked; null is within all bounds.
    """
    cls: Any = type(record)
    for name, (hint, about) in declarations(cls).items():
        value = getattr(record, name)
        values = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
        for where, item in values.items():
            complaint = None if item is None and NoneType in get_args(hint) else _complaint(hint, about, item)
            if complaint is not None:
                raise ValueError(f"{where} {complaint}" + ("" if about.is_secret else f", not {item!r}"))


def _complaint(hint: Any, about: SettingDoc, item: object) -> str | None:
    """What a value should have been, its kind included: one of the words, a number where there are bounds, either."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = (*about.words, "") if about.words else _literals(options)  # an empty text: none of them was chosen
    if item in words:
        return None
    number = next((kind for kind in options if kind in (int, float)), None)
    has_bounds = (about.minimum, about.maximum, about.more_than) != (None, None, None)
    if number is None or not has_bounds:
        return f"must be one of {', '.join(filter(None, words))}" if words else about.complaint(item)
    is_number = isinstance(item, int | number) and not isinstance(item, bool)
    complaint = about.complaint(item) if is_number else f"must be {number_words(number, about)}"
    return complaint and f"must be {' or '.join((*words, number_words(number, about)))}" if words else complaint


def number_words(kind: type, about: SettingDoc) -> str:
    """A number in words, with its bounds."""
    return f"a {'whole ' if kind is int else ''}number {about.bounds()}".rstrip()


def _literals(options: Sequence[Any]) -> tuple[str, ...]:
    """The words of a Literal among these."""
    return next((get_args(one) for one in options if get_origin(one) is Literal), ())
