"""The support desk's visitors at the whole pipeline, in virtual time and over sockets, and what became of each.

In virtual time vectors are made beforehand, by the model that a gateway uses, as a computation takes no virtual time. A
look-up is charged EMBED_S for one instead, which is what a short text takes on a machine that is not idle.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import inf, nan
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.types import Api
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.hedging_runs import LONG_S
from stayfast.lab.harness.load import Load, ask
from stayfast.lab.harness.processes import Processes, Server
from stayfast.lab.harness.virtual import read, simulated
from stayfast.lab.load.result import Result
from stayfast.lab.load.schedule import Prompts, Shot
from stayfast.lab.load.stats import Exact
from stayfast.lab.load.virtual import virtual
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.workloads.desk_providers import MAX_OUTPUT, MODEL, NAMES, DeskProvider, provider
from stayfast.lab.workloads.echo_upstream import cache_result
from stayfast.lab.workloads.memory import MemoryEmbedder
from stayfast.lab.workloads.support_desk import DeskPrompts, Visit
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import Route, Settings, environment
from stayfast.settings.environment import cache_home
from stayfast.stores.embedder import HOW_TO, EmbedderConfig, NoEmbedder
from stayfast.testing.simloop import SimLoop
from stayfast.wire.json_input import decode

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

EMBED_S: Final = 0.003
ROUTE: Final = "desk"
_N_AT_ONCE: Final = 64  # texts in a batch
_REPORT_EVERY: Final = 10_000
_encode = msgspec.json.Encoder().encode


def embedder_of(rows: Mapping[str, "Floats"], embedder: str) -> MemoryEmbedder:
    """An embedder of texts that are known beforehand."""
    return MemoryEmbedder(embedder, len(next(iter(rows.values()))), rows.__getitem__, EMBED_S)


def prepare_embedder(visits: Sequence[Visit], say: Callable[[str], None]) -> MemoryEmbedder:
    """The vectors of all short questions. Raises SetUpFailed where there is no model."""
    try:
        model = import_module("stayfast.stores.onnx_embedder").load(EmbedderConfig(), str(cache_home(environment())))
    except (ImportError, NoEmbedder) as missing:
        raise SetUpFailed(f"nothing can be asked in other words: {missing}; {HOW_TO}") from missing
    texts = list({visit.text: None for visit in visits if visit.pasted is None})
    rows: dict[str, Floats] = {}
    for first in range(0, len(texts), _REPORT_EVERY):
        say(f"{first:,} of {len(texts):,} questions embedded")
        part = texts[first:first + _REPORT_EVERY]
        rows |= zip(part, model.embed_all(part, _N_AT_ONCE), strict=True)
    return embedder_of(rows, model.id)


@dataclass(slots=True)
class Outcomes:
    """What became of the visits that count. waits_s: to the first token, infinite where there was none. by_kind: visits by
    the cache's result (hit, semantic, coalesced, miss); wrong: answered by another question's article; again: questions that
    come again. usd, calls and tokens are the providers' own accounts.
    """

    waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    by_kind: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0
    n_calls: int = 0
    n_prompted: int = 0  # tokens
    n_cached: int = 0
    usd: float = 0.0

    @property
    def n(self) -> int:
        """Visits."""
        return len(self.waits_s)

    @property
    def past(self) -> float:
        """The share that waited more than LONG_S."""
        return sum(wait_s > LONG_S for wait_s in self.waits_s) / self.n if self.n else nan

    def at(self, shares: Sequence[float]) -> list[float]:
        """Quantiles of the waits."""
        exact = Exact(self.waits_s)
        return [exact.at(share) for share in shares]

    def count(self, providers: Sequence[DeskProvider], sign: int) -> None:
        """Add (or take away) what providers have counted so far."""
        for counts in [each.counts for each in providers]:
            self.n_calls += sign * counts.n_asked
            self.n_prompted += sign * counts.n_tokens_prompted
            self.n_cached += sign * counts.n_tokens_cached
            self.usd += sign * counts.cost_usd


async def visit_in_virtual_time(loop: SimLoop, visits: Sequence[Visit], n_warm: int, route: Mapping[str, Any], *,
                                rate_rps: float, seed: int, embedder: MemoryEmbedder | None = None) -> Outcomes:
    """All visits, Poisson at a rate, the first `n_warm` uncounted, at a gateway whose route has these settings."""
    system = virtual(Settings(
        upstreams={name: SimulatedUpstream(provider=provider(number, seed), probe=False)
                   for number, name in enumerate(NAMES)},
        routes={ROUTE: Route(NAMES, model=MODEL, **route)}), loop, seed)
    articles = {visit.text: visit.article for visit in visits}
    providers = [DeskProvider(name, provider(number, seed), loop, articles) for number, name in enumerate(NAMES)]
    for each in providers:
        upstream = simulated(system, each.name)
        upstream.provider, upstream.number_of = each, each.number_of
    if system.embedding is not None:
        system.embedding.ahead = system.embedding.behind = embedder
    rng, outcomes = Random(seed), Outcomes()
    visitors = _Visitors(system.gateway, loop, DeskPrompts(seed), outcomes)
    at = loop.now()
    async with asyncio.TaskGroup() as group:
        for number, visit in enumerate(visits):
            at += rng.expovariate(rate_rps)
            await asyncio.sleep(at - loop.now())
            if number == n_warm:
                outcomes.count(providers, -1)
            group.create_task(visitors.visit(number, visit, counts=number >= n_warm))
    outcomes.count(providers, 1)
    return outcomes


class _Visitors:
    """Send requests, and judge the answers."""

    def __init__(self, gateway: Gateway, loop: SimLoop, prompts: DeskPrompts, outcomes: Outcomes) -> None:
        self._gateway = gateway
        self._loop = loop
        self._prompts = prompts
        self._outcomes = outcomes
        self._opening = b'{"model":%b,"stream":true,"temperature":0,"max_tokens":%d,"system":%b,"messages":' % (
            _encode(ROUTE), MAX_OUTPUT, _encode(prompts.system))

    async def visit(self, number: int, visit: Visit, *, counts: bool) -> None:
        """One visit, from the question to the last word of the answer."""
        body = self._opening + _encode([{"role": "user", "content": self._prompts.message(visit)}]) + b"}"
        loop, outcomes = self._loop, self._outcomes
        began_at = loop.now()
        try:
            reply = await self._gateway.serve(decode(Api.MESSAGES, body), Arrival(f"req_{number:x}", began_at))
            wait_s = loop.now() - began_at
            answer = await read(reply)
        except StayfastError:
            wait_s, kind, is_right = inf, "failed", True
        else:
            kind = cache_result(reply.cache)
            is_right = b"Article %d of" % visit.article in answer
        if counts:
            outcomes.waits_s.append(wait_s)
            outcomes.n_failed += kind == "failed"
            outcomes.by_kind[kind] += 1
            outcomes.wrong[kind] += not is_right
            outcomes.again[kind] += visit.is_again


class Served(NamedTuple):
    """The visits over sockets that count, and what the providers charged for them."""

    result: Result
    n: int
    usd: float


class _VisitPrompts(Prompts):
    """Visits as the bench's prompts, the first shot with the `first` of them."""

    def __init__(self, prompts: DeskPrompts, visits: Sequence[Visit], first: int) -> None:
        self.system = prompts.system
        self._prompts = prompts
        self._visits = visits
        self._first = first

    def dialogue(self, shot: Shot) -> list[tuple[str, str]]:
        return [("user", self._prompts.message(self._visits[(self._first + shot.number) % len(self._visits)]))]


async def visit_over_sockets(visits: Sequence[Visit], route: Mapping[str, Any], rate_rps: float, *, warmup_s: float,
                             seconds: float, seed: int) -> Served:
    """Ask a gateway with this route, for `warmup_s` unmeasured. Raises SetUpFailed."""
    prompts = DeskPrompts(seed)
    async with Processes() as processes:
        articles = processes.written({visit.text: visit.article for visit in visits})
        sim = await processes.start("-m", "stayfast.lab.workloads.desk_providers", articles, str(seed))
        gateway = await processes.gateway({
            "upstreams": {name: {"kind": "anthropic", "base_url": f"{sim.url}/{name}", "key": "none", "probe": False}
                          for name in NAMES},
            "routes": {ROUTE: {"upstreams": list(NAMES), "model": MODEL, **route}}})

        async def put(seconds: float, first: int, seed: int) -> Result:
            load = Load(seconds, rate_rps, n_input=1, n_output=MAX_OUTPUT, api=Api.MESSAGES, model=ROUTE,
                        extra={"temperature": 0})
            return (await ask(load, {"gateway": gateway.url}, seed, _VisitPrompts(prompts, visits, first)))["gateway"]

        n_before = len((await put(warmup_s, 0, seed)).samples)
        before_usd = await _usd(sim)
        result = await put(seconds, n_before, seed + 1)
        return Served(result, len(result.samples), await _usd(sim) - before_usd)


async def _usd(sim: Server) -> float:
    """What all providers have charged so far."""
    counts = await sim.get("/_sim/counts")
    return sum([float(its["cost_usd"]) for its in counts["providers"].values()])
