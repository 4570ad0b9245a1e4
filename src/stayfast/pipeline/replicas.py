"""One call for all processes that share a store of answers, as `pipeline.flight` makes one for all requests of this one.

Rule: a whole answer's call is made by whoever the store lets lead; the others wait for what it keeps, for the store's own
`wait_s` at most, and never for more than half of the time that they have: then there is time for a call of their own. A
stream waits for nobody: its own call's first token comes before another one's last.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from stayfast.core.clock import Clock
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Started
from stayfast.stores.base import Kept, Store

Read = Callable[[Kept], Started | None]  # an answer that another process has made; None where it will not do
Begin = Callable[[Exchange, Plan], Coroutine[Any, Any, Started]]


class Replicas:
    """Begins the call of one request, where nobody else makes it. Used once."""

    __slots__ = ("_begin", "_clock", "_fresh_s", "_key", "_read", "_store")

    def __init__(self, store: Store, key: bytes, begin: Begin, read: Read, *, fresh_s: float, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._begin = begin
        self._read = read
        self._fresh_s = fresh_s  # how old an answer may be
        self._clock = clock

    async def begin(self, ex: Exchange, plan: Plan) -> Started:
        """The first content of a call, or another process's answer. Raises what the call failed with."""
        store, ends_at = self._store, ex.ledger.ends_at
        if await store.lead(self._key, ends_at):
            try:
                started = await self._begin(ex, plan)
            except BaseException:
                store.led(self._key)
                raise
            if ex.degraded is not None:  # it is not to be kept
                store.led(self._key)
            return started
        now = self._clock.now()
        kept = await store.follow(self._key, now + (ends_at - now) / 2, self._clock.wall() - self._fresh_s)
        made = self._read(kept) if kept is not None else None
        if made is None:
            return await self._begin(ex, plan)
        ex.upstream = made.source.name
        return made
