"""One of fifty answers halts in its middle: waited for, and continued at the other upstream.

The two upstreams say the same words for the same request, as two replicas of one model at temperature 0 do, so each answer
is held against what it should have got, character by character. Virtual time; tests/flow/test_rescue_sockets.py does the
same over sockets. When wrong: halts are independent here; where all upstreams halt at once there is none to go on.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.events import RequestDone
from stayfast.core.types import Api
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding
from stayfast.lab.harness.virtual import read, run_virtual_in_thread
from stayfast.lab.load.stats import Exact
from stayfast.lab.simulated import Say, Scripted, Wait
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import HttpUpstream, LogSettings, RouteSettings, Settings
from stayfast.testing import RecordingSink
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.scripted import Step
from stayfast.wire.json_input import decode

SHARE, HALT_S = 0.02, 30.0
TTFT_S, GAP_S, SIGMA = 0.3, 0.02, 0.4
N_WORDS, N_SAME = 120, 60
SAME = "the same line once more, "  # five words
EVERY_S = 0.2
GAP_P99_S, CALLS = 2.0, 1.03


@dataclass(frozen=True, slots=True)
class StallsClaim:
    full: Extent = Extent(5_000)  # of each
    quick: Extent = Extent(400)

    name = "stalls"
    says = (f"Where one answer in fifty halts for {HALT_S:.0f} s, the p99 of the longest wait inside an answer is at most "
            f"{GAP_P99_S:g} s with on_stall: rescue, and no character is lost or said twice.")

    async def run(self, conditions: Conditions) -> Finding:
        n = conditions.choose(self.full, self.quick).n
        conditions.report_progress(f"twice {n:,} answers in virtual time")
        waited = await run_virtual_in_thread(play, n, conditions.seed, "wait")
        rescued = await run_virtual_in_thread(play, n, conditions.seed, "rescue")
        return Finding((
            *waited.figures("wait", None), *rescued.figures("rescue", GAP_P99_S),
            Figure("rescue: calls a request", rescued.calls, "", CALLS),
            Figure("answers with a character too many or too few", float(waited.n_wrong + rescued.n_wrong), "", 0.0)))


@dataclass(frozen=True, slots=True)
class Halts:
    gap_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    calls: float  # a request
    n_wrong: int

    def figures(self, mode: str, goal_s: float | None) -> tuple[Figure, ...]:
        return (Figure(f"{mode}: longest gap p99", self.gap_p99_s, "s", goal_s),
                Figure(f"{mode}: e2e p50", self.e2e_p50_s, "s"), Figure(f"{mode}: e2e p99", self.e2e_p99_s, "s"))


async def play(loop: SimLoop, n_answers: int, seed: int, on_stall: Literal["wait", "rescue"]) -> Halts:
    done, n_wrong = await ask_all(loop, n_answers, seed, on_stall)
    gaps, took = Exact([fact.gap_max_s or 0.0 for fact in done]), Exact([fact.ended_at - fact.accepted_at for fact in done])
    return Halts(gaps.at(0.99), took.at(0.5), took.at(0.99), sum(fact.n_attempts for fact in done) / len(done), n_wrong)


async def ask_all(loop: SimLoop, n_answers: int, seed: int,
                  on_stall: Literal["wait", "rescue"]) -> tuple[list[RequestDone], int]:
    """Ask for so many answers, five a second: how each ended, and how many were not what they should have been."""
    rng, sink = Random(seed), RecordingSink()
    upstreams = {name: HttpUpstream("openai", f"http://{name}", supports_continuation=True, probe=False) for name in "ab"}
    settings = Settings(upstreams=upstreams, log=LogSettings(level="error", requests=False),
                        routes={"m": RouteSettings(tuple(upstreams), on_stall=on_stall)})
    observers = Observers(settings, loop)
    observers.sink = sink
    system = build(settings, observers, {}, loop, rng)
    for member in system.registry:
        member.upstream = _Replica(member.upstream.name, loop, rng)

    async def is_right(number: int) -> bool:
        request = decode(Api.CHAT, msgspec.json.encode({
            "model": "m", "stream": True, "messages": [{"role": "user", "content": str(number)}]}))
        reply = await system.gateway.serve(request, Arrival(f"req_{number}", loop.now()))
        parts = (await read(reply)).split(b"\n\n")
        events = [msgspec.json.decode(part[6:]) for part in parts if part.startswith(b"data: {")]
        text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        return text == text_for(str(number))

    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(n_answers):
            tasks.append(group.create_task(is_right(number)))
            await asyncio.sleep(EVERY_S)
    return sink.of(RequestDone), sum(not task.result() for task in tasks)


def text_for(prompt: str) -> str:
    """The answer to a prompt: half of it words of which no two are the same, so that none can be missing unseen, half of it
    the same line again and again, as code and tables are.
    """
    return "".join(f"{prompt}.{n} " for n in range(N_WORDS - N_SAME)) + SAME * (N_SAME // SAME.count(" "))


class _Replica(Scripted):
    """Says `text_for` its prompt, a word at a time, or goes on with it; halts by chance."""

    def __init__(self, name: str, loop: SimLoop, rng: Random) -> None:
        super().__init__(name, [[]], loop)
        self._rng = rng

    async def open(self, call: Call) -> AnswerStream:
        rng, messages = self._rng, msgspec.json.decode(call.request.body)["messages"]
        text = text_for(messages[0]["content"])
        if call.goes_on:
            text = text[len(messages[-1]["content"]):]
        pieces = text.replace(" ", " \0").split("\0")
        halts_at = rng.randrange(N_WORDS) if rng.random() < SHARE else -1
        steps: list[Step] = [Wait(TTFT_S * rng.lognormvariate(0.0, SIGMA))]
        for n, piece in enumerate(pieces):
            steps.append(Wait(HALT_S if n == halts_at and n else GAP_S * rng.lognormvariate(0.0, SIGMA)))
            if piece:
                steps.append(Say(piece))
        self._scripts = [steps]
        return await super().open(call)
