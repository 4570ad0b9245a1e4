"""One answer in fifty stalls in its middle: with waiting, and with continuation at the other upstream.

Both upstreams generate the same text for the same request, like two replicas of one model at temperature 0, so that each
answer can be compared with the expected text, character by character. In virtual time; tests/flow/test_rescue_sockets.py
does the same over sockets. When wrong: stalls are independent here. If all upstreams stall at once, none can continue.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec

from stayfast.core.events import RequestDone
from stayfast.core.types import Api
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure
from stayfast.lab.harness.virtual import run_virtual_in_thread, serve_and_read, system_with_sink
from stayfast.lab.simulated import ScriptedUpstream, SendText, Wait
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import HttpUpstream, LogSettings, RouteSettings, Settings
from stayfast.testing import RecordingSink
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.scripted import Step
from stayfast.wire.request_body import decode

STALL_SHARE, STALL_S = 0.02, 30.0
TTFT_S, GAP_S, SIGMA = 0.3, 0.02, 0.4
N_WORDS, N_REPEATED = 120, 60
REPEATED = "the same line once more, "  # five words
EVERY_S = 0.2
GAP_P99_S, CALLS = 2.0, 1.03


@dataclass(frozen=True, slots=True)
class StallsClaim:
    """n of an extent: answers of each mode."""

    full: Extent = Extent(5_000)
    quick: Extent = Extent(400)

    name = "stalls"
    statement = (f"If one answer in fifty stalls for {STALL_S:.0f} s, on_stall: rescue keeps the p99 of the longest gap in "
                 f"an answer within {GAP_P99_S:g} s, for at most {CALLS - 1:.0%} more calls, and no character is lost or "
                 "repeated.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n = conditions.choose(self.full, self.quick).n
        conditions.report_progress(f"twice {n:,} answers in virtual time")
        waited = await run_virtual_in_thread(measure, n, conditions.seed, "wait")
        rescued = await run_virtual_in_thread(measure, n, conditions.seed, "rescue")
        return ClaimResult((
            *waited.figures("wait", None), *rescued.figures("rescue", GAP_P99_S),
            Figure.mean("rescue: calls a request", rescued.calls, "", CALLS),
            Figure.count("answers with a character too many or too few", waited.n_wrong + rescued.n_wrong)))


@dataclass(frozen=True, slots=True)
class StallRun:
    """gaps_s, e2e_s, calls: the longest gap, the duration and the calls of each answer."""

    gaps_s: list[float]
    e2e_s: list[float]
    calls: list[int]
    n_wrong: int

    def figures(self, mode: str, goal_s: float | None) -> tuple[Figure, ...]:
        return (Figure.quantile_s(f"{mode}: longest gap p99 (n={len(self.gaps_s)})", self.gaps_s, 0.99, goal_s),
                Figure.quantile_s(f"{mode}: e2e p50", self.e2e_s, 0.5),
                Figure.quantile_s(f"{mode}: e2e p99", self.e2e_s, 0.99))


async def measure(loop: SimLoop, n_answers: int, seed: int, on_stall: Literal["wait", "rescue"]) -> StallRun:
    done, n_wrong = await send_all(loop, n_answers, seed, on_stall)
    return StallRun([fact.gap_max_s or 0.0 for fact in done], [fact.ended_at - fact.accepted_at for fact in done],
                    [fact.n_attempts for fact in done], n_wrong)


async def send_all(loop: SimLoop, n_answers: int, seed: int,
                   on_stall: Literal["wait", "rescue"]) -> tuple[list[RequestDone], int]:
    """Send five requests per second. Returns their facts, and the number of answers with a wrong text."""
    rng, sink = Random(seed), RecordingSink()
    upstreams = {name: HttpUpstream("openai", base_url=f"http://{name}", supports_continuation=True, probe=False)
                 for name in "ab"}
    settings = Settings(upstreams=upstreams, log=LogSettings(level="error", requests=False),
                        routes={"m": RouteSettings(tuple(upstreams), on_stall=on_stall)})
    system = system_with_sink(settings, sink, loop, rng)
    for member in system.registry:
        member.upstream = _Replica(member.upstream.name, loop, rng)

    async def is_right(number: int) -> bool:
        request = decode(Api.CHAT, msgspec.json.encode({
            "model": "m", "stream": True, "messages": [{"role": "user", "content": str(number)}]}))
        served = await serve_and_read(system.gateway, request, Arrival(f"req_{number}", loop.now()), loop)
        events = [msgspec.json.decode(part[6:]) for part in served.body.split(b"\n\n") if part.startswith(b"data: {")]
        text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        return text == text_for(str(number))

    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(n_answers):
            tasks.append(group.create_task(is_right(number)))
            await asyncio.sleep(EVERY_S)
    return sink.facts_of(RequestDone), sum(not task.result() for task in tasks)


def text_for(prompt: str) -> str:
    """The answer to a prompt: one half distinct words, so that a missing one is seen, and one half the same line repeated,
    as in code and tables.
    """
    return "".join(f"{prompt}.{n} " for n in range(N_WORDS - N_REPEATED)) + REPEATED * (N_REPEATED // REPEATED.count(" "))


class _Replica(ScriptedUpstream):
    """Generates or continues `text_for` its prompt, one word at a time, and stalls at random."""

    def __init__(self, name: str, loop: SimLoop, rng: Random) -> None:
        super().__init__(name, [[]], loop)
        self._rng = rng

    async def open(self, call: Call) -> AnswerStream:
        rng, messages = self._rng, msgspec.json.decode(call.request.body)["messages"]
        text = text_for(messages[0]["content"])
        if call.is_continuation:
            text = text[len(messages[-1]["content"]):]
        pieces = text.replace(" ", " \0").split("\0")
        stalls_at = rng.randrange(N_WORDS) if rng.random() < STALL_SHARE else -1
        steps: list[Step] = [Wait(TTFT_S * rng.lognormvariate(0.0, SIGMA))]
        for n, piece in enumerate(pieces):
            steps.append(Wait(STALL_S if n == stalls_at and n else GAP_S * rng.lognormvariate(0.0, SIGMA)))
            if piece:
                steps.append(SendText(piece))
        self.scripts = [steps]
        return await super().open(call)
