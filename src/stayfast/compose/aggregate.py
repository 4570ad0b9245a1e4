"""What all workers of one parent report together: metrics, recent requests, caches; and purges in all of them.

Prometheus takes a decreasing counter for a restart, so no counter may decrease. A worker writes its counts to disk before it
shows them; the successor of a crashed worker continues from there, and the written counts stand for a worker that does not
answer. Counts between the last scrape and a crash are lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain
from pathlib import Path
from platform import python_version
from typing import Any

import msgspec

from stayfast import __version__
from stayfast.compose.cache_reports import Caches, PurgedStore, WorkerCacheState, encode_cache_stats, encode_purged
from stayfast.compose.engine_metrics import SignalPublisher, publish_alone
from stayfast.compose.fleet_host import Fleet
from stayfast.compose.history_reports import HistoryFigures, encode_figures, merge_deleted
from stayfast.compose.scaling import Loads, PoolScaling
from stayfast.core.events import RequestDone
from stayfast.core.prompt_versions import PromptComparison
from stayfast.observe.metrics.aliases import alias_lines
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.counters import MetricsSnapshot, Totals
from stayfast.observe.metrics.definitions import BUILD_INFO, WORKERS
from stayfast.observe.recent_requests import RecentRequests
from stayfast.observe.request_filter import wait_s
from stayfast.observe.traffic_rows import TrafficLine, TrafficReport, list_in_steps
from stayfast.observe.waterfall import RequestSummary, Waterfall, build_waterfall, summarize_request, without_details
from stayfast.pipeline.context.history_records import deletion_tags
from stayfast.pipeline.prompt_versions import PromptVersions
from stayfast.server.backend import PurgeFilter, RecentRequestsQuery
from stayfast.turns.remote_resume import RemoteTurnPart, ResumeRequest
from stayfast.turns.served import ServedTurn
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.fleet.records import FleetNews, WorkerReport


class TurnRegistry:
    """The turns of this worker, for the other workers."""

    __slots__ = ("_served",)

    def __init__(self, served: Callable[[], Mapping[str, ServedTurn]]) -> None:
        """served: those of the running system, by upstream."""
        self._served = served

    async def find_turn(self, sought: ResumeRequest) -> RemoteTurnPart | None:
        """The outcome of a turn of this worker; None: another worker has it, or none."""
        served = self._served().get(sought.upstream)
        return await served.find_turn(sought) if served is not None else None

    def cancel_all(self) -> None:
        """Cancel all running turns, at the end of the process."""
        for served in self._served().values():
            served.cancel_all()


_N_PIECES_AT_A_TIME = 16  # series written in one turn of the loop: a quarter of a millisecond
_N_FACTS_AT_A_TIME = 25  # facts decoded in one turn of the loop: half a millisecond
_NORMAL_S = 3600.0
NO_POOLS = b'{"pools":{}}'


class _Question(msgspec.Struct, frozen=True):
    """A message from one worker to another."""

    # metrics, list, one, caches, purge, answer, histories, traffic, prompts, turn, fleet, snapshot, engines, signals, loads,
    # scaling, drain, undrain, drained
    what: str
    query: RecentRequestsQuery = RecentRequestsQuery()
    request_id: str = ""
    purge: PurgeFilter = PurgeFilter()
    key: bytes = b""  # of an answer; or a message about snapshots or signals
    turn: ResumeRequest | None = None
    news: FleetNews | None = None


def wrap_snapshot_message(message: bytes) -> bytes:
    """A message about snapshots, for another worker."""
    return msgspec.msgpack.encode(_Question("snapshot", key=message))


def wrap_signals(message: bytes) -> bytes:
    """Readings of engines, for another worker."""
    return msgspec.msgpack.encode(_Question("signals", key=message))


@dataclass(frozen=True, slots=True)
class WorkerAggregate:
    """One worker's view of all workers. Belongs to one loop."""

    metrics_sink: MetricsSink
    recent: RecentRequests
    flush_events: Callable[[], None]  # called before either is read
    peers: WorkerPeers
    caches: Caches
    turns: TurnRegistry
    fleet: Fleet | None = None  # None: in a laboratory
    answer_snapshot: Callable[[bytes], Awaitable[bytes]] | None = None
    has_aliases: bool = False  # also the metrics' common names
    read_engines: Callable[[], Mapping[str, Mapping[str, float]]] = dict  # engines' figures by upstream, for these names
    signals: SignalPublisher = field(default_factory=publish_alone)  # of engines; its board is for all policies
    versions: PromptVersions | None = None  # of system prompts; None: in a laboratory
    shows_prompts: Callable[[], bool] = bool  # whether texts of prompts may leave this worker

    scaling: PoolScaling | None = None  # None: in a laboratory
    set_drained: Callable[[str, str], bool] | None = None  # drain or undrain an upstream; whether it has phases
    list_drained: Callable[[], list[str]] = list  # the upstreams that this worker drains

    async def start(self) -> None:
        """Take over the counts of this worker's predecessor, and answer the others. Raises OSError."""
        last = self._read_snapshot_of(self.peers.n)
        if last is not None:
            self.metrics_sink.resume_from(last)
        await self.peers.listen(self._answer)

    async def metrics(self) -> bytes:
        """The metrics of all workers, in Prometheus's text format."""
        whole, n_answered, n_silent = await self._add_up_workers()
        workers = whole.gauges[WORKERS.name]
        workers[("answered",)], workers[("silent",)] = n_answered, n_silent
        whole.gauges[BUILD_INFO.name][__version__, python_version()] = 1
        parts = []
        aliases = alias_lines(whole, await self._read_engines_anywhere()) if self.has_aliases else ()
        for number, piece in enumerate(chain(whole.exposition(), aliases)):
            parts.append(piece)
            if number % _N_PIECES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return "".join(parts).encode()

    async def _read_engines_anywhere(self) -> Mapping[str, Mapping[str, float]]:
        """Worker 0 reads the engines for all workers."""
        if not self.peers.n:
            return self.read_engines()
        answer = await self.peers.query_one(0, msgspec.msgpack.encode(_Question("engines")))
        return msgspec.msgpack.decode(answer, type=dict[str, dict[str, float]]) if answer else {}

    async def _add_up_workers(self) -> tuple[Totals, int, int]:
        """The counts of all workers; how many workers answered, and how many did not."""
        whole = Totals(self.metrics_sink.totals.bounds_s)
        await _run_in_steps(whole.add_in_steps(self._take_snapshot()))
        answers = await self.peers.query(msgspec.msgpack.encode(_Question("metrics")))
        n_silent = 0
        for n, answer in answers.items():
            states = _decode_snapshot(answer)
            if states is not None:
                await _run_in_steps(whole.add_in_steps(states))
                continue
            n_silent += 1
            last = self._read_snapshot_of(n)
            if last is not None:
                await _run_in_steps(whole.add_in_steps(last, is_of_now=False))
        return whole, 1 + len(answers) - n_silent, n_silent

    async def read_other_loads(self) -> list[Loads]:
        """The loads of pools at the other workers that answer."""
        return await self._query_others(_Question("loads"), Loads)

    async def read_scaling(self) -> bytes:
        """How many replicas each pool needs, as JSON; worker 0 knows."""
        if not self.peers.n:
            return self._answer_about_replicas("scaling")
        return await self.peers.query_one(0, msgspec.msgpack.encode(_Question("scaling"))) or NO_POOLS

    async def drain_upstream(self, name: str, what: str) -> bytes | None:
        """Drain or undrain an upstream in all workers; how many did, as JSON. None: it is unknown, or has no phases."""
        question = _Question(what, request_id=name)
        has_phases = self._answer_about_replicas(question.what, name)
        if not has_phases:
            return None
        answers = await self.peers.query(msgspec.msgpack.encode(question))
        n_silent = sum(not answer for answer in answers.values())
        return msgspec.json.encode({"upstream": name, "draining": what == "drain", "workers": 1 + len(answers) - n_silent,
                                    "silent_workers": n_silent})

    async def adopt_drains(self) -> None:
        """Drain what the other workers drain, as the successor of a worker that ended."""
        for names in await self._query_others(_Question("drained"), list[str]):
            for name in names:
                self._answer_about_replicas("drain", name)

    def _answer_about_replicas(self, what: str, name: str = "") -> bytes:
        """Empty: no."""
        if what == "drained":
            return msgspec.msgpack.encode(self.list_drained())
        if what == "engines":
            return msgspec.msgpack.encode(self.read_engines())
        if what in ("drain", "undrain"):
            return b"1" if self.set_drained is not None and self.set_drained(name, what) else b""
        if self.scaling is None:
            return NO_POOLS if what == "scaling" else b""
        return self.scaling.report() if what == "scaling" else msgspec.msgpack.encode(self.scaling.read_loads())

    async def cache_stats(self) -> bytes:
        """Contents and savings of the caches of all routes, over all workers, as JSON."""
        whole, _, _ = await self._add_up_workers()
        return encode_cache_stats([await self.caches.stats(), *await self._query_others(_Question("caches"),
                                                                                  dict[str, WorkerCacheState])],
                      whole)

    async def purge(self, what: PurgeFilter) -> bytes:
        """Drop stored answers in all workers of all gateways; their number, as JSON. This gateway first: a shared store is
        then empty for the others.
        """
        purged = await self._purge_workers(what)
        remote = await self.fleet.purge_elsewhere(what) if self.fleet is not None else None
        if remote is None:
            return encode_purged(purged)
        for result in remote.results:
            purged += msgspec.msgpack.decode(result, type=list[list[PurgedStore]])
        return encode_purged(purged, remote.unconfirmed)

    async def histories(self) -> bytes:
        """What the histories of all routes have done, over all workers, as JSON."""
        others = await self._query_others(_Question("histories"), dict[str, HistoryFigures])
        return encode_figures([self.caches.read_histories(), *others])

    async def delete_conversation(self, name: str, tenant: str | None) -> bytes | None:
        """Delete summaries in all workers of all gateways; their number, as JSON. None: there was none, and all replied."""
        deleted = [msgspec.json.decode(await self.purge(PurgeFilter(tenant=tenant, tag=tag))) for tag in deletion_tags(name)]
        return merge_deleted(deleted)

    async def purge_here(self, what: PurgeFilter) -> bytes:
        """A purge of another gateway, in all workers; the result for `purge` there."""
        return msgspec.msgpack.encode(await self._purge_workers(what))

    async def _purge_workers(self, what: PurgeFilter) -> list[list[PurgedStore]]:
        answers = await self.peers.query(msgspec.msgpack.encode(_Question("purge", purge=what)))
        others = [msgspec.msgpack.decode(answer, type=list[PurgedStore]) for answer in answers.values() if answer]
        silent = [[PurgedStore(why_unavailable=f"worker {n} did not answer") for n, answer in answers.items() if not answer]]
        return [await self.caches.purge(what), *others, *silent]

    async def gateways(self) -> bytes:
        """All gateways of the fleet, as JSON."""
        return msgspec.json.encode(await self.fleet.gateways(self) if self.fleet is not None else {})

    async def report(self, news: Callable[[int], FleetNews]) -> dict[int, WorkerReport]:
        """Give each worker its news; the reports of the ones that answered, by number."""
        if self.fleet is None:
            return {}
        own = self.fleet.part.receive(news(self.peers.n))
        answers = await self.peers.query_each(
            lambda worker: msgspec.msgpack.encode(_Question("fleet", news=news(worker))))
        return {self.peers.n: own, **{worker: msgspec.msgpack.decode(answer, type=WorkerReport)
                                      for worker, answer in answers.items() if answer}}

    async def inspect_answer(self, key: bytes) -> bytes | None:
        """The metadata of one stored answer, as JSON; None: no worker has it."""
        found = await self.caches.inspect_answer(key)
        if found is not None:
            return msgspec.json.encode(found)
        answers = await self.peers.query(msgspec.msgpack.encode(_Question("answer", key=key)))
        return next((answer for answer in answers.values() if answer), None)

    async def recent_requests(self, query: RecentRequestsQuery) -> bytes:
        """Recent requests of all workers, the newest or the slowest first, as JSON."""
        found = await self._list_requests(query)
        for others in await self._query_others(_Question("list", query), list[RequestSummary]):
            found += others
        found.sort(key=lambda one: one.wait_ms if query.is_slowest else one.ended_at, reverse=True)
        return msgspec.json.encode({"object": "list", "data": found[:query.n]})

    async def compare_prompts(self, version_id: str, before: str) -> bytes | None:
        """Two versions compared, by a worker that has the texts of both, else by any that has the text of the later one."""
        found = await self._compare_prompts(version_id, before)
        if found is not None and (not before or found.before):
            return msgspec.msgpack.encode(found)
        question = _Question("prompts", request_id=f"{version_id} {before}")
        everything = [found, *await self._query_others(question, PromptComparison | None)]
        known = [one for one in everything if one is not None]
        best = max(known, key=lambda one: bool(one.before), default=None)
        return msgspec.msgpack.encode(best) if best is not None else None

    async def _compare_prompts(self, version_id: str, before: str) -> PromptComparison | None:
        return await self.versions.compare(version_id, before, has_text=self.shows_prompts()) if self.versions else None

    async def traffic(self) -> bytes:
        """Figures of the requests in the memory of all workers, newest first, as JSON."""
        others = await self._query_others(_Question("traffic"), list[TrafficLine])
        rows = [*await self._list_traffic(), *chain.from_iterable(others)]
        rows.sort(key=lambda row: row.arrived_at, reverse=True)
        return msgspec.json.encode(TrafficReport(rows))

    async def turn(self, sought: ResumeRequest) -> RemoteTurnPart | None:
        """The outcome of a turn of another worker; None: no worker has it."""
        found: list[RemoteTurnPart | None] = await self._query_others(_Question("turn", turn=sought), RemoteTurnPart | None)
        return next((event for event in found if event is not None), None)

    async def recent_request(self, request_id: str, tenant: str | None) -> bytes | None:
        """One request in full, as JSON; None: no worker has it, or it is another tenant's."""
        question = _Question("one", RecentRequestsQuery(tenant=tenant), request_id)
        found = [self._find_request(question)]
        if found[0] is None:
            found = await self._query_others(question, Waterfall | None)
        newest = max((one for one in found if one is not None), key=lambda one: one.ended_at, default=None)
        return msgspec.json.encode(newest) if newest is not None else None

    async def _query_others(self, question: _Question, kind: Any) -> list[Any]:
        """The answers of the other workers, decoded as `kind`."""
        answers = await self.peers.query(msgspec.msgpack.encode(question))
        return [msgspec.msgpack.decode(answer, type=kind) for answer in answers.values() if answer]

    async def _answer(self, message: bytes) -> bytes:
        question = msgspec.msgpack.decode(message, type=_Question)
        match question.what:
            case "metrics":
                return self._write_snapshot(self._snapshot())
            case "list":
                return msgspec.msgpack.encode(await self._list_requests(question.query))
            case "caches" | "purge" | "answer" | "histories":
                return await self._answer_about_caches(question)
            case "traffic" | "prompts":
                return await self._answer_about_prompts(question)
            case "turn":
                return await self._find_turn(question.turn)
            case "snapshot":
                return await self._answer_about_snapshots(question.key)
            case "engines" | "signals":
                return self._answer_about_engines(question)
            case "loads" | "scaling" | "drain" | "undrain" | "drained":
                return self._answer_about_replicas(question.what, question.request_id)
            case "fleet":
                return self._report_to_speaker(question.news)
            case _:
                return msgspec.msgpack.encode(self._find_request(question))

    async def _answer_about_prompts(self, question: _Question) -> bytes:
        if question.what == "traffic":
            return msgspec.msgpack.encode(await self._list_traffic())
        return msgspec.msgpack.encode(await self._compare_prompts(*question.request_id.split(" ", 1)))

    async def _answer_about_caches(self, question: _Question) -> bytes:
        if question.what == "answer":
            found = await self.caches.inspect_answer(question.key)
            return msgspec.json.encode(found) if found is not None else b""
        if question.what == "histories":
            return msgspec.msgpack.encode(self.caches.read_histories())
        return msgspec.msgpack.encode(await self.caches.stats() if question.what == "caches"
                                      else await self.caches.purge(question.purge))

    def _answer_about_engines(self, question: _Question) -> bytes:
        if question.what == "signals":
            self.signals.receive(question.key)
            return b""
        return msgspec.msgpack.encode(self.read_engines())

    async def _find_turn(self, sought: ResumeRequest | None) -> bytes:
        return msgspec.msgpack.encode(await self.turns.find_turn(sought) if sought is not None else None)

    async def _answer_about_snapshots(self, message: bytes) -> bytes:
        return await self.answer_snapshot(message) if self.answer_snapshot is not None else b""

    def _report_to_speaker(self, news: FleetNews | None) -> bytes:
        if self.fleet is None or news is None:
            return b""
        return msgspec.msgpack.encode(self.fleet.part.receive(news))

    async def _list_traffic(self) -> list[TrafficLine]:
        self.flush_events()
        return await list_in_steps(self.recent.newest_first())

    async def _list_requests(self, query: RecentRequestsQuery) -> list[RequestSummary]:
        self.flush_events()
        found: list[RequestDone] = []
        facts = self.recent.both_lists() if query.is_slowest else self.recent.newest_first(is_notable=query.is_notable)
        for number, fact in enumerate(_visible(facts, query.tenant)):
            if query.wanted.matches(fact):
                found.append(fact)
            if len(found) == query.n and not query.is_slowest:
                break
            if number % _N_FACTS_AT_A_TIME == _N_FACTS_AT_A_TIME - 1:
                await asyncio.sleep(0)
        return [summarize_request(fact) for fact in (nlargest(query.n, found, key=wait_s) if query.is_slowest else found)]

    def _find_request(self, question: _Question) -> Waterfall | None:
        self.flush_events()
        tenant = question.query.tenant
        for fact in _visible(self.recent.find_by_id(question.request_id), tenant):
            seen = fact if tenant is None else without_details(fact)
            return build_waterfall(seen, self.metrics_sink.first_tokens(fact.route, _NORMAL_S))
        return None

    def _snapshot(self) -> MetricsSnapshot:
        self.flush_events()
        return self.metrics_sink.snapshot()

    def _take_snapshot(self) -> MetricsSnapshot:
        """A snapshot; with several workers it is written to disk before it is shown."""
        snapshot = self._snapshot()
        if self.peers.others:
            self._write_snapshot(snapshot)
        return snapshot

    def _write_snapshot(self, snapshot: MetricsSnapshot) -> bytes:
        """Write the snapshot to disk; returns its bytes."""
        data = msgspec.msgpack.encode(snapshot)
        path = self._path(self.peers.n)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.replace(path)
        return data

    def _read_snapshot_of(self, n: int) -> MetricsSnapshot | None:
        if not self.peers.others:
            return None
        try:
            return _decode_snapshot(self._path(n).read_bytes())
        except FileNotFoundError:
            return None

    def _path(self, n: int) -> Path:
        assert self.peers.directory is not None
        return self.peers.directory / f"{n}.counts"


def _visible(facts: Iterable[RequestDone], tenant: str | None) -> Iterable[RequestDone]:
    """The requests that a tenant may see; None: all of them."""
    return (fact for fact in facts if tenant is None or fact.tenant == tenant)


def _decode_snapshot(data: bytes | None) -> MetricsSnapshot | None:
    """None: no answer, another version, or incomplete."""
    if not data:
        return None
    try:
        return msgspec.msgpack.decode(data, type=MetricsSnapshot)
    except msgspec.DecodeError:
        return None


async def _run_in_steps(work: Iterator[None]) -> None:
    """Run all steps, with a turn of the loop between them."""
    for _ in work:
        await asyncio.sleep(0)
