"""Scenes of caches: semantic answers, a shared store, and prompts at their provider."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import product
from math import inf, log
from random import Random
from typing import Final

import numpy as np
from draw import Line
from numpy.typing import NDArray
from scene import Callers, poisson

from stayfast.core.clock import Clock
from stayfast.core.events import Fanout
from stayfast.core.types import Api
from stayfast.lab.claims import prefix
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated import ProviderConfig
from stayfast.lab.simulated.config import OutputLengths
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.settings import RouteSettings, Settings
from stayfast.settings.environment import cache_directory, read_environment
from stayfast.stores import onnx_embedder as minilm
from stayfast.stores.base import AcquireLead, Get, IsLed, Put, ReleaseLead, StoreCommand, StoreReply, StoreStats
from stayfast.stores.embedder import EmbedderConfig
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import ScriptedUpstream, SendText, Wait
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import decode

RATE_RPS: Final = 20.0
NO_HEDGE = HedgeConfig("off")
_VERBS = ("replace", "cancel", "translate", "forward")
_THINGS = ("invoice", "password", "delivery", "contract", "keyboard", "passport", "calendar", "bicycle", "mortgage")
_FORMS = ("how can a customer {} the {}", "where does one {} the {}", "please explain how to {} the {}",
          "which steps are there to {} the {}", "is there a way to {} the {}", "what must somebody do to {} the {}",
          "who helps me out if they want to {} the {}", "what is the quickest way to {} the {}")
_WHERE = ("", " at once", " by phone", " in the app", " on site", " for a friend", " at the desk", " as a guest")
_WHEN = ("", " in the evening", " on weekends", " before a holiday", " while abroad", " without a printer",
         " with little time", " as a new member")


def chat(text: str) -> bytes:
    return b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (MODEL.encode(), text.encode())


class Encoder:
    """The real embedder, with 2 ms of virtual time for each call."""

    def __init__(self) -> None:
        model = minilm.load_encoder(EmbedderConfig(), str(cache_directory(read_environment())))
        self.id = model.id
        self.n_dims = model.n_dims
        self._model = model
        self._known: dict[str, NDArray[np.float32]] = {}

    def can_embed_within(self, left_s: float) -> bool:
        return True

    def is_whole(self, text: str) -> bool:
        return self._model.tokenize(text)[1]

    def close(self) -> None:
        """Nothing to close."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        await asyncio.sleep(0.002)
        return np.stack([self._row(text) for text in texts])

    def _row(self, text: str) -> NDArray[np.float32]:
        if text not in self._known:
            self._known[text] = self._model.encode([self._model.tokenize(text)[0]])[0]
        return self._known[text]


class TopicModel:
    """A model with one answer for each topic, after 0.5 s (lognormal, sigma 0.5)."""

    kind = "simulated"
    always_streams = True

    def __init__(self, name: str, clock: Clock, rng: Random) -> None:
        self.name = name
        self._clock = clock
        self._rng = rng
        topics = product(_VERBS, _THINGS)
        self._answers = {f"{verb} the {thing}".encode(): make_answer(verb, thing) for verb, thing in topics}

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        text = next(answer for topic, answer in self._answers.items() if topic in call.request.body)
        script = [Wait(self._rng.lognormvariate(log(0.5), 0.5)), SendText(text)]
        return await ScriptedUpstream(self.name, [script], self._clock).open(call)

    def close(self) -> None:
        """Nothing to close."""


def make_answer(verb: str, thing: str) -> str:
    """Words that occur in no other answer."""
    draw = Random(f"{verb} {thing}")
    return " ".join("".join(draw.choices("abcdefghiklmnoprstu", k=7)) for _ in range(12))


def semantic(n: int, seed: int) -> tuple[Line, Line]:
    """36 questions, each in 512 wordings; from an empty cache."""
    def run_scene(config: CacheConfig) -> tuple[list[float], str]:
        async def main(loop: SimLoop) -> tuple[list[float], str]:
            upstreams = {"model": SimulatedUpstream(probe=False)}
            routes = {MODEL: RouteSettings(("model",), hedge=NO_HEDGE, cache=config)}
            system = build_virtual_system(Settings(upstreams=upstreams, routes=routes), loop, seed)
            system.registry["model"].upstream = TopicModel("model", loop, Random(seed))
            if system.embedding is not None:
                system.embedding.foreground = system.embedding.background = Encoder()
            rng, callers, waits = Random(seed), Callers(loop), []
            topics = list(product(_VERBS, _THINGS))
            shares = [1 / (rank + 1) for rank in range(len(topics))]

            async def ask() -> None:
                (topic,) = rng.choices(topics, shares)
                text = rng.choice(_FORMS).format(*topic) + rng.choice(_WHERE) + rng.choice(_WHEN) + "?"
                await callers.ask(system.gateway, decode(Api.CHAT, chat(text)), waits)

            await callers.at(poisson(RATE_RPS, seed), n / RATE_RPS, ask)
            cache = system.gateway.router.routes[MODEL].policy.cache
            stats = cache.semantic.stats() if cache is not None and cache.semantic is not None else None
            audits = f" ({stats.n_audits_wrong} of {stats.n_audits} audits wrong)" if stats is not None else ""
            return waits, audits

        return run(main)

    exact, _ = run_scene(CacheConfig("exact", max_temperature=1.0))
    semantic, audits = run_scene(CacheConfig("semantic", max_temperature=1.0, semantic=SemanticConfig("2%", judge="local")))
    return Line("mode: exact", exact), Line(f"max_error: 2%{audits}", semantic)


class SimulatedStore:
    """A store shared by gateways, with a round trip of 0.3 ms."""

    kind = "redis"

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._leads: dict[bytes, bytes] = {}

    async def execute(self, orders: Sequence[StoreCommand]) -> list[StoreReply]:
        await asyncio.sleep(0.0003)
        return [self._execute_order(order) for order in orders]

    def _execute_order(self, order: StoreCommand) -> StoreReply:
        match order:
            case Get(key):
                return self._data.get(key)
            case Put(key, data):
                self._data[key] = data
            case AcquireLead(key, owner):
                return self._leads.setdefault(key, owner) == owner
            case IsLed(key):
                return key in self._leads
            case ReleaseLead(key):
                self._leads.pop(key, None)
        return None

    async def append_log(self, name: str, records: Sequence[bytes], most: int) -> None:
        """The log is not simulated."""

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        return []

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        return 0

    async def stats(self) -> StoreStats:
        return StoreStats(self.kind, len(self._data), None, None)

    async def close(self) -> None:
        """Nothing to close."""


def stores(n: int, seed: int) -> tuple[Line, Line]:
    """Eight gateways; four of five questions are among a thousand with frequencies by Zipf's law, from empty caches."""
    n_gateways, n_hot = 8, 1000
    provider = ProviderConfig("gpt-4o-mini-like", seed, output=OutputLengths(15.0, 0.3))
    settings = Settings(
        upstreams={"provider": SimulatedUpstream(provider=provider, probe=False)},
        routes={MODEL: RouteSettings(("provider",), hedge=NO_HEDGE, cache=CacheConfig("exact", max_temperature=1.0))})

    def run_scene(store: SimulatedStore | None) -> list[float]:
        async def main(loop: SimLoop) -> list[float]:
            systems = [build_virtual_system(settings, loop, seed + number) for number in range(n_gateways)]
            for number, system in enumerate(systems):
                cache = system.gateway.router.routes[MODEL].policy.cache
                if store is not None and cache is not None:
                    cache.store = RemoteStore("hot", store, SharedConfig(), loop, Fanout(), rng=Random(seed + number))
            rng, callers, waits = Random(seed), Callers(loop), []
            shares = [1 / (rank + 1) for rank in range(n_hot)]

            async def ask() -> None:
                (number,) = rng.choices(range(n_hot), shares) if rng.random() < 0.8 else (rng.getrandbits(40) + n_hot,)
                request = decode(Api.CHAT, chat(f"What is there to know about number {number}?"))
                await callers.ask(rng.choice(systems).gateway, request, waits)

            await callers.at(poisson(RATE_RPS, seed), n / RATE_RPS, partial(ask))
            return waits

        return run(main)

    return Line("a memory cache each", run_scene(None)), Line("one shared store", run_scene(SimulatedStore()))


def prompts(n: int, seed: int) -> tuple[Line, Line]:
    """The agents of `prove prefix` with tools in a fixed order, before Anthropic's cache."""
    n_agents = max(5, n // 250)

    def run_scene(config: PrefixConfig) -> list[float]:
        result = run_virtual(prefix.run_agents, prefix.CASES[0], config, n_agents, seed, shuffles=False)
        return [inf if turn.ttft_s is None else turn.ttft_s for turn in result.requests]

    return Line("prefix: off", run_scene(PrefixConfig())), Line("mode: auto", run_scene(PrefixConfig("auto")))
