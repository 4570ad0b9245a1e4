"""What the caches of all workers come to."""

import asyncio

import msgspec
import pytest

from stayfast.compose import caching as composed
from stayfast.compose.cache_reports import (
    Caches,
    LearnedState,
    PurgedStore,
    WorkerCacheState,
    encode_cache_stats,
    encode_purged,
)
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals
from stayfast.stores.base import StoreStats
from tests.flow.semantic_rig import WordEmbedder
from tests.unit.compose.semantic_settings_rig import settings, system

OWN = StoreStats("memory", 3, 300, 1000, 1)
SHARED = StoreStats("redis", 50, 5000, None, 2, is_shared=True, n_near=4)
GONE = StoreStats("redis", None, None, None, is_shared=True, n_near=1, why_not="it does not answer")


def stats_of(of_workers: list[dict[str, StoreStats]], *learned: LearnedState) -> dict[str, dict[str, object]]:
    """By route. learned: of each worker, by the semantic cache of the route `own`."""
    totals = Totals({})
    totals.counters[known.CACHE.name]["own", "hit"] = 3
    totals.counters[known.CACHE.name]["own", "semantic"] = 1
    totals.counters[known.CACHE.name]["own", "miss"] = 4
    totals.counters[known.CACHE.name]["own", "bypass"] = 90
    totals.counters[known.CACHE_SAVED_S.name]["own", "exact"] = 1.5
    totals.gauges[known.SEMANTIC_ERROR.name]["own", "likely"] = 0.01
    for result, n in (("audit_started", 9), ("audit_right", 7), ("audit_wrong", 1), ("hit", 50)):
        totals.counters[known.SEMANTIC.name]["own", result] = n
    semantic = [*learned, *[None] * len(of_workers)]
    every = [{name: WorkerCacheState(stats, its if name == "own" else None) for name, stats in worker.items()}
             for worker, its in zip(of_workers, semantic, strict=False)]
    return {route["route"]: route for route in msgspec.json.decode(encode_cache_stats(every, totals))["data"]}


def test_cache_stats_add_private_memory_and_count_shared_stores_once() -> None:
    routes = stats_of([{"own": OWN, "shared": SHARED}] * 2 + [{"own": OWN, "shared": GONE}])
    store = routes["own"]["store"]
    assert isinstance(store, dict)
    assert (store["n_entries"], store["n_bytes"], store["n_evicted"]) == (9, 900, 3)
    store = routes["shared"]["store"]
    assert isinstance(store, dict)
    assert (store["n_entries"], store["n_near"], store["why_not"]) == (50, 9, "")


def test_cache_stats_ratios_exclude_bypassed_requests() -> None:
    """A route without requests has no ratio."""
    own, other = stats_of([{"own": OWN, "other": OWN}]).values()
    assert own["without_a_call"] == 0.5
    assert own["kinds"] == {"exact": {"hits": 3, "hit_ratio": 0.375, "saved_s": 1.5, "saved_usd": 0.0},
                            "semantic": {"hits": 1, "hit_ratio": 0.125, "saved_s": 0.0, "saved_usd": 0.0}}
    assert own["error"] == {"likely": 0.01}
    assert (other["without_a_call"], other["error"]) == (None, None)


def test_cache_stats_have_semantic_state_before_the_first_hit() -> None:
    """State, labels and audits; of workers that learn apart, the state of most and the highest count of labels."""
    shadow, live = LearnedState("shadow", 120, 300, 400), LearnedState("live", 310, 300, 900)
    own = stats_of([{"own": OWN, "exact": OWN}] * 3, shadow, live, shadow)
    assert own["exact"]["semantic"] is None
    assert own["own"]["semantic"] == {
        "state": "shadow", "workers": {"live": 1, "shadow": 2}, "labels": 310, "min_labels": 300, "questions": 900,
        "audits": {"begun": 9, "right": 7, "wrong": 1}}


@pytest.mark.parametrize(("mode", "is_installed", "state"), [
    ("max_error: 1%", True, "waiting"), ("max_error: 1%", False, "off"), ("max_error: 1%", None, "shadow"),
    ("threshold: 0.9", None, "fixed")])
def test_cache_stats_semantic_state_by_settings_and_packages(mode: str, is_installed: bool | None, state: str,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """is_installed: None means installed and loaded."""
    if is_installed is False:
        monkeypatch.setattr(composed, "_PACKAGES", ("no_such_package",))
    built = system(settings(mode))
    if is_installed is None:
        assert built.embedding is not None
        words = WordEmbedder()
        built.embedding.install(words, words)
    caches = Caches(lambda: built.gateway.router.routes)
    its = asyncio.run(caches.stats())["faq"].semantic
    assert its is not None
    assert (its.state, its.n_labels) == (state, 0)


def test_cache_stats_purged_answers_of_a_shared_store_count_once() -> None:
    """A store that did not answer is named."""
    whole = encode_purged([[PurgedStore(2), PurgedStore(5, is_shared=True)],
                           [PurgedStore(3), PurgedStore(4, is_shared=True)],
                       [PurgedStore(why_unavailable="worker 2 did not answer")]])
    assert msgspec.json.decode(whole) == {"forgotten": 10, "gone": ["worker 2 did not answer"]}


def test_cache_stats_without_caches_are_empty() -> None:
    caches = Caches(dict)
    assert asyncio.run(caches.stats()) == {}
    assert asyncio.run(caches.inspect_answer(bytes(32))) is None
