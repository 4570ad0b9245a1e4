"""How quickly `stayfast warm` asks, and what came of it."""

from dataclasses import dataclass, field

N_TOLD = 3  # failures that are told in words


@dataclass(frozen=True, slots=True)
class Pace:
    """How quickly. `fresh_for_s`: None: whatever is kept will do."""

    per_s: float
    n_at_once: int
    fresh_for_s: float | None


@dataclass(slots=True)
class Round:
    """What came of asking all of them once."""

    n_there: int = 0
    n_made: int = 0
    n_kept_out: int = 0  # answered, and not to be kept: `x-cache` says why
    n_failed: int = 0
    n_left_out: int = 0  # the budget was spent
    n_tokens: int = 0
    has_tokens: bool = True  # whether anybody counts them
    told: list[str] = field(default_factory=list)

    def failed(self, why: str) -> None:
        """One more; of reasons the first N_TOLD are told."""
        self.n_failed += 1
        self.tell(why)

    def tell(self, what: str) -> None:
        """Say it, once."""
        if what not in self.told and len(self.told) < N_TOLD:
            self.told.append(what)

    @property
    def is_for_nothing(self) -> bool:
        """Whether all were answered, and of no answer is anything kept."""
        return bool(self.n_kept_out) and not (self.n_there or self.n_made or self.n_failed or self.n_left_out)

    def __str__(self) -> str:
        left = f", {self.n_left_out} left out: the budget is spent" if self.n_left_out else ""
        out = f", {self.n_kept_out} that no cache may keep" if self.n_kept_out else ""
        cost = f" for {self.n_tokens} tokens" if self.has_tokens else ""
        return f"{self.n_there} were there, {self.n_made} made{cost}{out}, {self.n_failed} failed{left}"
