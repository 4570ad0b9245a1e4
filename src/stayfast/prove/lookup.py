"""What a look-up costs: an exact hit, a miss that had to be looked up, made and kept, and the search for a likeness.

Three gateways in front of one canned upstream (`prove.canned`): one without a cache, one whose callers always ask the same,
and one whose every question is another, so that each goes the whole way of a miss: its key is made, the store is asked, its
call may be shared, its answer is kept, and another one goes, for there is room for a few hundred. The one without a cache is
asked the same. CPU is the kernel's account of each process while callers keep it busy; what is measured has a core of its
own. How quick a core is changes within seconds by more than a miss costs, so the three take short turns: what a miss adds is
the median of the differences to the turn beside it, of the gateway without a cache, and its spread is that of the rounds'
own medians. Where a process's code and memory come to lie makes it quicker or slower by as much again, for as long as it
runs, so each round has processes of its own. What a miss adds is reported without a goal, beside what the answer itself
takes: how much of it is the machine's doing, which has to fetch everything again between the kernel's work on sockets,
changes by the hour. `prove.inside` reports it without sockets, also without a goal: a miss is followed by a call that takes
a thousand times as long. The search for a likeness is `prove.nearest`'s, and what the whole of a semantic miss takes
`prove.missed`'s.

When wrong: prompts here are short, and alike but for their question, as those of one application are; where no two are,
reading them adds some 5 us, and 2 us more for each kilobyte. A turn's connections are its own: what opening them takes is
shared out among its answers, a microsecond more where they are fewer.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from math import nan
from statistics import median
from typing import Any

from stayfast.prove.canned import keep_busy
from stayfast.prove.claim import Conditions, Figure, Finding, over
from stayfast.prove.inside import misses_inside
from stayfast.prove.missed import WITHIN_MS, misses
from stayfast.prove.nearest import ALONE_GOAL_MS, WITH_GOAL_MS, look_ups
from stayfast.prove.rig import Rig, Server, gateway_settings

N_CALLERS = 64
HIT_GOAL_US = 150.0
WARMUP_S = 1.0
TURN_S = 0.25
ORDERS = (("off", "miss", "hit"), ("miss", "off", "hit"))  # in turn, so that a machine which gets slower says nothing
_ALL_THREADS = 2  # the kernel's word for them in the number of another process's clock
CACHE: Mapping[str, Any] = {"mode": "exact", "max_bytes": 524_288, "max_answer_bytes": 65_536}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run: each of a round's three loads lasts `seconds`, in turns of TURN_S. n_vectors: in one scope."""

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
    says = (f"An answer from the exact cache takes less than {HIT_GOAL_US:g} us of CPU, all of HTTP included. What a miss "
            f"adds to a request is reported. The nearest of 100,000 questions are found within {ALONE_GOAL_MS:g} ms at p99, "
            f"{WITH_GOAL_MS:g} ms with the embedding; a semantic miss keeps its caller at p99 within the {WITHIN_MS:g} ms "
            f"that it may take.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent = self.quick if conditions.is_quick else self.full
        meter = Meter()
        for number in range(1, extent.n_rounds + 1):
            conditions.say(f"round {number} of {extent.n_rounds}")
            async with Rig() as rig:
                upstreams = {"canned": f"{(await rig.canned()).url}/v1"}
                gateways = {"off": await rig.gateway(gateway_settings(upstreams)),
                            "hit": await rig.gateway(gateway_settings(upstreams, cache=self.cache)),
                            "miss": await rig.gateway(gateway_settings(upstreams, cache=self.cache))}
                if not rig.set_apart(*gateways.values()):
                    conditions.say("one core for all: caches are shared, and CPU a request is higher")
                await meter.round(gateways, extent.seconds)
        figures = (*meter.figures(), *await misses_inside(extent.seconds, extent.n_rounds, self.cache, conditions),
                   *await misses(extent.seconds, extent.n_rounds, conditions),
                   *await look_ups(extent.n_vectors, extent.n_rounds, conditions))
        return Finding(figures, ("CPU counts all threads and the kernel's share.",))


class Meter:
    """Rounds of turns on each gateway: `off`, `hit` and `miss`."""

    def __init__(self) -> None:
        self._numbers = count()  # of questions
        self.rounds: list[list[dict[str, float]]] = []  # by round and turn: CPU of an answer, us
        self._n_failed = 0

    async def round(self, gateways: Mapping[str, Server], seconds: float) -> None:
        """So long for each, in turns, after a while of each that does not count."""
        for name in ORDERS[0]:
            await self._answer_us(gateways, name, WARMUP_S)
        n_turns = max(1, round(seconds / TURN_S))
        self.rounds.append([{name: await self._answer_us(gateways, name, seconds / n_turns) for name in ORDERS[number % 2]}
                            for number in range(n_turns)])

    async def _answer_us(self, gateways: Mapping[str, Server], name: str, seconds: float) -> float:
        """CPU for each answer. NaN where none came."""
        server, numbers = gateways[name], None if name == "hit" else self._numbers
        before_s = _cpu_s(server)
        n_answers, n_failed = await keep_busy(f"{server.url}/v1", seconds, N_CALLERS, numbers=numbers)
        self._n_failed += n_failed
        return (_cpu_s(server) - before_s) / n_answers * 1e6 if n_answers else nan

    def figures(self) -> list[Figure]:
        """What came of all rounds."""
        hit, off = ([[turn[name] for turn in turns] for turns in self.rounds] for name in ("hit", "off"))
        added = [[turn["miss"] - turn["off"] for turn in turns] for turns in self.rounds]
        return [_figure("CPU of a hit", hit, HIT_GOAL_US), _figure("CPU that a miss adds", added),
                _figure("CPU of an answer without a cache", off),
                Figure("failed requests", float(self._n_failed), "", 0.0)]


def _cpu_s(server: Server) -> float:
    """Seconds of CPU of all threads, finer than the ticks of `cpu_s` on Linux: of half a second one is 2 %."""
    try:
        return time.clock_gettime(~server.process.pid << 3 | _ALL_THREADS)
    except OSError:
        return server.cpu_s()


def _figure(name: str, rounds: list[list[float]], goal: float | None = None) -> Figure:
    """The median of all turns, and what the rounds' own medians are between."""
    value, _, _ = over(list(chain.from_iterable(rounds)))
    _, low, high = over([median(turns) for turns in rounds])
    return Figure(name, value, "us", goal, low=low, high=high)
