"""What a look-up costs: an exact hit, a miss that had to be looked up, made and kept, and the search for a likeness.

Three gateways in front of one canned upstream (`prove.canned`): one without a cache, one whose callers always ask the same,
and one whose every question is another, so that each goes the whole way of a miss: its key is made, the store is asked, its
call may be shared, its answer is kept, and another one goes, for there is room for a few hundred. The one without a cache is
asked the same. CPU is the kernel's account of each process while callers keep it busy; what is measured has a core of its
own. The difference to the gateway without a cache, in the same minutes, is what a miss costs. The search for a likeness is
`prove.nearest`'s, and what the whole of a semantic miss takes `prove.missed`'s.

When wrong: prompts here are short. A key takes as long as reading the body does: 2 us more for each kilobyte of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import nan
from typing import Any

from stayfast.prove.canned import keep_busy
from stayfast.prove.claim import Conditions, Figure, Finding, over
from stayfast.prove.missed import WITHIN_MS, misses
from stayfast.prove.nearest import ALONE_GOAL_MS, WITH_GOAL_MS, look_ups
from stayfast.prove.rig import Rig, Server, gateway_settings

N_CALLERS = 64
HIT_GOAL_US = 150.0
MISS_GOAL_US = 20.0
WARMUP_S = 1.0
LOADS = ("off", "hit", "miss")
CACHE: Mapping[str, Any] = {"mode": "exact", "max_bytes": 524_288, "max_answer_bytes": 65_536}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run: each of a round's three loads lasts `seconds`. n_vectors: in one scope."""

    seconds: float
    n_rounds: int
    n_vectors: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """See the module. `cache` is that of the routes that have one."""

    full: Extent = Extent(5.0, 7, 100_000)
    quick: Extent = Extent(1.5, 3, 15_000)
    cache: Mapping[str, Any] = field(default_factory=lambda: CACHE)

    name = "lookup"
    says = (f"An answer from the exact cache takes less than {HIT_GOAL_US:g} us of CPU, all of HTTP included, and a look-up "
            f"that finds nothing adds less than {MISS_GOAL_US:g} us to a request, its keeping included. The nearest of "
            f"100,000 questions are found within {ALONE_GOAL_MS:g} ms at p99, {WITH_GOAL_MS:g} ms with the embedding; a "
            f"semantic miss keeps its caller at p99 within the {WITHIN_MS:g} ms that it may take.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent = self.quick if conditions.is_quick else self.full
        spent_us: dict[str, list[float]] = {name: [] for name in LOADS}
        n_failed, numbers = 0, count()
        async with Rig() as rig:
            canned = await rig.canned()
            upstreams = {"canned": f"{canned.url}/v1"}
            gateways = {"off": await rig.gateway(gateway_settings(upstreams)),
                        "hit": await rig.gateway(gateway_settings(upstreams, cache=self.cache)),
                        "miss": await rig.gateway(gateway_settings(upstreams, cache=self.cache))}
            if not rig.set_apart(*gateways.values()):
                conditions.say("one core for all: caches are shared, and CPU a request is higher")
            for number in range(extent.n_rounds + 1):
                conditions.say(f"round {number} of {extent.n_rounds}" if number else "warming up")
                for name, server in gateways.items():
                    us, n_bad = await _answer_us(server, extent.seconds if number else WARMUP_S,
                                                 None if name == "hit" else numbers)
                    if number:
                        spent_us[name].append(us)
                        n_failed += n_bad
        added_us = [miss - off for miss, off in zip(spent_us["miss"], spent_us["off"], strict=True)]
        figures = (_figure("CPU of a hit", spent_us["hit"], HIT_GOAL_US),
                   _figure("CPU that a miss adds", added_us, MISS_GOAL_US),
                   _figure("CPU of an answer without a cache", spent_us["off"]),
                   Figure("failed requests", float(n_failed), "", 0.0),
                   *await misses(extent.seconds, extent.n_rounds, conditions),
                   *await look_ups(extent.n_vectors, extent.n_rounds, conditions))
        return Finding(figures, ("CPU counts all threads and the kernel's share.",))


async def _answer_us(server: Server, seconds: float, numbers: Iterator[int] | None) -> tuple[float, int]:
    """CPU for each answer (NaN where none came), and how many failed."""
    before_s = server.cpu_s()
    n_answers, n_failed = await keep_busy(f"{server.url}/v1", seconds, N_CALLERS, numbers=numbers)
    return (server.cpu_s() - before_s) / n_answers * 1e6 if n_answers else nan, n_failed


def _figure(name: str, values: list[float], goal: float | None = None) -> Figure:
    median, low, high = over(values)
    return Figure(name, median, "us", goal, low=low, high=high)
