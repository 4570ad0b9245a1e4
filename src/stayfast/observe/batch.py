"""Facts, handed on some dozens at a time.

Problem: told one by one, each fact walks through code that the processor has forgotten since the last one; with sixty-four
connections that doubles what telling costs. Rule: facts wait until there are MOST of them, or for WAIT_S. Whoever reads
what has been counted calls `flush` before. Listeners see every fact once, in the order they were told.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stayfast.core.events import Fact

MOST = 64  # some twenty requests: about the time that one request takes
WAIT_S = 0.1  # at a hundred requests a second, some thirty facts


class Listener(Protocol):
    """Who is told. `take` must be cheap, must not raise and must not await."""

    def take(self, facts: Sequence[Fact]) -> None:
        """Some facts, oldest first; never none."""


class Batch:
    """A sink in front of listeners. One loop's."""

    __slots__ = ("_facts", "_is_armed", "_listeners")

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._facts: list[Fact] = []
        self._is_armed = False

    def emit(self, fact: Fact) -> None:
        facts = self._facts
        facts.append(fact)
        if len(facts) >= MOST:
            self.flush()
        elif not self._is_armed:
            self._arm()

    def flush(self) -> None:
        facts, self._facts = self._facts, []
        if facts:
            for listener in self._listeners:
                listener.take(facts)

    def _arm(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # before the loop's start, or after its end: there is no later
            self.flush()
            return
        self._is_armed = True
        loop.call_later(WAIT_S, self._ring)

    def _ring(self) -> None:
        self._is_armed = False
        self.flush()

    def __repr__(self) -> str:
        return f"<Batch: {len(self._facts)} facts wait>"
