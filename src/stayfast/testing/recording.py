"""A sink that remembers, for asserting on facts instead of on logs."""

from typing import TypeVar

from stayfast.core.events import Fact

T = TypeVar("T")


class RecordingSink:
    """Keeps every fact in order."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
        self.facts.append(fact)

    def of(self, kind: type[T]) -> list[T]:
        """The facts of one kind, in order."""
        return [fact for fact in self.facts if isinstance(fact, kind)]
