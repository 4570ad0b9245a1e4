"""The embedded engine through the gateway, beside the same child process addressed directly.

Both arms use the same child, on its own loopback port, the same lean client and the same requests: streamed answers of fixed
length. They take turns in each round, the second one first in every other round; a turn takes about a second, so that other
programs of the machine are in both. The results are ratios of a round: of tokens per second, and of tokens per CPU second of
the engine's process, which other programs hardly change.

When wrong: the model is tiny, so that tokens come far faster than from a model of usual size, and the gateway's cost per
chunk weighs more than it would there. The client shares the machine with gateway and engine: where these have fewer than
three cores, the gateway takes time from both, and a busy machine lowers the ratio of tokens per second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

import msgspec

from stayfast.engine.process import choose_port
from stayfast.lab.context.engine_chats import find_engine_fault
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, SetUpFailed
from stayfast.lab.harness.engine_client import run_at_a_time
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess

AT_A_TIME: Final = (1, 4, 8)
GOAL: Final = 0.97
GATEWAY, ENGINE = "gateway", "engine"
_N_OUTPUT: Final = 128


class EngineTurnCost(NamedTuple):
    """One arm in one round. CPU seconds are of one token."""

    tokens_per_s: float
    engine_cpu_s: float
    gateway_cpu_s: float


TurnsByArm = Mapping[tuple[int, str], list[EngineTurnCost]]


@dataclass(frozen=True, slots=True)
class EngineClaim:
    """n of an extent: requests of each arm and round, for each four at a time, and for one."""

    full: Extent = Extent(n=6, n_rounds=40)
    quick: Extent = Extent(n=4, n_rounds=9)

    name = "engine"
    statement = (f"Through the gateway the embedded engine generates at least {GOAL:g} of the tokens per second, and per "
                 "CPU second of its process, of the same engine addressed directly, at "
                 f"{', '.join(map(str, AT_A_TIME[:-1]))} and {AT_A_TIME[-1]} answers at a time.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        if fault := find_engine_fault():
            raise SetUpFailed(fault)
        extent = conditions.choose(self.full, self.quick)
        rng = Random(conditions.seed)
        port = choose_port(rng)
        turns: dict[tuple[int, str], list[EngineTurnCost]] = {(n, arm): [] for n in AT_A_TIME for arm in (GATEWAY, ENGINE)}
        async with Processes() as processes:
            gateway = await processes.start_gateway({
                "upstreams": {"engine": {"kind": "embedded", "port": port, "n_slots": max(AT_A_TIME)}},
                "routes": {MODEL: {"upstreams": ["engine"]}}})
            urls = {GATEWAY: gateway.url, ENGINE: f"http://127.0.0.1:{port}"}
            for number in range(-1, extent.n_rounds):  # the first one is a warm-up
                conditions.report_progress(f"round {number + 1} of {extent.n_rounds}")
                for n_at_a_time in AT_A_TIME:
                    bodies = [_make_body(rng) for _ in range(extent.n * max(1, n_at_a_time // 2))]
                    for arm in sorted(urls, reverse=bool(number % 2)):
                        turn = await _take_turn(gateway, urls[arm], bodies, n_at_a_time)
                        if number >= 0:
                            turns[n_at_a_time, arm].append(turn)
        figures = tuple(compare_arms(turns))
        return ClaimResult(figures, ("One thread computes the tiny model; both arms have the same child.",))


async def _take_turn(gateway: ServerProcess, url: str, bodies: Sequence[bytes], n_at_a_time: int) -> EngineTurnCost:
    before_s = gateway.children_cpu_s(), gateway.cpu_s()
    rate = await run_at_a_time(url, bodies, n_at_a_time)
    n_tokens = len(bodies) * _N_OUTPUT
    return EngineTurnCost(rate, (gateway.children_cpu_s() - before_s[0]) / n_tokens,
                          (gateway.cpu_s() - before_s[1]) / n_tokens)


def _make_body(rng: Random) -> bytes:
    return msgspec.json.encode({
        "model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": _N_OUTPUT,
        "ignore_eos": True, "messages": [{"role": "user", "content": f"Count to {rng.randrange(10**9)}."}]})


def compare_arms(turns: TurnsByArm) -> list[Figure]:
    """turns: by answers at a time and arm, equally many of both arms."""
    figures = []
    for n in AT_A_TIME:
        through, direct = turns[n, GATEWAY], turns[n, ENGINE]
        pairs = list(zip(through, direct, strict=True))
        for what, ratios in (("second", [ours.tokens_per_s / raw.tokens_per_s for ours, raw in pairs]),
                             ("CPU second of the engine", [raw.engine_cpu_s / ours.engine_cpu_s for ours, raw in pairs])):
            figures.append(Figure.of_rounds(f"tokens per {what} at {n} at a time, gateway over engine", ratios, "x", GOAL,
                                            Sense.AT_LEAST))
        figures += [Figure.of_rounds(f"tokens per second at {n} at a time, {arm}",
                                     [turn.tokens_per_s for turn in turns[n, arm]], "/s") for arm in (GATEWAY, ENGINE)]
        figures.append(Figure.of_rounds(f"CPU of the gateway for a token at {n} at a time",
                                        [turn.gateway_cpu_s * 1e6 for turn in through], "us"))
    return figures
