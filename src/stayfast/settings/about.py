"""The words and bounds of one setting: read by the checker, the schema and the documentation alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """What a setting means and what it may be. Bounds are inclusive, but for `more_than`.

    `pattern` must match the whole text, and `form` says it in words.
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
        """What the value should have been, or None when the bounds hold."""
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
