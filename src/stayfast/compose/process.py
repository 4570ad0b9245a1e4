"""One serving process: how a system is started, reloaded and stopped."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import uvloop

from stayfast import __version__
from stayfast.compose.caching import (
    explain_missing_packages,
    has_epoch_changed,
    label_logs,
    load_embedder,
    purge_old_epochs_with_retries,
    restore_learned,
)
from stayfast.compose.classify import ClassifierFiles, mismatched_encoders, read_classifier_files
from stayfast.compose.credentials import CredentialTasks
from stayfast.compose.engine_metrics import make_scrapers
from stayfast.compose.engines import Engines, retire_engine
from stayfast.compose.enough import explain_missing_vectors
from stayfast.compose.fleet import shared_buckets
from stayfast.compose.job_stores import open_job_stores
from stayfast.compose.jobs import JobsHost, ProcessParts
from stayfast.compose.keys import KeysHost
from stayfast.compose.kv_events import KvEventTasks
from stayfast.compose.probes import store_sites
from stayfast.compose.system import Observers, System, build, log_config
from stayfast.compose.token_counters import load_tokenizers
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.events import LoopLag, Sink
from stayfast.engine.speculation import upstream_of_engine
from stayfast.http.descriptors import client_share, raise_descriptor_limit
from stayfast.http.server.connection import ConnectionTasks
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import ServerHooks, run
from stayfast.settings import Settings, SettingsError
from stayfast.stores.embedder import Embedders, NoEmbedder
from stayfast.upstreams.embedded import Address, EngineAddress, EngineEndpoint, ParentEngine
from stayfast.workers.channels import WorkerPeers

# Python's 700 would cost 5 % of all CPU: sixty running requests alone reach it again and again
_GC_THRESHOLDS = (20_000, 10, 10)
_EPOCHS_S = 2.0  # for stores to purge old epochs before the first request; the rest continues in the background
_LAST_SPANS_S = 2.0  # for the spans of the last answers; within the margin that the parent of workers leaves after a drain
_MAX_DETAIL_CHARS = 4000  # of an error in the settings, so that its log line stays readable
_N_FRAMES = 3  # innermost frames, which name the place
_LAST_TASKS_S = 1.25  # for cancelled Tasks; longer than a turn has before it counts as abandoned
LAG_EVERY_S = 0.1
EngineAddresses = Callable[[], Mapping[str, EngineAddress]]  # where the parent's engines are, by upstream


class StoredWork(NamedTuple):
    """What lives in the store of the jobs."""

    jobs: JobsHost
    keys: KeysHost


class LastingTasks(NamedTuple):
    """What continues over a reload for upstreams with unchanged settings."""

    credentials: CredentialTasks
    kv_events: KvEventTasks


class Process:
    """The running system with its background Tasks, and how a reload replaces it. Belongs to one loop."""

    def __init__(self, observers: Observers, engine_addresses: EngineAddresses | None, load: Callable[[], Settings]) -> None:
        self._observers = observers
        self._engine_addresses = engine_addresses  # None: this process runs the engines
        self._load = load
        self._clock = SystemClock()
        self._rng = Random(os.urandom(16))
        self._tasks = ConnectionTasks(self.report)
        self._lasting = LastingTasks(CredentialTasks(self._tasks.spawn), KvEventTasks(self._tasks.spawn))
        self._engines = Engines(observers.sink, self._clock, self._rng)
        self._of_system: list[asyncio.Task[None]] = []  # end with the system at a reload
        self._of_process: list[asyncio.Task[None]] = []
        self._purging: asyncio.Task[None] | None = None  # purges old epochs
        self._reloading = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._system: System | None = None
        self._current: ActiveSystem | None = None
        self._stored: StoredWork | None = None

    async def start(self, settings: Settings, *, needs_jobs: bool = False) -> ActiveSystem:
        """Build and start; engines become ready later. Raises ValueError or OSError if an engine cannot run here.
        needs_jobs: open their store even if it does not exist yet.
        """
        await self._observers.aggregate.start()
        if self._engine_addresses is None:
            await self._engines.start_missing(settings.embedded)
        observers = self._observers
        parts = ProcessParts(self._clock, self._rng, observers.sink, self._warn_about_jobs, self.report,
                             self._tasks.spawn)
        jobs = JobsHost(settings, observers.current, parts, open_stores=open_job_stores,
                        is_sweeper=observers.aggregate.peers.n == 0,
                        has_siblings=bool(observers.aggregate.peers.others))
        keys_parts = replace(parts, warn=self._warn_about_keys)
        keys = KeysHost(settings, jobs, keys_parts, shared_buckets(None, observers.worker_sync))
        self._stored = StoredWork(jobs, keys)
        observers.batch.add_listener(keys.tally)
        system = self._build(settings, None, await asyncio.to_thread(read_classifier_files, settings))
        await self._lasting.credentials.start(system.credentials)
        await self._purge_epochs(system, None)
        self._current = ActiveSystem(system)
        self._begin(system)
        self._of_process.append(self._tasks.spawn(watch_loop(self._clock, self._observers.sink)))
        self._of_process += self._observers.probes.start(self._tasks.spawn)
        if self._observers.worker_sync is not None:
            self._of_process.append(self._tasks.spawn(self._observers.worker_sync.run()))
        collecting = self._observers.snapshots.start(self._tasks.spawn)
        if collecting is not None:
            self._of_process.append(collecting)
        self._observers.fleet.start(self._observers.aggregate, self._tasks.spawn)
        await jobs.start(is_needed=needs_jobs or settings.spend == "on")
        await keys.start()
        if self._observers.leases is not None:
            self._observers.leases.begin(self._tasks.spawn)
        if any(member.replica is not None for member in system.registry):
            await observers.aggregate.adopt_drains()
        self._begin_scaling()
        return self._current

    def make_hooks(self, on_listening: Callable[[Sequence[Address]], None], on_draining: Callable[[], None],
                   session_secret: bytes | None) -> ServerHooks:
        """The hooks of the HTTP server. session_secret: the parent's; None without a parent."""
        tracing = self._observers.tracing
        return ServerHooks(clock=self._clock, sink=self._observers.sink, entropy=os.urandom(8), version=__version__,
                    on_error=self.report, on_listening=on_listening, on_draining=on_draining,
                    on_reload=self.reload, start_trace=tracing.start_trace if tracing is not None else None,
                    held_bytes=self._observers.held, socket_counts=self._observers.sockets,
                    session_secret=session_secret)

    def _begin_scaling(self) -> None:
        """Worker 0 decides for all."""
        aggregate = self._observers.aggregate
        if not aggregate.peers.n and aggregate.scaling is not None:
            self._of_process.append(self._tasks.spawn(aggregate.scaling.run(aggregate.read_other_loads)))

    def drain(self) -> None:
        """Claim no more jobs."""
        if self._stored is not None:
            self._stored.jobs.drain()

    async def stop(self) -> None:
        """End jobs, probes, turns and engines. Running jobs have the rest of the drain."""
        if self._stored is not None:
            await self._stored.jobs.stop(before_close=self._stored.keys.stop)
        self._observers.aggregate.turns.cancel_all()
        self._observers.probes.stop()
        self._lasting.credentials.keep_only({})
        self._lasting.kv_events.begin(None)
        for task in (*self._of_system, *self._of_process, self._purging):
            if task is not None:
                task.cancel()
        await self._observers.fleet.close(self._observers.aggregate)
        if self._observers.leases is not None:
            await self._observers.leases.close()
        for log in label_logs(self._system.gateway.router.routes) if self._system is not None else ():
            log.close()
        self._observers.aggregate.peers.close()
        if self._system is not None:
            for store in self._system.stores.values():
                await store.close()
        await self._engines.stop()

    @property
    def has_hanging_threads(self) -> bool:
        """Whether threads of the encoder do not end: the interpreter's exit would wait for them."""
        embedding = self._system.embedding if self._system is not None else None
        return embedding is not None and any(one.n_overrun_threads for one in embedding.counted.values())

    def report(self, error: BaseException) -> None:
        """Report an unexpected exception: its place, never its message (it may quote a prompt)."""
        where = "".join(traceback.format_tb(error.__traceback__))
        sys.stderr.write(f"stayfast: unexpected {type(error).__name__}\n{where}")
        frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
        self._observers.log.write_event("unexpected_error", level="error", kind=type(error).__name__,
                                detail=", ".join(frames[-_N_FRAMES:]))

    def reload(self) -> None:
        """SIGHUP."""
        self._tasks.spawn(self._reload())

    async def _reload(self) -> None:
        """SIGHUP: new requests use the new settings, running answers keep theirs; invalid settings change nothing."""
        async with self._reloading:
            assert self._current is not None
            old = self._system
            assert old is not None
            logged = label_logs(old.gateway.router.routes)
            try:
                settings = self._load()
                unwanted = await self._engines.start_missing(settings.embedded) if self._engine_addresses is None else []
                files = await asyncio.to_thread(read_classifier_files, settings, old.files)
                new = self._build(settings, old, files)
                await self._lasting.credentials.start(new.credentials)
                await self._purge_epochs(new, old)
                self._current.swap(new)
            except (SettingsError, ValueError, OSError) as error:
                self._lasting.credentials.keep_only(old.credentials)
                sys.stderr.write(f"stayfast: the settings are wrong and were not loaded; the old ones stay:\n{error}\n")
                self._observers.log.write_event("reload_refused", level="error", detail=str(error)[:_MAX_DETAIL_CHARS])
                return
            self._observers.log.configure(log_config(settings))
            self._begin(new)
            old.registry.close(new.registry)
            if old.passthrough is not None:
                old.passthrough.close(new.passthrough)
            if old.embedding is not None and old.embedding is not new.embedding:
                old.embedding.close()
            for log in logged - label_logs(new.gateway.router.routes):
                log.close()
            for name, store in old.stores.items():
                if new.stores.get(name) is not store:
                    self._tasks.spawn(store.close())
            for name, engine in unwanted:
                self._tasks.spawn(retire_engine(engine, old.registry[upstream_of_engine(name)]))
            self._observers.log.write_event("reloaded", upstreams=len(settings.upstreams), routes=len(settings.routes))

    def _build(self, settings: Settings, old: System | None, files: ClassifierFiles) -> System:
        stored = self._stored
        jobs = stored.jobs.make_service(settings) if stored is not None else None
        return build(settings, self._observers, self._engine_doors(settings), self._clock, self._rng, old=old, jobs=jobs,
                     keys=stored.keys if stored is not None else None, files=files)

    def _engine_doors(self, settings: Settings) -> dict[str, EngineEndpoint]:
        """The embedded engines, by upstream."""
        addresses = self._engine_addresses
        return {name: self._engines[name] if addresses is None else ParentEngine(name, addresses)
                for name in settings.engines}

    def _warn_about_keys(self, why: str) -> None:
        self._observers.log.write_event("keys_store", level="warning", detail=why)

    def _warn_about_jobs(self, why: str) -> None:
        self._observers.log.write_event("jobs_unavailable", level="warning", detail=why)

    async def _purge_epochs(self, system: System, old: System | None) -> None:
        """Drop the answers of old epochs; if a store does not respond in time, continue in the background."""
        if self._purging is not None:
            self._purging.cancel()
        tried = asyncio.Event()
        self._purging = self._tasks.spawn(purge_old_epochs_with_retries(
            system.settings, system.stores, old.settings if old is not None else None, self._observers.log, tried))
        if old is not None and not has_epoch_changed(system.settings, old.settings):
            return  # the other new settings, such as a revoked key, must not wait for a store
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EPOCHS_S):
                await tried.wait()

    def _begin(self, system: System) -> None:
        for task in self._of_system:
            task.cancel()
        self._of_system = [self._tasks.spawn(system.prober.run()), *[self._tasks.spawn(watch.run())
                                                                     for watch in system.watches]]
        if system.refresher is not None:
            self._of_system.append(self._tasks.spawn(system.refresher.run()))
        self._lasting.credentials.keep_only(system.credentials)
        self._lasting.kv_events.begin(system.kv_events)
        self._system = system
        if self._stored is not None:
            self._stored.jobs.settings = system.settings
        self._observers.fleet.begin(system.settings, system.registry)
        scrapers = make_scrapers(system.settings, self._engine_doors(system.settings), self._observers.aggregate.signals,
                                 count_queued=self._observers.current.n_queued_for, clock=self._clock, rng=self._rng)
        self._observers.probes.begin(store_sites(system.settings), scrapers, self._tasks.spawn)
        if system.embedding is not None:
            self._tasks.spawn(self._load_embedder(system, system.embedding))
        elif why := explain_missing_packages(system.settings, has_head=system.files.needs_encoder(system.settings)):
            self._observers.log.write_event("semantic_off", level="warning", detail=why)
        self._tasks.spawn(self._load_tokenizers(system))
        if why := explain_missing_vectors(system.settings):
            self._observers.log.write_event("learned_off", level="warning", detail=why)
        if self._observers.worker_sync is not None:
            routes = system.gateway.router.routes.values()
            members = [(f"{name} {upstream_settings!r}", system.registry[name]) for name,
                       upstream_settings in system.settings.upstreams.items()]
            self._observers.worker_sync.attach(members, [
                *[(route.name, route.hedging.budget) for route in routes],
                *[(f"of upstream {name}", member.retry_budget.budget) for name, member in members]])

    async def _load_tokenizers(self, system: System) -> None:
        for wrong in await load_tokenizers(system.gateway.router.routes):
            self._observers.log.write_event("tokenizer_unusable", level="warning", detail=wrong)

    async def _load_embedder(self, system: System, embedding: Embedders) -> None:
        """Load the embedder; without it, semantic caches find exact matches only."""
        config, worker, log = system.settings.embedder, self._observers.aggregate.peers.n, self._observers.log.write_event
        async with self._loading:
            try:
                if embedding.foreground is None:
                    await load_embedder(embedding, config, self._clock)
                for wrong in await restore_learned(system.gateway.router.routes, embedding, config, worker):
                    log("semantic_state_unreadable", level="warning", detail=wrong)
                for wrong in mismatched_encoders(system.classifiers):
                    log("classifier_unusable", level="warning", detail=wrong)
            except NoEmbedder as error:
                log("semantic_off", level="warning", detail=str(error))


def serve(settings: Settings, *, siblings: WorkerPeers, n_workers: int, reload: Callable[[], Settings],
          engines: EngineAddresses | None, on_listening: Callable[[Sequence[Address]], None],
          on_draining: Callable[[], None], session_secret: bytes | None = None,
          sockets: Sequence[socket.socket] = ()) -> int:
    """Serve until a signal; returns the exit status. engines: None: this process runs them itself. sockets: bound ones, of
    systemd, the parent, or the file system.
    """
    async def answer_requests(process: Process, current: ActiveSystem, draining: Callable[[], None]) -> int:
        return await run(current, process.make_hooks(on_listening, draining, session_secret), sockets=sockets,
                         reuse_port=n_workers > 1)

    return run_process(settings, siblings=siblings, n_workers=n_workers, reload=reload, engines=engines,
                       on_draining=on_draining, until_stopped=answer_requests)


def work(settings: Settings, *, reload: Callable[[], Settings], on_started: Callable[[], None]) -> int:
    """Run jobs until a signal, without a listener; returns the exit status."""
    async def wait_for_signal(process: Process, _: ActiveSystem, draining: Callable[[], None]) -> int:
        is_stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        handlers = {signal.SIGTERM: is_stopping.set, signal.SIGINT: is_stopping.set, signal.SIGHUP: process.reload}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        on_started()
        await is_stopping.wait()
        draining()
        return 0

    return run_process(settings, siblings=WorkerPeers(), n_workers=1, reload=reload, engines=None,
                       on_draining=lambda: None, until_stopped=wait_for_signal, needs_jobs=True)


UntilStopped = Callable[[Process, ActiveSystem, Callable[[], None]], Awaitable[int]]


def run_process(settings: Settings, *, siblings: WorkerPeers, n_workers: int, reload: Callable[[], Settings],
                engines: EngineAddresses | None, on_draining: Callable[[], None], until_stopped: UntilStopped,
                needs_jobs: bool = False) -> int:
    """One process from start to stop; returns the exit status. until_stopped: calls its argument when the drain begins."""
    worker = siblings.n

    async def main() -> int:
        before, after = raise_descriptor_limit()
        observers = Observers(settings, SystemClock(), siblings)
        observers.writer.start()
        if observers.tracing is not None:
            observers.tracing.start()
        process = Process(observers, engines, reload)
        if siblings.others and observers.worker_sync is None:
            observers.log.write_event("limits_not_shared", level="warning", worker=worker,
                              detail="the temporary folder has no space for the state that workers share, so each worker "
                                     "has its own limits: free some space, and restart the gateway")
        observers.log.write_event("starting", version=__version__, worker=worker, workers=n_workers, pid=os.getpid())
        observers.log.write_event("descriptor_limit", before=before, after=after, clients=min(client_share(after),
                          settings.server.max_connections), worker=worker)
        try:
            current = await process.start(settings, needs_jobs=needs_jobs)
            gc.collect()
            gc.freeze()  # these objects stay alive: a full collection, during which requests wait, need not scan them
            gc.set_threshold(*_GC_THRESHOLDS)

            def draining() -> None:
                observers.batch.flush()
                observers.fleet.part.is_draining = True
                observers.snapshots.feed.close()
                observers.log.write_event("draining", worker=worker)
                process.drain()
                on_draining()

            status = await until_stopped(process, current, draining)
            observers.batch.flush()
            observers.log.write_event("stopped", status=status, worker=worker)
        finally:
            await process.stop()
            has_ended = await _cancel_tasks()
            observers.batch.flush()
            if observers.tracing is not None:
                observers.tracing.close(_LAST_SPANS_S)
            observers.writer.close()
        if not has_ended or process.has_hanging_threads:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(status)  # the loop's runner would wait for the remaining Tasks forever, and the interpreter for threads
        return status

    return uvloop.run(main())


async def _cancel_tasks() -> bool:
    """Cancel all Tasks of this loop; returns whether all of them ended."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    return not left or not (await asyncio.wait(left, timeout=_LAST_TASKS_S))[1]


async def watch_loop(clock: Clock, sink: Sink) -> None:
    """Report ten times a second how late a timer fires, until cancelled. Requests cannot measure this delay of the loop."""
    while True:
        due_at = clock.now() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        sink.emit(LoopLag(max(0.0, clock.now() - due_at)))
