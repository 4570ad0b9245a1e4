"""The cost of a look-up: an exact hit, a miss that is looked up, called and stored, and the search for a similar question.

Three gateways in front of one canned upstream (`harness.loopback`): one without a cache, one whose callers always send the
same, and one whose every question is another, so that each goes the whole way of a miss, and evicts an entry. How quick a
core is changes within seconds by more than a miss costs, so the three take short turns: what a miss adds is the median of
the differences to the turn beside it, of the gateway without a cache, and its spread is that of the rounds' own medians.
Where a process's code and memory come to lie makes it quicker or slower by as much again, for as long as it runs, so each
round has processes of its own.

A miss is measured without sockets as well: two whole systems in this process, with every observer but the log, one without a
cache and one whose every question is another, behind them an upstream whose answer is there a turn of the loop later. They
take turns of a few dozen requests, and the quickest tenth of each one's turns counts: what makes the others half as slow
again is other work on the machine. What a miss adds has no goal: on sockets most of it is memory that has to be fetched
again between the kernel's work, which changes by the hour.

A miss of the semantic cache is asked for by few callers, as the embedder drops a question when it is behind. Its CPU is that
of the thread which serves; its time is what the gateway reports of its stage `cache`. The vectors of the search are
synthetic: clusters as questions have them, so that neighbours are close and the graph has to look. They are one scope's;
questions that are embedded are short and all different, so that no cache of vectors helps.

When wrong: prompts here are short, and alike but for their question; where no two are, reading them adds some 5 us, and 2 us
more for each kilobyte. What opening a turn's connections takes is shared out among its answers. Without sockets code and
memory are as warm as under full load, and turns in which the garbage collector ran are not among the quickest.
"""

import asyncio
import http.client
import json
import os
import re
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
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, SetUpFailed, figure_of_rounds, over, ratio
from stayfast.lab.harness.loopback import BODY, keep_busy, numbered_question
from stayfast.lab.harness.processes import Processes, ServerProcess, gateway_settings
from stayfast.lab.harness.virtual import read
from stayfast.lab.load.stats import Exact
from stayfast.lab.simulated.settings import KINDS
from stayfast.lab.workloads.memory import BodyStream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.cache.similarity import N_NEAREST, SemanticConfig
from stayfast.settings import SettingsText, environment, load
from stayfast.settings.environment import cache_home
from stayfast.stores.embedder import HOW_TO, EmbedderConfig, NoEmbedder
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.json_input import decode

HIT_GOAL_US: Final = 150.0
ALONE_GOAL_MS, WITH_GOAL_MS = 5.0, 8.0
WITHIN_MS: Final = SemanticConfig().lookup_timeout_s * 1e3
CACHE: Final[Mapping[str, Any]] = {"mode": "exact", "max_bytes": 524_288, "max_answer_bytes": 65_536}
SEMANTIC: Final[Mapping[str, Any]] = {"mode": "semantic", "eligible": {"min_content_words": 2}}
N_CALLERS, N_CALLERS_SEMANTIC = 64, 2
WARMUP_S: Final = 1.0
TURN_S: Final = 0.25
ORDERS: Final = (("off", "miss", "hit"), ("miss", "off", "hit"))  # alternating: a machine that gets slower cancels out

N_WARMUP: Final = 1500  # requests without sockets: then entries are evicted as new ones come, and bodies are known
N_A_TURN: Final = 40
TURNS_A_SECOND: Final = 150  # of the proof's time
_SDK_HEADERS: Final = (("x-stainless-retry-count", "0"),)  # which OpenAI's SDKs always send

N_TIMED: Final = 300  # questions, for the time of the stage
READY_WITHIN_S: Final = 30.0
_ENTRIES: Final = re.compile(rb"^stayfast_semantic_entries\{[^}]*\} ([1-9]\d*)", re.MULTILINE)
_STAGE: Final = re.compile(r"(?:^|, )cache;dur=([0-9.]+)")

N_DIMS, N_TO_A_CLUSTER, SPREAD = 384, 50, 0.6
SCOPE: Final = b"one scope"
N_LOOK_UPS: Final = 400  # a round
N_CHECKED: Final = 50
_REPORT_EVERY: Final = 10_000
_WORDS: Final = (
    "card", "payment", "transfer", "refund", "account", "limit", "order", "delivery", "address", "invoice", "password",
    "login", "plan", "upgrade", "cancel", "late", "missing", "wrong", "change", "update", "status")


@dataclass(frozen=True, slots=True)
class CacheLookupCost:
    """n of an extent: vectors in one scope. real_s: of each of a round's three loads, in turns of TURN_S."""

    full: Extent = Extent(100_000, 5.0, n_rounds=7)
    quick: Extent = Extent(15_000, 1.5, n_rounds=3)
    cache: Mapping[str, Any] = field(default_factory=lambda: CACHE)  # of the routes that have one

    name = "lookup"
    says = (f"An answer from the exact cache takes less than {HIT_GOAL_US:g} us of CPU, all of HTTP included. The nearest "
            f"of 100,000 questions are found within {ALONE_GOAL_MS:g} ms at p99, {WITH_GOAL_MS:g} ms with the embedding; a "
            f"semantic miss keeps its caller at p99 within the {WITHIN_MS:g} ms that it may take.")

    async def run(self, conditions: Conditions) -> Finding:
        extent = conditions.choose(self.full, self.quick)
        meter = LookupMeter()
        for number in range(1, extent.n_rounds + 1):
            conditions.report_progress(f"round {number} of {extent.n_rounds}")
            async with Processes() as processes:
                upstreams = {"canned": f"{(await processes.canned_upstream()).url}/v1"}
                gateways = {"off": await processes.gateway(gateway_settings(upstreams)),
                            "hit": await processes.gateway(gateway_settings(upstreams, cache=self.cache)),
                            "miss": await processes.gateway(gateway_settings(upstreams, cache=self.cache))}
                if not processes.set_apart(*gateways.values()):
                    conditions.report_progress("one core for all: caches are shared, and CPU a request is higher")
                await meter.round(gateways, extent.real_s)
        figures = (*meter.figures(), *await measure_without_sockets(extent, self.cache, conditions),
                   *await measure_semantic_misses(extent, conditions), *await measure_lookups(extent, conditions))
        return Finding(figures, ("CPU counts all threads and the kernel's share.",))


class LookupMeter:
    """Rounds of turns on each gateway: `off`, `hit` and `miss`."""

    def __init__(self) -> None:
        self._numbers = count()  # of questions
        self.rounds: list[list[dict[str, float]]] = []  # by round and turn: CPU of an answer, us
        self._n_failed = 0

    async def round(self, gateways: Mapping[str, ServerProcess], seconds: float) -> None:
        """So long for each, in turns, after a warm-up of each."""
        for name in ORDERS[0]:
            await self._answer_us(gateways, name, WARMUP_S)
        n_turns = max(1, round(seconds / TURN_S))
        self.rounds.append([{name: await self._answer_us(gateways, name, seconds / n_turns) for name in ORDERS[number % 2]}
                            for number in range(n_turns)])

    async def _answer_us(self, gateways: Mapping[str, ServerProcess], name: str, seconds: float) -> float:
        """CPU for each answer. NaN where none came."""
        server, numbers = gateways[name], None if name == "hit" else self._numbers
        before_s = server.cpu_s()
        n_answers, n_failed = await keep_busy(f"{server.url}/v1", seconds, N_CALLERS, numbers=numbers)
        self._n_failed += n_failed
        return ratio(server.cpu_s() - before_s, n_answers) * 1e6

    def figures(self) -> list[Figure]:
        hit, off = ([[turn[name] for turn in turns] for turns in self.rounds] for name in ("hit", "off"))
        added = [[turn["miss"] - turn["off"] for turn in turns] for turns in self.rounds]
        return [_figure_of_turns("CPU of a hit", hit, HIT_GOAL_US), _figure_of_turns("CPU that a miss adds", added),
                _figure_of_turns("CPU of an answer without a cache", off),
                Figure("failed requests", float(self._n_failed), "", 0.0)]


def _figure_of_turns(name: str, rounds: list[list[float]], goal: float | None = None) -> Figure:
    """The median of all turns, and the spread of the rounds' own medians."""
    value, _, _ = over(list(chain.from_iterable(rounds)))
    _, low, high = over([median(turns) for turns in rounds])
    return Figure(name, value, "us", goal, low=low, high=high)


async def measure_without_sockets(extent: Extent, cache: Mapping[str, Any], conditions: Conditions) -> list[Figure]:
    """What a miss adds inside of the gateway. cache: the route's settings."""
    clock, numbers, rounds = SystemClock(), count(), []
    for number in range(extent.n_rounds):
        conditions.report_progress(f"without sockets, round {number + 1} of {extent.n_rounds}")
        systems = off, miss = canned_system(None, clock), canned_system(cache, clock)
        for system in systems:
            await _spent_us(system.gateway, clock, numbers, N_WARMUP)
        turns = []
        for turn in range(max(1, round(extent.real_s * TURNS_A_SECOND))):
            order = systems if turn % 2 else systems[::-1]
            spent_us = {id(system): await _spent_us(system.gateway, clock, numbers, N_A_TURN) for system in order}
            turns.append((spent_us[id(off)], spent_us[id(miss)]))
        rounds.append(turns)
    return figures_without_sockets(rounds)


def figures_without_sockets(rounds: list[list[tuple[float, float]]]) -> list[Figure]:
    """rounds: by turn, the CPU of a request without a cache and of a miss, us. The spread is that of the single rounds."""
    off, miss = ([_quickest_tenth(turn[which] for turn in turns) for turns in (list(chain.from_iterable(rounds)), *rounds)]
                 for which in (0, 1))
    added = [with_cache - without for without, with_cache in zip(off, miss, strict=True)]
    return [Figure(name, values[0], "us", low=min(values[1:]), high=max(values[1:])) for name, values in (
        ("CPU that a miss adds, without sockets", added), ("CPU of a request without a cache, without sockets", off))]


def _quickest_tenth(turns_us: Iterable[float]) -> float:
    """What turns of the quickest tenth take at most."""
    by_time = sorted(turns_us)
    return by_time[len(by_time) // 10]


def canned_system(cache: Mapping[str, Any] | None, clock: SystemClock) -> System:
    """A whole system with a canned upstream in this process. cache: its route's settings; None: it has none."""
    route = {} if cache is None else {"cache": cache}
    content = {**gateway_settings({"canned": "http://127.0.0.1:9/v1"}, **route), "log": {"requests": False}}
    settings = load(SettingsText("<lookup>", msgspec.json.encode(content).decode()), {}, kinds=KINDS)
    system = build(settings, Observers(settings, clock), {}, clock, Random(1))
    for member in system.registry:
        member.upstream = _CannedUpstream()
    return system


async def _spent_us(gateway: Gateway, clock: SystemClock, numbers: Iterator[int], n: int) -> float:
    """CPU for each of n requests, one after the other."""
    before_s = clock.cpu()
    for _ in range(n):
        await ask(gateway, next(numbers), clock)
    return (clock.cpu() - before_s) / n * 1e6


async def ask(gateway: Gateway, number: int, clock: SystemClock) -> str | None:
    """The question of this number, to the end of its answer. Returns the cache's header."""
    request = decode(Api.CHAT, numbered_question(number))
    reply = await gateway.serve(request, Arrival("req_0123456789abcdef", clock.now(), headers=_SDK_HEADERS))
    reply.server_timing()
    await read(reply)
    return reply.cache


class _CannedUpstream:
    """Has its one answer in the next turn of the loop."""

    name, kind, always_streams = "canned", "openai", False

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        loop = asyncio.get_running_loop()
        here: asyncio.Future[None] = loop.create_future()
        loop.call_soon(here.set_result, None)
        await here
        return BodyStream(call, BODY, "canned")

    def close(self) -> None:
        pass


async def measure_semantic_misses(extent: Extent, conditions: Conditions) -> list[Figure]:
    """What a miss of the semantic cache adds, and how long it takes. Raises SetUpFailed."""
    async with Processes() as processes:
        upstreams = {"canned": f"{(await processes.canned_upstream()).url}/v1"}
        off = await processes.gateway(gateway_settings(upstreams))
        semantic = await processes.gateway(gateway_settings(upstreams, cache=SEMANTIC))
        await _until_ready(semantic)
        numbers, added_us, n_failed = count(), [], 0
        for number in range(extent.n_rounds):
            conditions.report_progress(f"looking for other words, round {number + 1} of {extent.n_rounds}")
            spent_us = []
            for server in (off, semantic):
                before_s = server.first_thread_cpu_s()
                n, n_bad = await keep_busy(f"{server.url}/v1", extent.real_s, N_CALLERS_SEMANTIC, numbers=numbers)
                spent_us.append(ratio(server.first_thread_cpu_s() - before_s, n) * 1e6)
                n_failed += n_bad
            added_us.append(spent_us[1] - spent_us[0])
        stage_ms = Exact(await asyncio.to_thread(_stages_ms, semantic, N_TIMED))
    return [figure_of_rounds("CPU of the loop that a semantic miss adds", added_us, "us"),
            Figure("stage cache of a semantic miss, p50", stage_ms.at(0.5), "ms"),
            Figure("stage cache of a semantic miss, p99", stage_ms.at(0.99), "ms", WITHIN_MS),
            Figure("failed requests, semantic", float(n_failed), "", 0.0)]


async def _until_ready(server: ServerProcess) -> None:
    """Ask until the cache has an entry: then the embedder is there."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READY_WITHIN_S
    while loop.time() < until:
        await asyncio.to_thread(_stages_ms, server, 1)
        if _ENTRIES.search(await server.read("/metrics")):
            return
        await asyncio.sleep(0.2)
    raise SetUpFailed("the gateway's semantic cache did not come up")


def _stages_ms(server: ServerProcess, n: int) -> list[float]:
    """How long the stage took for each of n questions, one after the other. Raises SetUpFailed."""
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
                raise SetUpFailed(f"a question was answered with {answer.status}, and no time of the stage cache")
            found.append(float(stage[1]))
    except (OSError, http.client.HTTPException) as error:
        raise SetUpFailed(f"the gateway did not answer: {type(error).__name__}") from None
    finally:
        connection.close()
    return found


async def measure_lookups(extent: Extent, conditions: Conditions) -> list[Figure]:
    """p99 of the look-up among n vectors, alone and after the embedding; and how many of the nearest it finds."""
    try:
        numpy, vectors = import_module("numpy"), import_module("stayfast.stores.vectors")
        minilm, batched = import_module("stayfast.stores.onnx_embedder"), import_module("stayfast.stores.batched_embedder")
        model = minilm.load(EmbedderConfig(), str(cache_home(environment())))
    except (ImportError, NoEmbedder) as missing:
        raise SetUpFailed(f"the semantic look-up cannot be measured: {missing}; {HOW_TO}") from missing
    n = extent.n
    points = _clustered(numpy, n + N_LOOK_UPS, conditions.seed)
    index, queries = vectors.Vectors(N_DIMS), points[n:]
    for key in range(n):
        if key % _REPORT_EVERY == 0:
            conditions.report_progress(f"{key:,} of {n:,} vectors")
        index.add(SCOPE, key, points[key])
    clock, rng = SystemClock(), Random(conditions.seed)
    embedder = batched.Batched(model, EmbedderConfig(), clock)
    alone_ms, with_ms = [], []
    for number in range(extent.n_rounds):
        conditions.report_progress(f"looking up, round {number + 1} of {extent.n_rounds}")
        alone_ms.append(Exact([_lookup_ms(index, vector, clock, clock.now()) for vector in queries]).at(0.99))
        texts = [f"{' '.join(rng.sample(_WORDS, 6))} {number} {place}" for place in range(N_LOOK_UPS)]
        took_ms = []
        for text in texts:
            began_at = clock.now()
            took_ms.append(_lookup_ms(index, (await embedder.embed([text]))[0], clock, began_at))
        with_ms.append(Exact(took_ms).at(0.99))
    recall = _recall(numpy, index, points[:n], queries[:N_CHECKED])
    return [figure_of_rounds(f"semantic look-up among {n:,}, p99", alone_ms, "ms", ALONE_GOAL_MS),
            figure_of_rounds(f"with the embedding among {n:,}, p99", with_ms, "ms", WITH_GOAL_MS),
            Figure(f"of the {N_NEAREST} nearest, found", recall * 100, "%")]


def _lookup_ms(index: Any, vector: Any, clock: Clock, began_at: float) -> float:
    index.nearest(SCOPE, vector, N_NEAREST)
    return (clock.now() - began_at) * 1e3


def _clustered(numpy: Any, n: int, seed: int) -> Any:
    """float32 [n, N_DIMS], of length 1."""
    rng = numpy.random.default_rng(seed)
    centres = rng.standard_normal((n // N_TO_A_CLUSTER, N_DIMS), dtype=numpy.float32)
    points = centres[rng.integers(0, len(centres), n)] + SPREAD * rng.standard_normal((n, N_DIMS), dtype=numpy.float32)
    return points / numpy.linalg.norm(points, axis=1, keepdims=True)


def _recall(numpy: Any, index: Any, points: Any, queries: Any) -> float:
    """The share of the truly nearest that the index finds."""
    n_found = 0
    for vector in queries:
        nearest = numpy.argsort(-(points @ vector))[:N_NEAREST].tolist()
        n_found += len({key for key, _ in index.nearest(SCOPE, vector, N_NEAREST)}.intersection(nearest))
    return n_found / (len(queries) * N_NEAREST)
