"""An epoch that was left behind stays behind, in stores that outlive it.

Problem: an epoch is a word in the key of each answer, so another word finds nothing. But the answers stand in the store as
long as they may be of use, and the first word, set again a day later, finds them: what somebody had meant to forget.
Rule: a store remembers the last epoch of each route. Who comes with another one, at his start or by a reload, first makes it
forget all answers of the route, and then remember. So it is done at each change, to and fro, and what somebody who was late
has kept in between goes with the next. A store that is gone is asked again until it is there.
When wrong: what is on its way to an upstream under the old word is kept under it. A Redis that has heard of no start and no
reload for thirty days remembers no epoch.
"""

import asyncio
from hashlib import sha256

from stayfast.compose.stores import Stores
from stayfast.observe.log import LogSink
from stayfast.policy.backoff import backoff_s
from stayfast.settings import Settings
from stayfast.stores.base import Store, StoreGone
from stayfast.stores.shared import Shared

FIRST_S, LONGEST_S = 1.0, 15.0  # between two tries


async def leave_behind(settings: Settings, stores: Stores, old: Settings | None, log: LogSink, done: set[str]) -> bool:
    """Have each store forget what was kept in another epoch. old: of a reload. done: routes of which that is done already;
    those of this time come to it. False: a store could not be asked.
    """
    is_done = True
    for name, route in settings.routes.items():
        its = route.cache
        if not its.store or name in done:
            continue  # memory of its own ends with its epoch
        try:
            n = await _left(stores[its.store], name, its.epoch, is_other=_has_changed(name, settings, old))
        except StoreGone:
            is_done = False
        else:
            done.add(name)
            if n:
                log.say("cache_epoch", route=name, store=its.store, detail=f"{n} answers of another epoch are forgotten")
    return is_done


async def again(settings: Settings, stores: Stores, old: Settings | None, log: LogSink, tried: asyncio.Event) -> None:
    """Until it is done. tried: is set when it was tried once."""
    n_failed, done = 0, set[str]()
    while not await leave_behind(settings, stores, old, log, done):
        tried.set()
        n_failed += 1
        await asyncio.sleep(backoff_s(n_failed, FIRST_S, LONGEST_S))
    tried.set()


def has_changed(settings: Settings, old: Settings | None) -> bool:
    """Whether this process itself had another epoch of a route."""
    return any(_has_changed(name, settings, old) for name in settings.routes)


def _has_changed(name: str, settings: Settings, old: Settings | None) -> bool:
    was, its = old.routes.get(name) if old is not None else None, settings.routes[name].cache
    return was is not None and bool(its.store) and was.cache.store == its.store and was.cache.epoch != its.epoch


async def _left(store: Store, route: str, epoch: str, *, is_other: bool) -> int:
    """How many answers it has forgotten. is_other: this process itself had another one. Raises StoreGone."""
    if not isinstance(store, Shared):
        return await store.purge(route=route) if is_other else 0
    name = f"epoch{sha256(route.encode()).hexdigest()[:16]}"
    last = await store.noted(name)
    n = await store.purge(route=route) if is_other or last not in (None, epoch) else 0
    await store.note(name, epoch)  # each time, so that it does not run out
    return n
