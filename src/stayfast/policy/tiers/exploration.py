"""What it may cost to find out whether a smaller tier is enough.

Problem: a comparison costs an answer that no client gets. Rule: a bucket of tokens that is refilled evenly over an hour. A
comparison starts while the bucket has tokens and fewer than `max_running` run; what its answer used is taken afterwards, so
the bucket may fall below zero, and the next comparison waits for it. Calls have the lowest priority, so that a busy gateway
rejects them first.
Source: a token bucket that may go into debt, as the size of an answer is known at its end only.
When wrong: an upstream that reports no usage spends ASSUMED_TOKENS.
"""

from typing import Final

ASSUMED_TOKENS: Final = 1000
_HOUR_S: Final = 3600.0


class ExplorationBudget:
    """The comparisons of one route. Instants never go back."""

    __slots__ = ("_at", "_level", "max_running", "n_running", "tokens_per_hour")

    def __init__(self, tokens_per_hour: int, max_running: int) -> None:
        self.tokens_per_hour = tokens_per_hour
        self.max_running = max_running
        self.n_running = 0
        self._level = float(tokens_per_hour)
        self._at: float | None = None

    def may_start(self, now: float) -> bool:
        """Whether a comparison may start. If it does, call `start`."""
        if self._at is not None:
            self._level = min(self.tokens_per_hour, self._level + (now - self._at) * self.tokens_per_hour / _HOUR_S)
        self._at = now
        return self._level >= 1 and self.n_running < self.max_running

    def start(self) -> None:
        self.n_running += 1

    def end(self, n_tokens: int | None) -> None:
        """A comparison is over. n_tokens: of its answer; None: the upstream reported none."""
        self.n_running -= 1
        self._level -= ASSUMED_TOKENS if n_tokens is None else n_tokens

    def __repr__(self) -> str:
        return f"<ExplorationBudget {self._level:.0f} tokens, {self.n_running} running>"
