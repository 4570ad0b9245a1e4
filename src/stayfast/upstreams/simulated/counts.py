"""What a simulated provider was asked, and what was thrown away."""

import msgspec


class Counts(msgspec.Struct):
    """Since the start or the last reset. Instants are the clock's seconds; costs US dollars by the provider's prices.

    outcomes: completed, cancelled (the caller left), status_429 and the like, or the kind of fault that ended it.
    """

    n_asked: int = 0
    n_running: int = 0  # those that run on for nobody included
    n_running_peak: int = 0
    outcomes: dict[str, int] = {}
    n_tokens_prompted: int = 0  # of requests that were admitted
    n_tokens_cached: int = 0  # of those, read from the cache of prompts
    n_tokens_written: int = 0  # and written to it
    n_tokens_generated: int = 0
    n_tokens_unread: int = 0  # of those, generated for answers whose callers left before the end
    n_tokens_after_hangup: int = 0  # of those, generated after the caller had gone
    cost_usd: float = 0.0
    cost_unread_usd: float = 0.0
    n_cold_starts: int = 0
    first_at: float | None = None
    last_at: float | None = None

    @property
    def n_cancelled(self) -> int:
        """Requests whose callers left before the end."""
        return self.outcomes.get("cancelled", 0)

    @property
    def n_completed(self) -> int:
        """Requests answered as they should be."""
        return self.outcomes.get("completed", 0)
