"""The newest signals of each engine, for all policies of one worker: routing, advice, scaling.

A reading older than STALE_INTERVALS of its reader's interval is unknown, as if the engine had no metrics: its figures of
before must move no request.
"""

from collections.abc import Container
from typing import Final

from stayfast.core.engine_signals import EngineSignals

STALE_INTERVALS: Final = 3.0


class SignalBoard:
    """By upstream. For one event loop; the scraper publishes, policies look up."""

    __slots__ = ("_fresh_s", "_newest", "interval_s")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s  # of all its readers
        self._fresh_s = STALE_INTERVALS * interval_s
        self._newest: dict[str, EngineSignals] = {}

    def publish(self, upstream: str, signals: EngineSignals) -> None:
        """A newer reading; an older one is ignored."""
        before = self._newest.get(upstream)
        if before is None or signals.read_at >= before.read_at:
            self._newest[upstream] = signals

    def signals_of(self, upstream: str, now: float) -> EngineSignals | None:
        """None: unknown, or stale."""
        found = self._newest.get(upstream)
        return found if found is not None and now - found.read_at <= self._fresh_s else None

    def keep_only(self, upstreams: Container[str]) -> None:
        """The settings were reloaded: drop the signals of upstreams that left them."""
        self._newest = {name: signals for name, signals in self._newest.items() if name in upstreams}

    def __repr__(self) -> str:
        return f"<SignalBoard: {', '.join(self._newest) or 'empty'}>"
