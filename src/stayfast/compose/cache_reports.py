"""The caches of all routes: what they hold and have saved, purges, and single answers; of one worker, and over all."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stayfast.compose.context import history_steps
from stayfast.compose.history_reports import HistoryFigures, read_figures
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.plan import Route
from stayfast.server.backend import PurgeFilter
from stayfast.stores.base import Store, StoreStats, StoreUnavailable

WITHOUT_A_CALL = ("hit", "semantic", "stale", "coalesced")
AUDITS = {"begun": "audit_started", "right": "audit_right", "wrong": "audit_wrong"}


class LearnedState(msgspec.Struct, frozen=True):
    """The state of a route's semantic cache.

    state: off (its packages are missing), waiting (for the embedder), shadow (learning, returns nothing yet), live, or fixed
    (a threshold without a proof).
    """

    state: str
    n_labels: int = 0
    min_labels: int = 0
    n_phrasings: int = 0


class WorkerCacheState(msgspec.Struct, frozen=True):
    """One worker's cache of one route."""

    store: StoreStats
    semantic: LearnedState | None = None  # None: it is an exact one


class PurgedStore(msgspec.Struct, frozen=True):
    """How many answers one store has dropped. why_unavailable: why the store could not be reached; empty: it replied."""

    n: int = 0
    is_shared: bool = False
    why_unavailable: str = ""


class Caches:
    """The caches of one worker."""

    __slots__ = ("_routes",)

    def __init__(self, routes: Callable[[], Mapping[str, Route]]) -> None:
        """routes: those of the running system, by name."""
        self._routes = routes

    async def stats(self) -> dict[str, WorkerCacheState]:
        """The state of each route's cache."""
        return {name: WorkerCacheState(await caching.store.stats(), _describe_learned(caching)) for name,
                caching in self._caches()}

    async def purge(self, what: PurgeFilter) -> list[PurgedStore]:
        """Drop the matching answers and summaries, store by store, and summaries that are being made."""
        purged, seen = [], set[int]()
        if what.key is None:
            purged = [PurgedStore(step.state.delete_running(what.route, what.tenant, what.tag))
                      for _, step in history_steps(self._routes())]
        for _, store in self._stores():
            if id(store) in seen:
                continue
            seen.add(id(store))
            try:
                n = await _purge_store(store, what)
            except StoreUnavailable as error:
                purged.append(PurgedStore(why_unavailable=str(error)))
            else:
                purged.append(PurgedStore(n, store.is_shared))
        return purged

    async def inspect_answer(self, key: bytes) -> dict[str, Any] | None:
        """The metadata of a stored answer, without its text."""
        for name, store in self._stores():
            stored = await store.inspect(key)
            if stored is not None:
                return {"route": stored.route or name, "tenant": stored.tenant, "tags": list(stored.tags),
                        "kept_at": stored.kept_at,
                        "drop_at": stored.drop_at if stored.drop_at < 1e12 else None, "bytes": len(stored.body),
                        "usage": stored.usage, "finish_reason": stored.finish_reason}
        return None

    def _caches(self) -> list[tuple[str, RouteCache]]:
        return [(name, route.policy.cache) for name, route in self._routes().items() if route.policy.cache is not None]

    def _stores(self) -> list[tuple[str, Store]]:
        return [*((name, caching.store) for name, caching in self._caches()),
                *((name, step.store) for name, step in history_steps(self._routes()))]

    def read_histories(self) -> dict[str, HistoryFigures]:
        """What the histories of the routes have done."""
        return read_figures(self._routes())

    def __repr__(self) -> str:
        return f"<Caches of {len(self._stores())} routes>"


async def _purge_store(store: Store, what: PurgeFilter) -> int:
    """Returns the number of dropped answers. Raises StoreUnavailable."""
    if what.key is None:
        return await store.purge(route=what.route, tenant=what.tenant, tag=what.tag)
    n = int(await store.inspect(what.key) is not None)
    if not await store.remove(what.key):
        raise StoreUnavailable((await store.stats()).why_not or "it did not answer in time")
    return n


def _describe_learned(caching: RouteCache) -> LearnedState | None:
    if caching.config.mode != "semantic":
        return None
    if caching.semantic is None:
        return LearnedState("off")
    stats, config = caching.semantic.stats(), caching.config.semantic
    if not caching.semantic.is_ready or caching.semantic.embedding.foreground is None:
        return LearnedState("waiting", min_labels=config.min_labels)
    state = "fixed" if config.threshold is not None else "shadow" if stats.is_shadow else "live"
    return LearnedState(state, stats.n_labels, config.min_labels, stats.n_phrasings)


def encode_cache_stats(worker_states: Iterable[Mapping[str, WorkerCacheState]], totals: Totals) -> bytes:
    """The caches of all routes, over all workers, as JSON."""
    caches: dict[str, list[WorkerCacheState]] = {}
    for worker_state in worker_states:
        for name, stats in worker_state.items():
            caches.setdefault(name, []).append(stats)
    return msgspec.json.encode({"object": "list", "data": [
        {"route": name, "store": _merge_stores([one.store for one in every]), **_count_requests(name, totals),
         "semantic": _merge_learned([one.semantic for one in every if one.semantic is not None], name, totals)}
        for name, every in caches.items()]})


def _merge_learned(worker_states: list[LearnedState], route: str, totals: Totals) -> dict[str, Any] | None:
    """The state of most workers, the figures of the one that has learned most, and the audits of all."""
    if not worker_states:
        return None
    states = [worker_state.state for worker_state in worker_states]
    counted = totals.counters[known.SEMANTIC.name]
    return {"state": max(states, key=states.count), "workers": {state: states.count(state) for state in sorted(set(states))},
            "labels": max(one.n_labels for one in worker_states), "min_labels": max(one.min_labels for one in worker_states),
            "questions": max(one.n_phrasings for one in worker_states),
            "audits": {name: int(counted.get((route, result), 0)) for name, result in AUDITS.items()}}


def encode_purged(worker_states: Iterable[list[PurgedStore]], unconfirmed: Mapping[str, str] | None = None) -> bytes:
    """The number of dropped answers; all workers drop the same ones of a shared store. unconfirmed: gateways that did not
    confirm, and why; None: there is no fleet.
    """
    every = [purged for counts in worker_states for purged in counts]
    n_shared = max((purged.n for purged in every if purged.is_shared), default=0)
    gone = sorted({purged.why_unavailable for purged in every if purged.why_unavailable})
    gone += [f"gateway {name} did not confirm: {why}" for name, why in (unconfirmed or {}).items()]
    whole = {"forgotten": n_shared + sum(purged.n for purged in every if not purged.is_shared), "gone": gone}
    return msgspec.json.encode(whole if unconfirmed is None else whole | {"unconfirmed": sorted(unconfirmed)})


def _merge_stores(stats: list[StoreStats]) -> StoreStats:
    """The figures of a shared store, or the sum over all workers."""
    first = next((one for one in stats if not one.why_not), stats[0])
    if first.is_shared:
        return msgspec.structs.replace(first, n_near=sum(one.n_near for one in stats),
                                       n_evicted=sum(one.n_evicted for one in stats))
    return msgspec.structs.replace(
        first, n_entries=sum(one.n_entries or 0 for one in stats), n_bytes=sum(one.n_bytes or 0 for one in stats),
        max_bytes=sum(one.max_bytes or 0 for one in stats), n_evicted=sum(one.n_evicted for one in stats))


def _count_requests(route: str, totals: Totals) -> dict[str, Any]:
    """Results of requests and lookups. Ratios exclude requests that bypass the cache."""
    requests = {labels[1]: int(n) for labels, n in totals.counters[known.CACHE.name].items() if labels[0] == route}
    n_lookups = sum(n for result, n in requests.items() if result != "bypass")
    kinds = {"exact": requests.get("hit", 0) + requests.get("stale", 0), "semantic": requests.get("semantic", 0)}
    saved_s, saved_usd = (
        {labels[1]: n for labels, n in totals.counters[family.name].items() if labels[0] == route}
        for family in (known.CACHE_SAVED_S, known.CACHE_SAVED_USD))
    error = {labels[1]: value for labels, value in totals.gauges[known.SEMANTIC_ERROR.name].items() if labels[0] == route}
    return {
        "requests": requests,
        "without_a_call": _ratio(sum(requests.get(result, 0) for result in WITHOUT_A_CALL), n_lookups),
        "kinds": {kind: {"hits": n, "hit_ratio": _ratio(n, n_lookups), "saved_s": round(saved_s.get(kind, 0.0), 3),
                         "saved_usd": round(saved_usd.get(kind, 0.0), 6)} for kind, n in kinds.items()},
        "error": error or None,
    }


def _ratio(n: int, n_all: int) -> float | None:
    return round(n / n_all, 4) if n_all else None
