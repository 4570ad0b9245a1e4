"""What the caches of all routes hold and saved, as their operator sees it: told, looked into, and made to forget."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stayfast.observe import families as known
from stayfast.observe.totals import Totals
from stayfast.pipeline.caching import Caching
from stayfast.pipeline.handoffs import Route
from stayfast.server.backend import ToForget
from stayfast.stores.base import Kept, Store, StoreGone, StoreStats

WITHOUT_A_CALL = ("hit", "semantic", "stale", "coalesced")
AUDITS = {"begun": "audit_begun", "right": "audit_right", "wrong": "audit_wrong"}


class Learned(msgspec.Struct, frozen=True):
    """What the semantic cache of a route knows by now, and how much is wanted before it gives anything.

    state: off (nothing to embed with), waiting (for its embedder), shadow (gives nothing yet), live, or fixed (a
    threshold that nobody proves).
    """

    state: str
    n_labels: int = 0
    min_labels: int = 0
    n_phrasings: int = 0


class Told(msgspec.Struct, frozen=True):
    """What one worker tells of a route's cache."""

    store: StoreStats
    semantic: Learned | None = None  # None: it is an exact one


class Forgot(msgspec.Struct, frozen=True):
    """How many answers one store has forgotten; `gone`: it could not be asked."""

    n: int = 0
    is_shared: bool = False
    gone: str = ""


class Caches:
    """Those of one worker. `routes` are those of the running system."""

    __slots__ = ("routes",)

    def __init__(self) -> None:
        self.routes: Mapping[str, Route] = {}

    async def stats(self) -> dict[str, Told]:
        """How the cache of each route is."""
        return {name: Told(await caching.store.stats(), _learned(caching)) for name, caching in self._caches()}

    async def purge(self, what: ToForget) -> list[Forgot]:
        """Forget it, store by store."""
        forgot, seen = [], set[int]()
        for _, store in self._stores():
            if id(store) in seen:
                continue
            seen.add(id(store))
            try:
                n = await _purged(store, what)
            except StoreGone as error:
                forgot.append(Forgot(gone=str(error)))
            else:
                forgot.append(Forgot(n, store.is_shared))
        return forgot

    async def kept(self, key: bytes) -> dict[str, Any] | None:
        """What is known of a kept answer, but for its words."""
        for name, store in self._stores():
            kept = await store.inspect(key)
            if kept is not None:
                return _told(name, kept)
        return None

    def _caches(self) -> list[tuple[str, Caching]]:
        return [(name, route.terms.cache) for name, route in self.routes.items() if route.terms.cache is not None]

    def _stores(self) -> list[tuple[str, Store]]:
        return [(name, caching.store) for name, caching in self._caches()]

    def __repr__(self) -> str:
        return f"<Caches of {len(self._stores())} routes>"


async def _purged(store: Store, what: ToForget) -> int:
    """How many answers it has forgotten. Raises StoreGone."""
    if what.key is None:
        return await store.purge(route=what.route, tenant=what.tenant, tag=what.tag)
    n = int(await store.inspect(what.key) is not None)
    if not await store.remove(what.key):
        raise StoreGone((await store.stats()).why_not or "it did not answer in time")
    return n


def _told(route: str, kept: Kept) -> dict[str, Any]:
    return {"route": kept.route or route, "tenant": kept.tenant, "tags": list(kept.tags), "kept_at": kept.kept_at,
            "drop_at": kept.drop_at if kept.drop_at < 1e12 else None, "bytes": len(kept.body), "usage": kept.usage,
            "finish_reason": kept.finish_reason}


def _learned(caching: Caching) -> Learned | None:
    if caching.config.mode != "semantic":
        return None
    if caching.semantic is None:
        return Learned("off")
    its, config = caching.semantic.stats(), caching.config.semantic
    if not caching.semantic.is_ready or caching.semantic.embedding.ahead is None:
        return Learned("waiting", min_labels=config.min_labels)
    state = "fixed" if config.threshold is not None else "shadow" if its.is_shadow else "live"
    return Learned(state, its.n_labels, config.min_labels, its.n_phrasings)


def summed(of_workers: Iterable[Mapping[str, Told]], totals: Totals) -> bytes:
    """All routes with a cache, of all workers, as JSON."""
    caches: dict[str, list[Told]] = {}
    for told in of_workers:
        for name, its in told.items():
            caches.setdefault(name, []).append(its)
    return msgspec.json.encode({"object": "list", "data": [
        {"route": name, "store": _one([its.store for its in every]), **_counted(name, totals),
         "semantic": _known([its.semantic for its in every if its.semantic is not None], name, totals)}
        for name, every in caches.items()]})


def _known(of_workers: list[Learned], route: str, totals: Totals) -> dict[str, Any] | None:
    """The state that most workers are in. Those that share a store know the same, others learn apart: what is told is of who
    knows most. Audits are of all, since their start.
    """
    if not of_workers:
        return None
    states = [its.state for its in of_workers]
    counted = totals.counters[known.SEMANTIC.name]
    return {"state": max(states, key=states.count), "workers": {state: states.count(state) for state in sorted(set(states))},
            "labels": max(its.n_labels for its in of_workers), "min_labels": max(its.min_labels for its in of_workers),
            "questions": max(its.n_phrasings for its in of_workers),
            "audits": {name: int(counted.get((route, result), 0)) for name, result in AUDITS.items()}}


def forgotten(of_workers: Iterable[list[Forgot]]) -> bytes:
    """How many answers are gone: those of a shared store are the same for all workers."""
    every = [forgot for told in of_workers for forgot in told]
    n_shared = max((forgot.n for forgot in every if forgot.is_shared), default=0)
    gone = sorted({forgot.gone for forgot in every if forgot.gone})
    return msgspec.json.encode({"forgotten": n_shared + sum(forgot.n for forgot in every if not forgot.is_shared),
                                "gone": gone})


def _one(stats: list[StoreStats]) -> StoreStats:
    """Of workers that share a store any one; else all together."""
    first = next((one for one in stats if not one.why_not), stats[0])
    if first.is_shared:
        return msgspec.structs.replace(first, n_near=sum(one.n_near for one in stats),
                                       n_evicted=sum(one.n_evicted for one in stats))
    return msgspec.structs.replace(
        first, n_entries=sum(one.n_entries or 0 for one in stats), n_bytes=sum(one.n_bytes or 0 for one in stats),
        max_bytes=sum(one.max_bytes or 0 for one in stats), n_evicted=sum(one.n_evicted for one in stats))


def _counted(route: str, totals: Totals) -> dict[str, Any]:
    """What came of the requests. Ratios are of the requests that a cache might have answered: not of what it never may."""
    requests = {labels[1]: int(n) for labels, n in totals.counters[known.CACHE.name].items() if labels[0] == route}
    n_asked = sum(n for result, n in requests.items() if result != "bypass")
    kinds = {"exact": requests.get("hit", 0) + requests.get("stale", 0), "semantic": requests.get("semantic", 0)}
    saved_s, saved_usd = (
        {labels[1]: n for labels, n in totals.counters[family.name].items() if labels[0] == route}
        for family in (known.CACHE_SAVED_S, known.CACHE_SAVED_USD))
    error = {labels[1]: value for labels, value in totals.gauges[known.SEMANTIC_ERROR.name].items() if labels[0] == route}
    return {
        "requests": requests,
        "without_a_call": _ratio(sum(requests.get(result, 0) for result in WITHOUT_A_CALL), n_asked),
        "kinds": {kind: {"hits": n, "hit_ratio": _ratio(n, n_asked), "saved_s": round(saved_s.get(kind, 0.0), 3),
                         "saved_usd": round(saved_usd.get(kind, 0.0), 6)} for kind, n in kinds.items()},
        "error": error or None,
    }


def _ratio(n: int, n_all: int) -> float | None:
    return round(n / n_all, 4) if n_all else None
