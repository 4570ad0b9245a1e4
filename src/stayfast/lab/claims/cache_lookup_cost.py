"""The cost of a cache look-up: of an exact hit, of a miss with its look-up, call and store, and of the semantic search.

Three gateways share one canned upstream (`harness.loopback`): one without a cache, one that always gets the same question,
and one that gets a new question each time, so that each request is a full miss and evicts an entry. The speed of a core
changes within seconds by more than the cost of a miss, so the three take short turns. The cost of a miss is the median of
the differences between adjacent turns with and without a cache; its range is that of the rounds' medians. The memory layout
of a process changes its speed by as much for its whole life, so each round has new processes.

A miss is measured without sockets as well: two whole systems in this process, one without a cache and one with a new
question each time, in front of an upstream that answers in the next iteration of the event loop. They take turns of a few
dozen requests, and the fastest tenth of each one's turns counts, as other work on the machine slows down the rest. The cost
of a miss has no goal: over sockets most of it is memory that the kernel's work evicted from the CPU cache, which varies by
the hour.

Misses of the semantic cache have few callers, as an overloaded embedder drops questions. Their CPU is that of the thread of
the event loop, their time is the gateway's own `cache` stage. The vectors of the search are synthetic and clustered like
real questions, in one scope. The embedded questions are short and all different, so that no cache of vectors helps.

When wrong: prompts here are short and equal but for their question. Different prompts take some 5 us more, and 2 us per
kilobyte. The cost of opening connections is spread over a turn's answers. Without sockets code and memory are as warm as
under full load, and turns with a garbage collection are not among the fastest.
"""

import asyncio
import http.client
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, count
from random import Random
from statistics import median
from typing import Any, Final

import msgspec

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.types import Api
from stayfast.lab.harness.claim import (
    ClaimResult,
    Conditions,
    Extent,
    Figure,
    SetUpFailed,
    Verdict,
    mark_invalid,
    median_and_range,
)
from stayfast.lab.harness.intervals import quantile_interval
from stayfast.lab.harness.load import measure_cpu_us
from stayfast.lab.harness.loopback import BODY, numbered_question
from stayfast.lab.harness.processes import ONE_CORE, Processes, ServerProcess, gateway_settings
from stayfast.lab.harness.virtual import read_body
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated.settings import KINDS
from stayfast.lab.workloads.in_memory import BodyStream, load_embedder
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.cache.similarity import N_NEAREST, SemanticConfig
from stayfast.settings import SettingsText, load_settings
from stayfast.stores.embedder import EmbedderConfig
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import decode

HIT_GOAL_US: Final = 150.0
ALONE_GOAL_MS, WITH_GOAL_MS = 5.0, 8.0
WITHIN_MS: Final = SemanticConfig().lookup_timeout_s * 1e3
CACHE: Final[Mapping[str, Any]] = {"mode": "exact", "max_bytes": 524_288, "max_answer_bytes": 65_536}
SEMANTIC: Final[Mapping[str, Any]] = {"mode": "semantic", "judge": "local", "eligible": {"min_content_words": 2}}
N_CALLERS, N_CALLERS_SEMANTIC = 64, 2
WARMUP_S: Final = 1.0
TURN_S: Final = 0.25
ORDERS: Final = (("off", "miss", "hit"), ("miss", "off", "hit"))  # alternating, so that a drift in speed cancels out

N_WARMUP: Final = 1500  # requests without sockets, until the cache is full and evicts
N_PER_TURN: Final = 40  # requests
TURNS_PER_SECOND: Final = 150  # of the run's duration
_SDK_HEADERS: Final = (("x-stainless-retry-count", "0"),)  # as sent by OpenAI's SDKs

N_TIMED: Final = 500  # questions whose cache stage is timed
READY_WITHIN_S: Final = 30.0
_ENTRIES: Final = re.compile(rb"^stayfast_semantic_entries\{[^}]*\} ([1-9]\d*)", re.MULTILINE)
_STAGE: Final = re.compile(r"(?:^|, )cache;dur=([0-9.]+)")

N_DIMS, N_TO_A_CLUSTER, SPREAD = 384, 50, 0.6
SCOPE: Final = b"one scope"
N_LOOKUPS: Final = 400  # per round
N_CHECKED: Final = 50
MIN_RAN: Final = 0.95
_REPORT_EVERY: Final = 10_000
_WORDS: Final = (
    "card", "payment", "transfer", "refund", "account", "limit", "order", "delivery", "address", "invoice", "password",
    "login", "plan", "upgrade", "cancel", "late", "missing", "wrong", "change", "update", "status")


@dataclass(frozen=True, slots=True)
class CacheLookupCost:
    """n of an extent: vectors in one scope. real_s: of each of a round's three loads. cache: of the routes with a cache."""

    full: Extent = Extent(100_000, 5.0, n_rounds=7)
    quick: Extent = Extent(15_000, 0.8, n_rounds=6)
    cache: Mapping[str, Any] = field(default_factory=lambda: CACHE)

    name = "lookup"
    statement = (f"An answer from the exact cache takes less than {HIT_GOAL_US:g} us of CPU, HTTP included. The nearest of "
            f"100,000 questions are found within {ALONE_GOAL_MS:g} ms at p99, {WITH_GOAL_MS:g} ms with the embedding. A "
            f"semantic miss takes at most {WITHIN_MS:g} ms at p99.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        meter = LookupMeter()
        for number in range(1, extent.n_rounds + 1):
            conditions.report_progress(f"round {number} of {extent.n_rounds}")
            async with Processes() as processes:
                upstreams = {"canned": f"{(await processes.start_canned_upstream()).url}/v1"}
                gateways = {"off": await processes.start_gateway(gateway_settings(upstreams)),
                            "hit": await processes.start_gateway(gateway_settings(upstreams, cache=self.cache)),
                            "miss": await processes.start_gateway(gateway_settings(upstreams, cache=self.cache))}
                if not processes.reserve_core(*gateways.values()):
                    conditions.report_progress(ONE_CORE)
                await meter.run_round(gateways, extent.real_s)
        lookups, spoiled = await measure_lookups(extent, conditions)
        figures = (*meter.figures(), *await measure_without_sockets(extent, self.cache, conditions),
                   *await measure_semantic_misses(extent, conditions), *lookups)
        return ClaimResult(figures, ("CPU counts all threads and the kernel's share.",), spoiled)


class LookupMeter:
    """Runs rounds of turns on the gateways `off`, `hit` and `miss`."""

    def __init__(self) -> None:
        self._numbers = count()  # of questions
        self.rounds: list[list[dict[str, float]]] = []  # by round and turn: CPU us per answer, by gateway
        self._n_failed = 0

    async def run_round(self, gateways: Mapping[str, ServerProcess], seconds: float) -> None:
        """`seconds` of load on each gateway, in turns, after a warm-up of each."""
        for name in ORDERS[0]:
            await self._run_turn(gateways, name, WARMUP_S)
        n_turns = max(1, round(seconds / TURN_S))
        self.rounds.append([{name: await self._run_turn(gateways, name, seconds / n_turns) for name in ORDERS[number % 2]}
                            for number in range(n_turns)])

    async def _run_turn(self, gateways: Mapping[str, ServerProcess], name: str, seconds: float) -> float:
        numbers = None if name == "hit" else self._numbers
        cpu_us, n_failed = await measure_cpu_us(gateways[name], seconds, N_CALLERS, numbers)
        self._n_failed += n_failed
        return cpu_us

    def figures(self) -> list[Figure]:
        hit, off = ([[turn[name] for turn in turns] for turns in self.rounds] for name in ("hit", "off"))
        added = [[turn["miss"] - turn["off"] for turn in turns] for turns in self.rounds]
        return [_figure_of_turns("CPU of a hit", hit, HIT_GOAL_US), _figure_of_turns("CPU that a miss adds", added),
                _figure_of_turns("CPU of an answer without a cache", off),
                Figure.count("failed requests", self._n_failed)]


def _figure_of_turns(name: str, rounds: list[list[float]], goal: float | None = None) -> Figure:
    """The median of all turns, with the interval of the rounds' medians."""
    value, _, _ = median_and_range(list(chain.from_iterable(rounds)))
    low, high = quantile_interval([median(turns) for turns in rounds], 0.5)
    return Figure(name, value, "us", goal, low=low, high=high)


async def measure_without_sockets(extent: Extent, cache: Mapping[str, Any], conditions: Conditions) -> list[Figure]:
    """The cost of a miss in this process. cache: the route's settings."""
    clock, numbers, rounds = SystemClock(), count(), []
    for number in range(extent.n_rounds):
        conditions.report_progress(f"without sockets, round {number + 1} of {extent.n_rounds}")
        systems = off, miss = canned_system(None, clock), canned_system(cache, clock)
        for system in systems:
            await _measure_request_us(system.gateway, clock, numbers, N_WARMUP)
        turns = []
        for turn in range(max(1, round(extent.real_s * TURNS_PER_SECOND))):
            order = systems if turn % 2 else systems[::-1]
            cpu_us = {id(system): await _measure_request_us(system.gateway, clock, numbers, N_PER_TURN) for system in order}
            turns.append((cpu_us[id(off)], cpu_us[id(miss)]))
        rounds.append(turns)
    return figures_without_sockets(rounds)


def figures_without_sockets(rounds: list[list[tuple[float, float]]]) -> list[Figure]:
    """rounds: by turn, CPU us of a request without a cache and of a miss. The intervals are those of the rounds."""
    off, miss = ([_fastest_tenth(turn[which] for turn in turns) for turns in (list(chain.from_iterable(rounds)), *rounds)]
                 for which in (0, 1))
    added = [with_cache - without for without, with_cache in zip(off, miss, strict=True)]
    found = []
    for name, values in (("CPU that a miss adds, without sockets", added),
                         ("CPU of a request without a cache, without sockets", off)):
        low, high = quantile_interval(values[1:], 0.5)
        found.append(Figure(name, values[0], "us", low=low, high=high))
    return found


def _fastest_tenth(turns_us: Iterable[float]) -> float:
    """The tenth percentile."""
    ordered = sorted(turns_us)
    return ordered[len(ordered) // 10]


def canned_system(cache: Mapping[str, Any] | None, clock: SystemClock) -> System:
    """A system in this process with a canned upstream. cache: the route's cache settings, if it has one."""
    route = {} if cache is None else {"cache": cache}
    content = {**gateway_settings({"canned": "http://127.0.0.1:9/v1"}, **route), "log": {"requests": False}}
    settings = load_settings(SettingsText("<lookup>", msgspec.json.encode(content).decode()), {}, kinds=KINDS)
    system = build(settings, Observers(settings, clock), {}, clock, Random(1))
    for member in system.registry:
        member.upstream = _CannedUpstream()
    return system


async def _measure_request_us(gateway: Gateway, clock: SystemClock, numbers: Iterator[int], n: int) -> float:
    """CPU us per request of n sequential requests."""
    before_s = clock.cpu()
    for _ in range(n):
        await send_numbered(gateway, next(numbers), clock)
    return (clock.cpu() - before_s) / n * 1e6


async def send_numbered(gateway: Gateway, number: int, clock: SystemClock) -> str | None:
    """Send the question with this number, and read the answer. Returns its `x-cache` header."""
    request = decode(Api.CHAT, numbered_question(number))
    reply = await gateway.serve(request, Arrival("req_0123456789abcdef", clock.now(), headers=_SDK_HEADERS))
    reply.server_timing()
    await read_body(reply)
    return reply.cache


class _CannedUpstream:
    """Returns one canned answer in the next iteration of the event loop."""

    name, kind, always_streams = "canned", "openai", False

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        loop = asyncio.get_running_loop()
        next_iteration: asyncio.Future[None] = loop.create_future()
        loop.call_soon(next_iteration.set_result, None)
        await next_iteration
        return BodyStream(call, BODY, "canned")

    def close(self) -> None:
        pass


async def measure_semantic_misses(extent: Extent, conditions: Conditions) -> list[Figure]:
    """The CPU cost and the duration of a semantic miss. Raises SetUpFailed."""
    async with Processes() as processes:
        upstreams = {"canned": f"{(await processes.start_canned_upstream()).url}/v1"}
        off = await processes.start_gateway(gateway_settings(upstreams))
        semantic = await processes.start_gateway(gateway_settings(upstreams, cache=SEMANTIC))
        await _wait_until_ready(semantic)
        numbers, added_us, n_failed = count(), [], 0
        for number in range(extent.n_rounds):
            conditions.report_progress(f"semantic misses, round {number + 1} of {extent.n_rounds}")
            (off_us, n_off), (semantic_us, n_semantic) = [
                await measure_cpu_us(server, extent.real_s, N_CALLERS_SEMANTIC, numbers, first_thread=True)
                for server in (off, semantic)]
            n_failed += n_off + n_semantic
            added_us.append(semantic_us - off_us)
        stages_s = [stage_ms / 1e3 for stage_ms in await asyncio.to_thread(_measure_stage_ms, semantic, N_TIMED)]
    return [Figure.of_rounds("CPU of the loop that a semantic miss adds", added_us, "us"),
            Figure.quantile_s("stage cache of a semantic miss, p50", stages_s, 0.5),
            Figure.quantile_s("stage cache of a semantic miss, p99", stages_s, 0.99, WITHIN_MS / 1e3),
            Figure.count("failed requests, semantic", n_failed)]


async def _wait_until_ready(server: ServerProcess) -> None:
    """Send questions until the cache has an entry, which shows that the embedder is loaded. Raises SetUpFailed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READY_WITHIN_S
    while loop.time() < until:
        await asyncio.to_thread(_measure_stage_ms, server, 1)
        if _ENTRIES.search(await server.read("/metrics")):
            return
        await asyncio.sleep(0.2)
    raise SetUpFailed(f"the gateway's semantic cache was not ready within {READY_WITHIN_S:g} s")


def _measure_stage_ms(server: ServerProcess, n: int) -> list[float]:
    """Milliseconds of the cache stage for n sequential questions. Raises SetUpFailed."""
    connection, found = server.connect(), []
    try:
        for number in range(n):
            question = f"Where does one find the manual of machine {os.urandom(3).hex()} {number}?"
            body = {"model": "m", "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": question}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            stage = _STAGE.search(answer.headers.get("server-timing", ""))
            if answer.status != 200 or stage is None:
                raise SetUpFailed(f"a question got status {answer.status}, without a duration of the stage cache")
            found.append(float(stage[1]))
    except (OSError, http.client.HTTPException) as error:
        raise SetUpFailed(f"the gateway did not answer: {type(error).__name__}") from None
    finally:
        connection.close()
    return found


async def measure_lookups(extent: Extent, conditions: Conditions) -> tuple[tuple[Figure, ...], str | None]:
    """p99 of the search among n vectors, without and with the embedding, and the recall. Also the reason why they are
    invalid, if they fall short on a busy machine. Raises SetUpFailed.
    """
    model = load_embedder()
    numpy, vectors = import_module("numpy"), import_module("stayfast.stores.vectors")
    batched = import_module("stayfast.stores.batched_embedder")
    n = extent.n
    points = _draw_clustered(numpy, n + N_LOOKUPS, conditions.seed)
    index, queries = vectors.Vectors(N_DIMS), points[n:]
    for key in range(n):
        if key % _REPORT_EVERY == 0:
            conditions.report_progress(f"{key:,} of {n:,} vectors")
        index.add(SCOPE, key, points[key])
    clock, rng = SystemClock(), Random(conditions.seed)
    embedder = batched.BatchedEmbedder(model, EmbedderConfig(), clock)
    alone_ms, with_ms, ran_share = [], [], 0.0
    for number in range(extent.n_rounds):
        conditions.report_progress(f"search, round {number + 1} of {extent.n_rounds}")
        began_s, began_at = time.thread_time(), clock.now()
        alone_ms.append(ExactDistribution([_search_ms(index, vector, clock, clock.now())
                                           for vector in queries]).quantile(0.99))
        ran_share += (time.thread_time() - began_s) / (clock.now() - began_at) / extent.n_rounds
        texts = [f"{' '.join(rng.sample(_WORDS, 6))} {number} {place}" for place in range(N_LOOKUPS)]
        durations_ms = []
        for text in texts:
            began_at = clock.now()
            durations_ms.append(_search_ms(index, (await embedder.embed([text]))[0], clock, began_at))
        with_ms.append(ExactDistribution(durations_ms).quantile(0.99))
    recall = _measure_recall(numpy, index, points[:n], queries[:N_CHECKED])
    figures = (Figure.of_rounds(f"semantic look-up among {n:,}, p99", alone_ms, "ms", ALONE_GOAL_MS),
               Figure.of_rounds(f"with the embedding among {n:,}, p99", with_ms, "ms", WITH_GOAL_MS))
    spoiled = busy_reason(figures, ran_share)
    return (*mark_invalid(figures, spoiled), Figure.percent(f"of the {N_NEAREST} nearest, found", recall)), spoiled


def busy_reason(figures: Iterable[Figure], ran_share: float) -> str | None:
    """Why durations that fall short show nothing: the searching thread, which never waits, ran for less than MIN_RAN of its
    time.
    """
    if ran_share >= MIN_RAN or not any(figure.verdict is Verdict.FALLS_SHORT for figure in figures):
        return None
    return (f"other processes took {1 - ran_share:.0%} of the time of the searching thread, which may explain the long "
            "searches")


def _search_ms(index: Any, vector: Any, clock: Clock, began_at: float) -> float:
    index.nearest(SCOPE, vector, N_NEAREST)
    return (clock.now() - began_at) * 1e3


def _draw_clustered(numpy: Any, n: int, seed: int) -> Any:
    """Unit vectors, float32 [n, N_DIMS]."""
    rng = numpy.random.default_rng(seed)
    centres = rng.standard_normal((n // N_TO_A_CLUSTER, N_DIMS), dtype=numpy.float32)
    points = centres[rng.integers(0, len(centres), n)] + SPREAD * rng.standard_normal((n, N_DIMS), dtype=numpy.float32)
    return points / numpy.linalg.norm(points, axis=1, keepdims=True)


def _measure_recall(numpy: Any, index: Any, points: Any, queries: Any) -> float:
    """The share of the true nearest neighbours that the index finds."""
    n_found = 0
    for vector in queries:
        nearest = numpy.argsort(-(points @ vector))[:N_NEAREST].tolist()
        n_found += len({key for key, _ in index.nearest(SCOPE, vector, N_NEAREST)}.intersection(nearest))
    return n_found / (len(queries) * N_NEAREST)
