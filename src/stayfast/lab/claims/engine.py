"""The embedded engine through the gateway, beside the same child process addressed directly.

Both arms use the same child, on its own loopback port, the same lean client and the same requests: streamed answers of fixed
length. They take turns in each round, the second one first in every other round. The result is the ratio of the two rates of
a round.

When wrong: the model is tiny, so that tokens come far faster than from a model of usual size, and the gateway's cost per
chunk weighs more than it would there. The client shares the machine with gateway and engine: where all of them have one
core, its cost is in both arms.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from stayfast.engine.process import choose_port
from stayfast.lab.context.engine_chats import find_engine_fault
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, SetUpFailed
from stayfast.lab.harness.engine_client import run_at_a_time
from stayfast.lab.harness.processes import MODEL, Processes

AT_A_TIME: Final = (1, 4, 8)
GOAL: Final = 0.97
_N_OUTPUT: Final = 128


@dataclass(frozen=True, slots=True)
class EngineClaim:
    """n of an extent: requests of each arm and round for one request at a time; twice as many for more."""

    full: Extent = Extent(n=6, n_rounds=20)
    quick: Extent = Extent(n=4, n_rounds=6)

    name = "engine"
    statement = (f"Through the gateway the embedded engine generates at least {GOAL:g} of the tokens per second of the "
                 f"same engine addressed directly, at {', '.join(map(str, AT_A_TIME[:-1]))} and {AT_A_TIME[-1]} "
                 "answers at a time.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        if fault := find_engine_fault():
            raise SetUpFailed(fault)
        extent = conditions.choose(self.full, self.quick)
        rng = Random(conditions.seed)
        port = choose_port(rng)
        rates: dict[tuple[int, str], list[float]] = {(n, arm): [] for n in AT_A_TIME for arm in ("gateway", "engine")}
        async with Processes() as processes:
            gateway = await processes.start_gateway({
                "upstreams": {"engine": {"kind": "embedded", "port": port, "n_slots": max(AT_A_TIME)}},
                "routes": {MODEL: {"upstreams": ["engine"]}}})
            urls = {"gateway": gateway.url, "engine": f"http://127.0.0.1:{port}"}
            for number in range(-1, extent.n_rounds):  # the first one is a warm-up
                conditions.report_progress(f"round {number + 1} of {extent.n_rounds}")
                for n_at_a_time in AT_A_TIME:
                    bodies = [_make_body(rng) for _ in range(extent.n * min(2, n_at_a_time) * max(1, n_at_a_time // 4))]
                    for arm in sorted(urls, reverse=bool(number % 2)):
                        rate = await run_at_a_time(urls[arm], bodies, n_at_a_time)
                        if number >= 0:
                            rates[n_at_a_time, arm].append(rate)
        return ClaimResult(tuple(_figures(rates)), ("One thread computes the tiny model; both arms have the same child.",))


def _make_body(rng: Random) -> bytes:
    return msgspec.json.encode({
        "model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": _N_OUTPUT,
        "ignore_eos": True, "messages": [{"role": "user", "content": f"Count to {rng.randrange(10**9)}."}]})


def _figures(rates: dict[tuple[int, str], list[float]]) -> list[Figure]:
    figures = []
    for n in AT_A_TIME:
        through, direct = rates[n, "gateway"], rates[n, "engine"]
        ratios = [ours / raw for ours, raw in zip(through, direct, strict=True)]
        figures += [Figure.of_rounds(f"tokens per second at {n} at a time, gateway over engine", ratios, "x", GOAL,
                                     Sense.AT_LEAST),
                    Figure.of_rounds(f"tokens per second at {n} at a time, gateway", through, "/s"),
                    Figure.of_rounds(f"tokens per second at {n} at a time, engine", direct, "/s")]
    return figures
