"""Collects facts and passes them to the consumers in batches.

One by one, each fact runs code that has left the processor's caches since the last one, which doubles the cost with 64
connections. So facts wait until there are MAX_FACTS of them, or for MAX_DELAY_S. A reader of counts calls `flush` first.
Facts of different types are handled by different code, so a batch is grouped by type: each consumer gets every fact that it
has a handler for once, and the facts of one type in order.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from stayfast.core.events import Fact

MAX_FACTS = 64  # the facts of about twenty requests
MAX_DELAY_S = 0.1


FactHandlers = Mapping[type[Any], Callable[[list[Any]], None]]


class FactConsumer(Protocol):
    """A consumer of facts."""

    @property
    def handlers(self) -> FactHandlers:
        """By type of fact, what takes a list of at least one of them, oldest first. It must be fast and must not raise."""


def group_facts(facts: Iterable[Fact]) -> Mapping[type[Any], list[Any]]:
    """The facts by type, in order within a type."""
    by_type: defaultdict[type[Any], list[Any]] = defaultdict(list)
    for fact in facts:
        by_type[type(fact)].append(fact)
    return by_type


def handle_facts(consumer: FactConsumer, facts: Iterable[Fact]) -> None:
    """Pass facts to one consumer, at once."""
    handlers = consumer.handlers
    for kind, same in group_facts(facts).items():
        if kind in handlers:
            handlers[kind](same)


def one_by_one(handle: Callable[[Any], None]) -> Callable[[list[Any]], None]:
    """A handler of lists that handles one fact after the other, where nothing is gained by a list."""
    def handle_all(facts: list[Any]) -> None:
        for fact in facts:
            handle(fact)

    return handle_all


class FactBatch:
    """A sink that batches facts for its listeners. For one event loop."""

    __slots__ = ("_facts", "_handlers", "_is_armed")

    def __init__(self, *listeners: FactConsumer) -> None:
        self._handlers: defaultdict[type[Any], list[Callable[[list[Any]], None]]] = defaultdict(list)
        self._facts: list[Fact] = []
        self._is_armed = False
        for listener in listeners:
            self.add_listener(listener)

    def add_listener(self, listener: FactConsumer) -> None:
        """One more, for the facts from now on."""
        self.flush()
        for kind, handle in listener.handlers.items():
            self._handlers[kind].append(handle)

    def emit(self, fact: Fact) -> None:
        facts = self._facts
        facts.append(fact)
        if len(facts) >= MAX_FACTS:
            self.flush()
        elif not self._is_armed:
            self._arm()

    def flush(self) -> None:
        facts, self._facts = self._facts, []
        for kind, same in group_facts(facts).items():
            for handle in self._handlers.get(kind, ()):
                handle(same)

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
