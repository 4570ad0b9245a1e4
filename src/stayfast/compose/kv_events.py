"""The readers of engines' KV events (`kv_events` of an upstream), and the index that routing asks."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.events import Fanout
from stayfast.core.findings import Finding
from stayfast.core.types import Request
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    KV_EVENT_AGE,
    KV_EVENT_BLOCKS,
    KV_EVENT_GAPS,
    KV_EVENT_STATE,
    KV_EVENTS,
    PROMPTS_TOKENIZED,
)
from stayfast.pipeline.routing.engine_caches import EngineCache, EngineCaches
from stayfast.policy.findings.kv_events import KvEventsState, find_kv_events
from stayfast.policy.routing.block_index import BlockIndex
from stayfast.policy.routing.kv_event_order import KvEventOrder
from stayfast.settings import HttpUpstream, Settings
from stayfast.upstreams.base import Call
from stayfast.upstreams.count_endpoint import CountEndpoint
from stayfast.upstreams.kv_event_reader import KvEventReader, load_zmq
from stayfast.wire.count_bodies import CountForm

TOKENIZE_S: Final = 4.0  # of which one call has half
MAX_CONNECTIONS: Final = 2


class EngineTokenizer:
    """The tokenizer of one engine, by connections of its own, which appear in no metric. Task-safe."""

    __slots__ = ("_client", "_clock", "_endpoint", "model_of")

    def __init__(self, name: str, upstream: HttpUpstream, model_of: Callable[[str], str], clock: Clock) -> None:
        """model_of: the model's name there, by the name that clients use."""
        self._clock = clock
        self._client = HttpClient(name, HttpConfig(upstream.base_url, max_connections=MAX_CONNECTIONS, http="1.1",
                                                   ca_file=upstream.ca_file, verify=upstream.verify),
                                  sink=Fanout(), clock=clock)
        headers = [(header.lower(), value.reveal()) for header, value in upstream.headers.items()]
        if upstream.key is not None:
            key_header, key = upstream.key_header.lower() or "authorization", upstream.key.reveal()
            headers.append((key_header, f"Bearer {key}" if key_header == "authorization" else key))
        self._endpoint = CountEndpoint(CountForm.TOKENIZE, self._client, clock, lambda *_: headers)
        self.model_of = model_of

    async def tokenize(self, request: Request) -> Sequence[int]:
        """The token ids of its prompt; empty: the engine gave none, in time or at all."""
        deadline = Deadline(self._clock.now() + TOKENIZE_S)
        count = await self._endpoint.fetch(Call(request, self.model_of(request.model), "req_tokenize", deadline, 1.0))
        return count.token_ids if count is not None else ()

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class KvEvents:
    """The readers of one set of settings, by upstream, and their index."""

    readers: Mapping[str, KvEventReader]
    tokenizers: Mapping[str, EngineTokenizer]
    exact: EngineCaches


def make_kv_events(settings: Settings, old: tuple[Settings, KvEvents | None] | None, clock: Clock) -> KvEvents | None:
    """None: no upstream has `kv_events`. old: before a reload; upstreams with unchanged settings keep their index. Raises
    NoZmq.
    """
    before_settings, before = old if old is not None else (None, None)
    readers, tokenizers = {}, {}
    for name, upstream in settings.upstreams.items():
        if not isinstance(upstream, HttpUpstream) or upstream.kv_events is None:
            continue
        is_same = before_settings is not None and before_settings.upstreams.get(name) == upstream
        readers[name] = (before.readers[name] if is_same and before is not None else
                         KvEventReader(upstream.kv_events, KvEventOrder(BlockIndex()), clock, load_zmq(name)))
        tokenizers[name] = EngineTokenizer(name, upstream, partial(_model_at, settings, name), clock)
    if not readers:
        return None
    caches = {name: EngineCache(reader.order.index, tokenizers[name]) for name, reader in readers.items()}
    exact = before.exact if before is not None else EngineCaches(caches)
    exact.caches = caches
    return KvEvents(readers, tokenizers, exact)


def _model_at(settings: Settings, upstream: str, requested: str) -> str:
    """The model's name at an upstream; the client's, where no route names another."""
    found = settings.model_for(requested, upstream) if requested in settings.routes else None
    return found or settings.upstreams[upstream].models.get(requested) or requested


class KvEventTasks:
    """The tasks that read and learn, of one process. Belongs to one loop."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._spawn = spawn
        self._running: dict[KvEventReader | EngineCaches, asyncio.Task[None]] = {}
        self._tokenizers: list[EngineTokenizer] = []

    def begin(self, events: KvEvents | None) -> None:
        """Run these readers instead of the ones before; None: none."""
        wanted: list[KvEventReader | EngineCaches] = [*events.readers.values(), events.exact] if events is not None else []
        for one in [one for one in self._running if one not in wanted]:
            self._running.pop(one).cancel()
        for one in wanted:
            if one not in self._running:
                self._running[one] = self._spawn(one.run())
        for tokenizer in self._tokenizers:
            tokenizer.close()
        self._tokenizers = list(events.tokenizers.values()) if events is not None else []


def kv_event_gauges(events: KvEvents | None, now: float) -> Samples:
    if events is None:
        return {}
    readers = events.readers.items()
    return {KV_EVENT_BLOCKS.name: [((name,), float(len(reader.order.index))) for name, reader in readers],
            KV_EVENT_STATE.name: [((name,), _state_of(reader)) for name, reader in readers],
            KV_EVENT_AGE.name: [((name,), now - reader.order.newest_at) for name, reader in readers
                                if reader.order.newest_at is not None]}


def _state_of(reader: KvEventReader) -> float:
    index = reader.order.index
    return 0.0 if not index.is_known else 2.0 if index.is_complete else 1.0


def kv_event_counts(events: KvEvents | None) -> Samples:
    if events is None:
        return {}
    orders = [(name, reader.order) for name, reader in events.readers.items()]
    return {KV_EVENTS.name: [((name, kind), n) for name, order in orders
                             for kind, n in (("applied", order.n_events), ("malformed", order.n_malformed))],
            KV_EVENT_GAPS.name: [((name, result), n) for name, order in orders
                                 for result, n in (("lost", order.n_gaps), ("filled", order.n_filled))],
            PROMPTS_TOKENIZED.name: [((result,), n) for result, n in events.exact.tokenized.items()]}


def kv_event_findings(events: KvEvents | None, clock: Clock) -> list[Finding]:
    """One for each upstream whose events are not usable."""
    if events is None:
        return []
    now = clock.now()
    states = (KvEventsState(name, now - reader.lost_at if reader.lost_at is not None else None,
                            reader.order.n_recent_gaps(now), reader.order.n_malformed, has_replay=reader.has_replay,
                            has_events=reader.order.newest_at is not None, n_learned=events.exact.tokenized["learned"],
                            n_failed=events.exact.tokenized["failed"]) for name, reader in events.readers.items())
    return [finding for state in states if (finding := find_kv_events(state)) is not None]
