"""A value that must not be seen: it prints as stars wherever it is formatted, logged or shown in an error."""


class Secret:
    """Text that only `reveal()` gives out. Immutable, compared by value."""

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
