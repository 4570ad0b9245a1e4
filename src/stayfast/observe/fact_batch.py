"""Collects facts and passes them to the consumers in batches.

One by one, each fact runs code that has left the processor's caches since the last one, which doubles the cost with 64
connections. So facts wait until there are MAX_FACTS of them, or for MAX_DELAY_S. A reader of counts calls `flush` first.
Consumers get every fact once, in order.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stayfast.core.events import Fact

MAX_FACTS = 64  # the facts of about twenty requests
MAX_DELAY_S = 0.1


class FactConsumer(Protocol):
    """A consumer of facts. `consume` must be fast and must not raise."""

    def consume(self, facts: Sequence[Fact]) -> None:
        """Consume at least one fact, oldest first."""


class FactBatch:
    """A sink that batches facts for its listeners. For one event loop."""

    __slots__ = ("_facts", "_is_armed", "_listeners")

    def __init__(self, *listeners: FactConsumer) -> None:
        self._listeners = listeners
        self._facts: list[Fact] = []
        self._is_armed = False

    def add_listener(self, listener: FactConsumer) -> None:
        """One more, for the facts from now on."""
        self.flush()
        self._listeners = (*self._listeners, listener)

    def emit(self, fact: Fact) -> None:
        facts = self._facts
        facts.append(fact)
        if len(facts) >= MAX_FACTS:
            self.flush()
        elif not self._is_armed:
            self._arm()

    def flush(self) -> None:
        facts, self._facts = self._facts, []
        if facts:
            for listener in self._listeners:
                listener.consume(facts)

    def _arm(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # before the loop starts or after it ends
            self.flush()
            return
        self._is_armed = True
        loop.call_later(MAX_DELAY_S, self._ring)

    def _ring(self) -> None:
        self._is_armed = False
        self.flush()

    def __repr__(self) -> str:
        return f"<FactBatch: {len(self._facts)} facts wait>"
