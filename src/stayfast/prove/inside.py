"""The part of the proof `lookup` that leaves the sockets out: what a miss of the exact cache adds inside of the gateway.

Two whole systems, with every observer but the log, in this process: one without a cache, and one whose every question is
another, so that each goes the whole way of a miss. In front of both, instead of HTTP, a function; behind both an upstream
whose answer is there a turn of the loop later, through the reader that a real one comes through. They take turns of a few
dozen requests, and what counts is the quickest tenth of each one's turns: what makes the others half as slow again is the
machine, on which somebody else works. Each round has systems of its own.

When wrong: code and memory are as warm here as under full load on a core of one's own. Between the kernel's work on sockets
they are not, and everything takes longer there, a miss as well as the rest: `prove.lookup` says by how much. Turns in which
the collector of garbage ran are not among the quickest.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from random import Random
from typing import Any

import msgspec

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.core.types import Api, Chunk
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.prove.canned import BODY, asked
from stayfast.prove.claim import Conditions, Figure
from stayfast.prove.rig import gateway_settings
from stayfast.settings import Source, load
from stayfast.upstreams.base import Call, Stream
from stayfast.upstreams.simulated.settings import KINDS
from stayfast.wire.json_input import decode
from stayfast.wire.transcode import transcoder

N_WARMUP = 1500  # requests: then answers go as new ones come, and bodies are known
N_A_TURN = 40
_HEADERS = (("x-stainless-retry-count", "0"),)  # which OpenAI's SDKs always send
TURNS_A_SECOND = 150  # of the proof's time


async def misses_inside(seconds: float, n_rounds: int, cache: Mapping[str, Any], conditions: Conditions) -> list[Figure]:
    """What a miss adds. cache: the route's settings."""
    clock, numbers, rounds = SystemClock(), count(), []
    for number in range(n_rounds):
        conditions.say(f"without sockets, round {number + 1} of {n_rounds}")
        off, miss = system(None, clock), system(cache, clock)
        for one in (off, miss):
            await _spent_us(one.gateway, clock, numbers, N_WARMUP)
        turns = []
        for turn in range(max(1, round(seconds * TURNS_A_SECOND))):
            order = (off, miss) if turn % 2 else (miss, off)
            spent_us = {id(one): await _spent_us(one.gateway, clock, numbers, N_A_TURN) for one in order}
            turns.append((spent_us[id(off)], spent_us[id(miss)]))
        rounds.append(turns)
    return figures(rounds)


def figures(rounds: list[list[tuple[float, float]]]) -> list[Figure]:
    """rounds: by turn, the CPU of a request without a cache and of a miss, us. The spread is that of rounds, each alone."""
    both = [[_quick(turn[which] for turn in turns) for turns in (list(chain.from_iterable(rounds)), *rounds)]
            for which in (0, 1)]
    (off, *_), _ = both
    added, *of_rounds = [miss - off for off, miss in zip(*both, strict=True)]
    return [Figure("CPU that a miss adds, without sockets", added, "us", low=min(of_rounds), high=max(of_rounds)),
            Figure("CPU of a request without a cache, without sockets", off, "us", low=min(both[0]), high=max(both[0]))]


def _quick(turns_us: Iterable[float]) -> float:
    """What turns of the quickest tenth take at most."""
    by_time = sorted(turns_us)
    return by_time[len(by_time) // 10]


def system(cache: Mapping[str, Any] | None, clock: SystemClock) -> System:
    """A whole one, whose upstream is here. cache: its route's settings; None: it has none."""
    route = {} if cache is None else {"cache": cache}
    said = {**gateway_settings({"canned": "http://127.0.0.1:9/v1"}, **route), "log": {"requests": False}}
    settings = load(Source("<lookup>", msgspec.json.encode(said).decode()), {}, kinds=KINDS)
    built = build(settings, Observers(settings, clock), {}, clock, Random(1))
    for member in built.registry:
        member.upstream = _AtOnce()
    return built


async def _spent_us(gateway: Gateway, clock: SystemClock, numbers: Iterator[int], n: int) -> float:
    """CPU for each of n requests, one after the other."""
    before_s = clock.cpu()
    for _ in range(n):
        await ask(gateway, next(numbers), clock)
    return (clock.cpu() - before_s) / n * 1e6


async def ask(gateway: Gateway, number: int, clock: SystemClock) -> str | None:
    """The question of this number, to the end of its answer. Returns what the cache says of it."""
    request = decode(Api.CHAT, asked(number))
    reply = await gateway.serve(request, Arrival("req_0123456789abcdef", clock.now(), headers=_HEADERS))
    reply.server_timing()
    while await reply.next() is not None:
        pass
    reply.close()
    return reply.cache


class _AtOnce:
    """An upstream that has its one answer in the next turn of the loop."""

    name, kind, always_streams = "canned", "openai", False

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> Stream:
        loop = asyncio.get_running_loop()
        here: asyncio.Future[None] = loop.create_future()
        loop.call_soon(here.set_result, None)
        await here
        return _Answer(call)

    def close(self) -> None:
        pass


class _Answer:
    def __init__(self, call: Call) -> None:
        self._coder = transcoder(Api.CHAT, call.request, source_streams=False, upstream="canned")
        self._is_read = False
        self.sight = self._coder.sight

    async def next(self) -> Chunk | None:
        if self._is_read:
            return None
        self._is_read = True
        self._coder.feed(BODY)
        return self._coder.finish()

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        pass
