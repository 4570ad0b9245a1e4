"""One gateway of a fleet, put together: its link, what its workers do for it, and its own description."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from importlib import import_module
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from stayfast import __version__
from stayfast.compose.current import CurrentSystem
from stayfast.compose.routes import models_requested
from stayfast.core.clock import Clock
from stayfast.core.findings import Finding
from stayfast.core.setting import Secret
from stayfast.core.snapshot import FleetRow
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import FLEET_AGE, FLEET_BREAKERS, FLEET_GATEWAYS
from stayfast.pipeline.attempts.times_export import TimesExport
from stayfast.policy.fleet.breaker_hints import upstream_digest
from stayfast.policy.merged_times import ElsewhereTimes, MergedTimes, TimesByKind
from stayfast.policy.resilience.hedge import FirstTokens
from stayfast.policy.resilience.retry import backoff_s
from stayfast.server.backend import PurgeFilter
from stayfast.server.config import is_loopback
from stayfast.settings import HttpUpstream, Settings
from stayfast.stores.fleet.base import FleetUnavailable
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.upstream_state import ModelHealth
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.fleet.link import FleetLink, RemotePurge
from stayfast.workers.fleet.records import FleetNews, GatewayRecord, WorkerReport
from stayfast.workers.fleet.times import TimesExchange
from stayfast.workers.sync import WorkerSync

MAX_SECTION_CHARS = 8
NO_FLEET = "fleet.url is not set: this gateway shares nothing with others"
_OWN_SECTIONS = ("workers", "log", "fleet", "sources", "snapshots")  # may differ between gateways
FIRST_S, LONGEST_S = 1.0, 15.0  # between two tries to announce epochs


class Workers(Protocol):
    """All workers of this gateway."""

    async def report(self, news: Callable[[int], FleetNews]) -> dict[int, WorkerReport]:
        """Give each worker its news, by its number; returns the reports of the ones that answered."""

    async def purge_here(self, what: PurgeFilter) -> bytes:
        """Execute a purge in all workers; returns the encoded result."""


class FleetPart:
    """What one worker does for its gateway. Belongs to one loop."""

    __slots__ = ("_clock", "_current", "_export", "is_draining", "n_gateways", "origins")

    def __init__(self, current: CurrentSystem, clock: Clock) -> None:
        self._current = current
        self._clock = clock
        self._export = TimesExport()
        self.n_gateways = 1
        self.is_draining = False
        self.origins: Mapping[str, str] = {}  # upstreams that other gateways may have, by name

    def receive(self, news: FleetNews) -> WorkerReport:
        """Apply news, and report."""
        if news.n_gateways is not None:
            self._rescale_limits(news.n_gateways)
        times = self._swap_times(news.times) if news.times is not None else None
        n_in_flight = sum(n for _, n in self._current.in_flight()) + sum(n for _, n in self._current.queued())
        return WorkerReport(os.getpid(), n_in_flight, self.is_draining, times)

    def _rescale_limits(self, n_gateways: int) -> None:
        if n_gateways == self.n_gateways:
            return
        factor, why = self.n_gateways / n_gateways, f"{n_gateways} gateways share it, {self.n_gateways} did before"
        self.n_gateways = n_gateways
        for member in self._current.members():
            for limiter in member.all_limiters:
                limiter.limit.rescale(factor, why)
                limiter.grant_waiters()

    def _swap_times(self, times: TimesByKind) -> dict[str, MergedTimes]:
        kinds: dict[str, FirstTokens] = {}
        for name, route in self._current.routes().items():
            route.hedging.elsewhere = elsewhere = ElsewhereTimes(name, self.origins, times)
            kinds.update(route.hedging.kinds(elsewhere))
        return self._export.refresh(kinds, self._clock.now())


class Fleet:
    """The fleet as one process has it. Outlives reloads. Belongs to one loop."""

    def __init__(self, gateway: str, settings: Settings, current: CurrentSystem, siblings: WorkerPeers | None,
                 sync: WorkerSync | None, *, clock: Clock, log: Callable[..., None]) -> None:
        """gateway: its id, the same in all workers."""
        self._clock = clock
        self._siblings = siblings or WorkerPeers()
        self._sync = sync
        self._since = clock.wall()
        self._config = digest_sections(settings)
        self._announcing: asyncio.Task[None] | None = None
        self._running: tuple[asyncio.Task[None], ...] = ()
        self.part = FleetPart(current, clock)
        self.id = gateway
        self.link: FleetLink | None = None
        self._times: TimesExchange | None = None
        if settings.fleet.url is not None:
            gateways = import_module("stayfast.stores.fleet.gateways")  # here: it needs a package that only an extra brings
            store = gateways.RedisGateways(settings.fleet.url.reveal(), settings.fleet.prefix)
            self.link = FleetLink(self.id, store, clock, Random(os.urandom(16)), log=log,
                                  heartbeat_s=settings.fleet.heartbeat_s)
            self._times = TimesExchange(self.id, store, clock)

    @property
    def is_speaker(self) -> bool:
        """Whether this process speaks for its gateway: all workers with lower numbers have ended."""
        return self._sync.is_first(self._clock.now()) if self._sync is not None else self._siblings.n == 0

    def begin(self, settings: Settings, registry: Registry) -> None:
        """A system was built, at the start or by a reload."""
        self._config = digest_sections(settings)
        self.part.origins = {name: f"{upstream.kind} {origin_of(upstream)}" for name, upstream in settings.upstreams.items()
                             if isinstance(upstream, HttpUpstream)}
        if self.link is not None:
            self.link.breakers.attach(shared_breakers(settings, registry))
            if self._announcing is not None:
                self._announcing.cancel()
            self._announcing = asyncio.get_running_loop().create_task(self._announce_epochs(self.link, settings))

    def start(self, workers: Workers, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """Exchange until closed."""
        if self.link is not None and self._times is not None:
            host = _Host(self, workers)
            self._running = (spawn(self.link.run(host)), spawn(self._times.run(host)))

    async def close(self, workers: Workers) -> None:
        for task in self._running:
            task.cancel()
        if self._announcing is not None:
            self._announcing.cancel()
        if self.link is not None:
            await self.link.close(_Host(self, workers))

    async def describe(self, workers: Workers) -> GatewayRecord:
        """This gateway without its breakers."""
        reports = (await workers.report(lambda worker: self._news(None))).values()
        return GatewayRecord(
            self.id, socket.gethostname(), tuple(sorted(report.pid for report in reports)), __version__, self._since,
            sum(report.in_flight for report in reports), any(report.is_draining for report in reports), self._config)

    def _news(self, times: TimesByKind | None) -> FleetNews:
        n_gateways = self.link.n_gateways if self.link is not None and self.is_speaker else None
        return FleetNews(n_gateways, dict(times) if times is not None else None)

    async def swap_times(self, workers: Workers, given: Callable[[int], TimesByKind]) -> Mapping[int, TimesByKind]:
        reports = await workers.report(lambda worker: self._news(given(worker)))
        return {worker: report.times or {} for worker, report in reports.items()}

    async def gateways(self, workers: Workers) -> dict[str, Any]:
        """The body of `GET /admin/gateways`."""
        if self.link is not None:
            return await self.link.gateways(_Host(self, workers))
        record = await self.describe(workers)
        return {"object": "list", "data": [record.as_row(0.0, is_self=True)], "why_alone": NO_FLEET, "findings": []}

    async def purge_elsewhere(self, what: PurgeFilter) -> RemotePurge | None:
        """A purge at all other gateways; None: there is no fleet."""
        return await self.link.purge_elsewhere(msgspec.msgpack.encode(what)) if self.link is not None else None

    def findings(self) -> Sequence[Finding]:
        """Differences between the gateways, from the process that speaks."""
        return self.link.findings() if self.link is not None else ()

    def rows(self) -> list[FleetRow]:
        """The gateways at the last exchange, from the process that speaks."""
        return self.link.rows() if self.link is not None else []

    def gauges(self) -> Samples:
        """From the process that speaks, if it has a link."""
        if self.link is None or not self.is_speaker:
            return {}
        status = self.link.status()
        age_s: list[tuple[tuple[str, ...], float]] = [((), status.age_s)] if status.age_s is not None else []
        return {FLEET_GATEWAYS.name: [((), status.n_alive)], FLEET_AGE.name: age_s}

    def counters(self) -> Samples:
        if self.link is None:
            return {}
        breakers = self.link.breakers
        return {FLEET_BREAKERS.name: [(("sent",), breakers.n_sent), (("received",), breakers.n_received),
                                      (("opened",), breakers.n_opened)]}

    async def _announce_epochs(self, link: FleetLink, settings: Settings) -> None:
        epochs = {name: (route.cache.epoch, msgspec.msgpack.encode(PurgeFilter(route=name)))
                  for name, route in settings.routes.items() if route.cache.mode != "off"}
        n_failed = 0
        while True:
            try:
                await link.announce_epochs(epochs)
            except FleetUnavailable:
                n_failed += 1
                await asyncio.sleep(backoff_s(n_failed, FIRST_S, LONGEST_S))
            else:
                return

    def __repr__(self) -> str:
        return f"<Fleet {self.id}: {self.link!r}>"


class _Host:
    """The gateway as its link and its exchange of times need it."""

    __slots__ = ("_fleet", "_workers")

    def __init__(self, fleet: Fleet, workers: Workers) -> None:
        self._fleet = fleet
        self._workers = workers

    def is_speaker(self) -> bool:
        return self._fleet.is_speaker

    async def describe(self) -> GatewayRecord:
        return await self._fleet.describe(self._workers)

    async def purge(self, what: bytes) -> bytes:
        return await self._workers.purge_here(msgspec.msgpack.decode(what, type=PurgeFilter))

    async def swap_times(self, given: Callable[[int], TimesByKind]) -> Mapping[int, TimesByKind]:
        return await self._fleet.swap_times(self._workers, given)


def origin_of(upstream: HttpUpstream) -> str:
    """The address of an upstream; with this machine's name, if it is an address of each machine."""
    return f"{socket.gethostname()} {upstream.base_url}" if is_loopback(upstream.host) else upstream.base_url


def shared_breakers(settings: Settings, registry: Registry) -> Iterator[tuple[str, str, ModelHealth]]:
    """Digest, name and health of each breaker that other gateways may have: of upstreams on the network, for models that
    routes name.
    """
    for name, upstream in settings.upstreams.items():
        if isinstance(upstream, HttpUpstream):
            only = next(models_requested(settings, name), "")
            for health in registry[name].shared_healths:
                yield upstream_digest(upstream.kind, origin_of(upstream), health.model or only), name, health


def digest_sections(settings: Settings) -> dict[str, str]:
    """Digests of the sections of the settings, without secrets, and of all of them. What may differ between gateways of one
    fleet is not included: the port, the number of workers, logging, the gateway's name.
    """
    server = replace(settings.server, host="", port=1)
    whole = {field.name: server if field.name == "server" else getattr(settings, field.name)
             for field in fields(settings) if field.name not in _OWN_SECTIONS}
    sections = {name: sha256(_canonical(value)).hexdigest()[:MAX_SECTION_CHARS] for name, value in whole.items()}
    return sections | {"all": sha256(repr(sorted(sections.items())).encode()).hexdigest()[:16]}


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain, order="sorted")


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    if isinstance(value, Secret):
        return "secret"
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return repr(value)
