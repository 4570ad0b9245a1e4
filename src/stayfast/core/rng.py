"""Randomness as an argument: what draws holds an `Rng` or is handed one, so that a run repeats by its seed."""

from typing import Protocol


class Rng(Protocol):
    """What is drawn from. `random.Random` is one."""

    def random(self) -> float:
        """From 0 to 1, without 1."""
        ...

    def uniform(self, a: float, b: float) -> float:
        """From `a` to `b`."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """A whole number of `k` bits."""
        ...
