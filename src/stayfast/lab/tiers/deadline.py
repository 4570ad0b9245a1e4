"""A deadline that only the small tier meets: time-outs of a route with tiers, and of the large model alone.

In virtual time, on the real stages, from a cold start. Whole answers and streams in turn. The large model begins after the
deadline or near it; the small one takes a sixth of the deadline at the median. The control is the same requests to the large
model without tiers, in the same times.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.events import RequestDone
from stayfast.core.types import Api
from stayfast.lab.harness.virtual import run_virtual_in_thread, serve_and_read, system_with_sink
from stayfast.lab.simulated import ScriptedUpstream, SendText, Wait
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.tiers.config import TierEntry
from stayfast.settings import HttpUpstream, LogSettings, RouteSettings, Settings
from stayfast.testing import RecordingSink
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.scripted import Step
from stayfast.wire.request_body import decode

DEADLINE_S: Final = 2.5
EVERY_S: Final = 0.2
N_REQUESTS: Final = 600
SMALL_TTFT_S, LARGE_TTFT_S, SIGMA = 0.2, 6.0, 0.25
GAP_S, N_WORDS = 0.01, 20


@dataclass(frozen=True, slots=True)
class DeadlineTiers:
    """Of n requests: time-outs with tiers and without, and answers of the small tier."""

    n: int
    n_time_outs: int
    n_small: int
    n_wasted: int  # calls at the large model, which could not answer in time
    n_time_outs_without: int


async def measure_deadline_tiers(seed: int, n: int = N_REQUESTS) -> DeadlineTiers:
    """Run n requests with tiers, and n to the large model alone. Deterministic for a seed."""
    with_tiers = await run_virtual_in_thread(_send_all, seed, n, is_tiered=True)
    without = await run_virtual_in_thread(_send_all, seed, n, is_tiered=False)
    return DeadlineTiers(n, _n_time_outs(with_tiers), sum(done.upstream == "small" and done.error is None
                                                          for done in with_tiers),
                         sum(attempt.upstream == "large" for done in with_tiers for attempt in done.attempts),
                         _n_time_outs(without))


def _n_time_outs(requests: list[RequestDone]) -> int:
    """Requests without a complete answer by the deadline."""
    return sum(done.error is not None or done.ended_at - done.accepted_at > DEADLINE_S for done in requests)


async def _send_all(loop: SimLoop, seed: int, n: int, *, is_tiered: bool) -> list[RequestDone]:
    rng, sink = Random(seed), RecordingSink()
    upstreams = {name: HttpUpstream("openai", base_url=f"http://{name}", probe=False) for name in ("small", "large")}
    route = RouteSettings(("large",), deadline=DEADLINE_S)
    if is_tiered:
        tiers = tuple(TierEntry(name, (name,), name) for name in upstreams)
        route = RouteSettings(tiers=tiers, deadline=DEADLINE_S)
    settings = Settings(upstreams=upstreams, routes={"m": route}, log=LogSettings(level="error", requests=False))
    system = system_with_sink(settings, sink, loop, rng)
    for member in system.registry:
        ttft_s = SMALL_TTFT_S if member.upstream.name == "small" else LARGE_TTFT_S
        member.upstream = _TierModel(member.upstream.name, ttft_s, loop, rng)

    async def send(number: int) -> None:
        body = {"model": "m", "stream": number % 2 == 0, "messages": [{"role": "user", "content": f"question {number}"}]}
        request = decode(Api.CHAT, msgspec.json.encode(body))
        with suppress(StayfastError):  # the record of the request has it
            await serve_and_read(system.gateway, request, Arrival(f"req_{number}", loop.now()), loop)

    async with asyncio.TaskGroup() as group:
        for number in range(n):
            group.create_task(send(number))
            await asyncio.sleep(EVERY_S)
    return sink.facts_of(RequestDone)


class _TierModel(ScriptedUpstream):
    """Begins after a log-normal time, and sends words at an even pace."""

    def __init__(self, name: str, ttft_s: float, loop: SimLoop, rng: Random) -> None:
        super().__init__(name, [[]], loop)
        self._ttft_s = ttft_s
        self._rng = rng

    async def open(self, call: Call) -> AnswerStream:
        words: list[Step] = [step for _ in range(N_WORDS) for step in (Wait(GAP_S), SendText("word "))]
        self.scripts = [[Wait(self._ttft_s * self._rng.lognormvariate(0.0, SIGMA)), *words]]
        return await super().open(call)
