"""A simulated engine on which speculation pays while it is idle, and costs under load; in virtual time.

    speed of an answer = SPEED / (1 + BATCH_COST (n - 1)) * gain(n) * e^noise,    n: answers in flight in all arms
    gain               1 without speculation; GAIN_ALONE for one answer, GAIN_FULL from FULL answers on, linear between

The callers are a closed loop, whose number changes by phase. When wrong: the speed of an answer is that of its start.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Final

from stayfast.core.deadline import Deadline
from stayfast.core.types import AnswerSummary, Api, Chunk, DecodeTimings, Request
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.speculation.config import DRAFT, OFF
from stayfast.policy.speculation.controller import ArmChoice, SpeculationController
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.speculating import SpeculatingUpstream

SPEED: Final = 100.0  # tokens a second of one answer
BATCH_COST: Final = 0.05
GAIN_ALONE: Final = 1.5
GAIN_FULL: Final = 0.7
FULL: Final = 8
NOISE: Final = 0.2
N_TOKENS: Final = 100
N_SLOTS: Final = 32  # so that no batch here is half of them, and the evidence alone decides
ACCEPTED: Final = 0.8
Controller = Callable[[Random], SpeculationController]


def learning(rng: Random) -> SpeculationController:
    """The one of production."""
    return SpeculationController((OFF, DRAFT), N_SLOTS, rng)


class ConstantArm(SpeculationController):
    """Always the same arm: what a user can set at an engine, and a baseline."""

    def __init__(self, arm: str) -> None:
        super().__init__((OFF, DRAFT), N_SLOTS, Random(0), explore_share=0.0)
        self._arm = arm

    def choose(self, route: str, n_in_flight: int, max_output_tokens: int | None, now: float) -> ArmChoice:
        return super().choose(route, n_in_flight, max_output_tokens, now)._replace(arm=self._arm)


def constant_arm(arm: str, rng: Random) -> ConstantArm:
    """A baseline, which draws nothing."""
    return ConstantArm(arm)


def gain_of(arm: str, n_in_flight: int) -> float:
    """The speed with this arm, as a multiple of plain decoding."""
    if arm == OFF:
        return 1.0
    share = min(1.0, (n_in_flight - 1) / (FULL - 1))
    return GAIN_ALONE + (GAIN_FULL - GAIN_ALONE) * share


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Tokens a second of all answers together, by phase, in the order in which the phases ran."""

    n_callers: tuple[int, ...]
    tokens_per_s: tuple[float, ...]
    n_tried: int
    n_requests: int

    def mean_at(self, n_callers: int) -> float:
        """Of all phases with so many callers, which have equally many requests."""
        rates = [rate for n, rate in zip(self.n_callers, self.tokens_per_s, strict=True) if n == n_callers]
        return len(rates) / sum(1 / rate for rate in rates)


def run_phases(make: Controller, phases: tuple[int, ...], n_requests: int, seed: int) -> PhaseResult:
    """phases: callers. n_requests: of each phase."""
    return run_virtual(_run_phases, make, phases, n_requests, seed)


async def _run_phases(loop: SimLoop, make: Controller, phases: tuple[int, ...], n_requests: int, seed: int) -> PhaseResult:
    engine = _SimulatedEngine(Random(seed))
    controller = make(Random(seed + 1))
    arms = {arm: _SimulatedArm(arm, engine) for arm in controller.arms}
    upstream = SpeculatingUpstream("engine", arms, dict.fromkeys(arms, _Ready()), controller, loop)
    rates = []
    for n_callers in phases:
        began_at = loop.now()
        left = iter(range(n_requests))
        async with asyncio.TaskGroup() as group:
            for _ in range(n_callers):
                group.create_task(_call_until_empty(upstream, left))
        rates.append(n_requests * N_TOKENS / (loop.now() - began_at))
    n_tried = sum(n for (_, _, why), n in upstream.n_chosen.items() if why == "tried")
    return PhaseResult(phases, tuple(rates), n_tried, n_requests * len(phases))


async def _call_until_empty(upstream: SpeculatingUpstream, left: Iterator[int]) -> None:
    request = Request(Api.CHAT, "m", stream=True, body=b"{}")
    for _ in left:
        stream = await upstream.open(Call(request, "m", "req", Deadline(float("inf")), 1.0, route="m"))
        while await stream.next() is not None:
            pass
        stream.close()


class _Ready:
    is_ready = True
    address = ("127.0.0.1", 1)
    slots = None
    n_slots = None

    async def wait_ready(self, deadline: Deadline) -> bool:
        return True


class _SimulatedEngine:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.n_running = 0


class _SimulatedArm:
    kind = "embedded"
    always_streams = True

    def __init__(self, arm: str, engine: _SimulatedEngine) -> None:
        self.name = arm
        self._engine = engine

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        engine = self._engine
        engine.n_running += 1
        n = engine.n_running
        noise = exp(engine.rng.gauss(0.0, NOISE))
        return _SimulatedAnswer(self.name, engine, SPEED / (1 + BATCH_COST * (n - 1)) * gain_of(self.name, n) * noise)

    def close(self) -> None:
        """No connections."""


class _SimulatedAnswer:
    def __init__(self, arm: str, engine: _SimulatedEngine, tokens_per_s: float) -> None:
        self.summary = AnswerSummary()
        self._arm = arm
        self._engine = engine
        self._seconds = N_TOKENS / tokens_per_s

    async def next(self) -> Chunk | None:
        if self.summary.is_complete:
            return None
        await asyncio.sleep(self._seconds)
        n_drafted = 0 if self._arm == OFF else N_TOKENS
        self.summary.decode = DecodeTimings(N_TOKENS, self._seconds, n_drafted, int(ACCEPTED * n_drafted))
        self.summary.is_complete = True
        return Chunk(b"", N_TOKENS)

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        self._engine.n_running -= 1
