"""Response caches and shared stores, planted."""

from random import Random
from typing import Any

from stayfast.lab.doctor.recorded import MIB, spread, with_age, with_cache, with_prompts, with_store, with_traffic
from stayfast.lab.doctor.scene import Flow, Plant, Scene

CACHE, STORE = frozenset({"classify.cache"}), frozenset({"store"})


def _cached(scene: Scene, settings: dict[str, Any] | None = None, **row: Any) -> Scene:
    """The classify route with a cache."""
    mode = {"mode": row.get("mode", "exact"), **(settings or {})}
    return scene.set(routes={"classify": {"cache": mode}}).amend(with_cache("classify", **row))


def _questions(scene: Scene, n_different: int, settings: dict[str, Any] | None = None, **flow: Any) -> Scene:
    """Questions of the classify route, drawn from n_different ones; 0: each is new. settings: of its cache."""
    def make(rng: Random, _: Flow) -> list[dict[str, Any]]:
        number = rng.randrange(n_different) if n_different else rng.random()
        return [{"role": "user", "content": f"Question {number}: {'word' * 120}"}]

    flow = {"body": {"temperature": 0}, "max_tokens": None, "make_messages": make, **flow}
    cached = scene.set(routes={"classify": {"cache": settings or {"mode": "exact"}}}).set_flow("classify", **flow)
    return cached.amend(with_age())


def _repeats(scene: Scene, n: int) -> Scene:
    return scene.amend(with_prompts("classify", n=700, n_repeated=n))


def _stale(scene: Scene, n: int) -> Scene:
    return _cached(scene, {"ttl_s": 3600.0, "stale_while_revalidate_s": 86400.0}).amend(
        with_traffic("classify", cache={"hit": 500, "stale": n, "miss": 100}))


def _store(scene: Scene, **row: Any) -> Scene:
    return scene.amend(with_store("redis", **row))


PLANTS = (
    Plant("cache of prompts that are all new", "cache.hits_low", True, lambda scene: _questions(scene, 0), touches=CACHE),
    Plant("cache with few requests", "cache.hits_low", False, lambda scene: _questions(scene, 0, per_s=0.3), touches=CACHE),
    Plant("cache of 1 MiB", "cache.evicts_early", True,
          lambda scene: _repeats(_cached(scene, {"max_bytes": MIB}, n_exact=200, n_evicted=780), 500), touches=CACHE),
    Plant("small cache of questions that do not return", "cache.evicts_early", False,
          lambda scene: _repeats(_cached(scene, {"max_bytes": MIB}, n_exact=350, n_evicted=600), 250), touches=CACHE),
    Plant("answers that expire before the question returns", "cache.expires_early", True,
          lambda scene: _questions(scene, 100, {"mode": "exact", "ttl_s": 5.0}, per_s=4.0), touches=CACHE),
    Plant("answers that expire after their question returned", "cache.expires_early", False,
          lambda scene: _questions(scene, 5, {"mode": "exact", "ttl_s": 30.0}, per_s=4.0), touches=CACHE),
    Plant("requests without a temperature", "cache.bypassed", True, lambda scene: _questions(scene, 20, body={}),
          touches=CACHE),
    Plant("requests with temperature 0", "cache.bypassed", False, lambda scene: _questions(scene, 20), touches=CACHE),
    Plant("repeated questions without a cache", "cache.candidate", True,
          lambda scene: _questions(scene, 20, {"mode": "off"}), touches=CACHE),
    Plant("repeated questions whose answers vary", "cache.candidate", False,
          lambda scene: _questions(scene, 20, {"mode": "off"}, body={"temperature": 1}), touches=CACHE),
    Plant("semantic cache without labels", "semantic.in_shadow", True,
          lambda scene: _cached(scene, mode="semantic", semantic_state="shadow", n_lookups=8000, n_exact=3000),
          touches=CACHE),
    Plant("semantic cache that begins to learn", "semantic.in_shadow", False,
          lambda scene: _cached(scene, mode="semantic", semantic_state="shadow", n_lookups=900, n_exact=400), touches=CACHE),
    Plant("semantic hits wrong in 6 %", "semantic.error_over_bound", True,
          lambda scene: _cached(scene, mode="semantic", semantic_state="live", n_semantic=200, error_most=0.06),
          touches=CACHE),
    Plant("semantic hits wrong in 0.6 %", "semantic.error_over_bound", False,
          lambda scene: _cached(scene, mode="semantic", semantic_state="live", n_semantic=200, error_most=0.006),
          touches=CACHE),
    Plant("half of the hits are stale", "cache.stale", True, lambda scene: _stale(scene, 500), touches=CACHE),
    Plant("a tenth of the hits is stale", "cache.stale", False, lambda scene: _stale(scene, 50), touches=CACHE),
    Plant("Redis that refuses connections", "store.down", True,
          lambda scene: _store(scene, is_open=False, why_not="connection refused", n_calls=0), touches=STORE),
    Plant("Redis with single failed calls", "store.down", False, lambda scene: _store(scene, n_failed=20), touches=STORE),
    Plant("Redis that needs 0.1 s", "store.slow", True,
          lambda scene: _store(scene, purposes=("fleet",), call_s=spread(0.03, 0.1)), touches=STORE),
    Plant("Redis in another zone", "store.slow", False,
          lambda scene: _store(scene, purposes=("fleet",), call_s=spread(0.004, 0.012)), touches=STORE),
    Plant("Redis that evicts counters of limits", "store.evicts_state", True,
          lambda scene: _store(scene, purposes=("cache", "fleet"), n_evicted=300, eviction_policy="allkeys-lru",
                               memory_ratio=0.99), touches=STORE),
    Plant("Redis that evicts answers", "store.evicts_state", False,
          lambda scene: _store(scene, n_evicted=300, eviction_policy="allkeys-lru", memory_ratio=0.99), touches=STORE),
    Plant("Redis that is full and may not evict", "store.nearly_full", True,
          lambda scene: _store(scene, memory_ratio=0.97), touches=STORE),
    Plant("Redis that is half full", "store.nearly_full", False, lambda scene: _store(scene, memory_ratio=0.5),
          touches=STORE),
)
