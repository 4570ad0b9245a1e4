"""A turn with tools: as a plain sequence of calls, and through the budget layer.

The duration of each call is a mixture: most are quick, and 6 or 7 in 100 are slow at random, as with hosted APIs. Before:
in series, without timeouts. After: retrieval, two tools and a policy check in parallel, each with a hedge that has learned
its delay. The turn goes on after BY_S without the results that are missing. The model call is hedged until its first token
and has reserved time. Turns arrive at random, in virtual time.

Spend: each call is paid in full, even if it was cancelled or lost to its hedge. The length of an answer belongs to the turn:
a second attempt has the same length, and only its first token can come sooner.

When wrong: prices and delays of tools and model are typical guesses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from stayfast.lab.harness.claim import ClaimResult, Figure, Sense
from stayfast.lab.harness.virtual import VirtualClaim, run_arrivals
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import Mixture
from stayfast.testing.simloop import SimLoop
from stayfast.turns import HedgePolicy, budget, step

SERIES_P95_S = 5.0
P95_GOAL_S = 2.2
SPEND_GOAL = 12.0  # %
TURNS_PER_S = 5.0
TOTAL_S = 4.0
BY_S = 1.0
HEDGED = 0.12  # maximum share of hedged calls of each kind
MODEL_HEDGED = 0.11
ANSWER_S = 2.4  # reserved
CUT_OFF_S = 0.02  # until a step that is cut off has ended
MISSING_GOAL, UNANSWERED_GOAL = 0.05, 0.01  # shares of the turns
N_BATCHES = 10  # of turns, whose spend is compared


@dataclass(frozen=True, slots=True)
class CallKind:
    """duration: in seconds."""

    duration: Mixture
    usd: float


RETRIEVAL, TOOL_A, TOOL_B, CHECK = KINDS = (
    CallKind(Mixture(0.12, 0.4, 0.05, 0.8, 0.5), 0.0002), CallKind(Mixture(0.25, 0.35, 0.07, 1.59, 0.5), 0.001),
    CallKind(Mixture(0.35, 0.35, 0.07, 2.15, 0.5), 0.001), CallKind(Mixture(0.2, 0.3, 0.06, 0.8, 0.5), 0.0005))
MODEL = CallKind(Mixture(0.35, 0.4, 0.068, 3.3, 0.7), 0.006)  # to its first token
GENERATION = Mixture(0.55, 0.3)  # seconds from the first token to the end of the answer
NAMES: Mapping[str, CallKind] = MappingProxyType({"retrieval": RETRIEVAL, "tool_a": TOOL_A, "tool_b": TOOL_B,
                                                  "check": CHECK})


class ToolTurns:
    """Runs turns in one of the two ways, and records their durations and spend."""

    def __init__(self, loop: SimLoop, rng: Random, *, hedges: bool) -> None:
        self._loop = loop
        self._rng = rng
        shares = {**dict.fromkeys(KINDS, HEDGED), MODEL: MODEL_HEDGED} if hedges else {}
        self._hedges = {kind: HedgePolicy(share) for kind, share in shares.items()}
        self.durations_s: list[float] = []
        self.usd = 0.0
        self.n_missing = self.n_unanswered = 0

    async def run_all(self, n: int, run_turn: Callable[[float], Awaitable[None]]) -> None:
        """Run n turns of `run_turn`, which takes the seconds of its answer's generation."""
        async def run_timed() -> None:
            began_at = self._loop.now()
            await run_turn(GENERATION.draw(self._rng, 1.0))
            self.durations_s.append(self._loop.now() - began_at)

        await run_arrivals(n, TURNS_PER_S, self._rng, lambda _: run_timed())

    async def run_in_series(self, generation_s: float) -> None:
        for kind in KINDS:
            await self._call(kind)
        await self._call(MODEL)
        await self._generate(generation_s)

    async def run_in_budget(self, generation_s: float) -> None:
        async with budget(TOTAL_S, {"answer": ANSWER_S}) as b:
            calls: dict[str, Any] = {name: step(self._call, kind, hedge=self._hedges.get(kind))
                                     for name, kind in NAMES.items()}
            results = await b.gather(by=BY_S, **calls)
            self.n_missing += bool(results.missing)
            has_started = await b.run(self._call, MODEL, name="answer", hedge=self._hedges.get(MODEL), fallback=False)
            self.n_unanswered += not has_started or not await b.run(self._generate, generation_s, name="answer",
                                                                    fallback=False)

    async def _call(self, kind: CallKind) -> bool:
        self.usd += kind.usd
        await asyncio.sleep(kind.duration.draw(self._rng, self._rng.random()))
        return True

    async def _generate(self, generation_s: float) -> bool:
        await asyncio.sleep(generation_s)
        return True


async def measure(loop: SimLoop, n: int, seed: int, *, hedges: bool = True) -> ClaimResult:
    before, after = ToolTurns(loop, Random(seed), hedges=hedges), ToolTurns(loop, Random(seed), hedges=hedges)
    usd: dict[ToolTurns, list[float]] = {before: [], after: []}
    for turns, run_turn in ((before, before.run_in_series), (after, after.run_in_budget)):
        for number in range(N_BATCHES):
            turns.usd = 0.0
            await turns.run_all(n * (number + 1) // N_BATCHES - n * number // N_BATCHES, run_turn)
            usd[turns].append(turns.usd)
    more_spend = [(with_layer / in_series - 1) * 100 for with_layer, in_series in zip(usd[after], usd[before], strict=True)]
    series_s, layer_s = ExactDistribution(before.durations_s), ExactDistribution(after.durations_s)
    note = (f"In series p50 {series_s.quantile(0.5):.2f} s, p99 {series_s.quantile(0.99):.2f} s; with the layer p50 "
            f"{layer_s.quantile(0.5):.2f} s, p99 {layer_s.quantile(0.99):.2f} s.")
    return ClaimResult((
        Figure.quantile_s("in series: p95 of a turn", before.durations_s, 0.95, SERIES_P95_S, Sense.AT_LEAST),
        Figure.quantile_s("with the layer: p95 of a turn", after.durations_s, 0.95, P95_GOAL_S),
        Figure.mean("more spend", more_spend, "%", SPEND_GOAL),
        Figure.exact("longest turn, of a budget of 4 s", layer_s.quantile(1.0), "s", TOTAL_S + CUT_OFF_S),
        Figure.share("turns that answered without all of the four", after.n_missing, n, MISSING_GOAL),
        Figure.share("turns that had no answer of the model", after.n_unanswered, n, UNANSWERED_GOAL)), (note,))


TOOLS = VirtualClaim(
    "tools", f"A turn of retrieval, two tools, a policy check and a model has a p95 of {SERIES_P95_S:g} s or more in "
    f"series, and of at most {P95_GOAL_S:g} s through the budget layer, for at most {SPEND_GOAL:g} % more spend. At most "
    f"{MISSING_GOAL:.0%} of the turns lack one of the four, at most {UNANSWERED_GOAL:.0%} the model's answer.",
    measure, "{:,} turns in virtual time, before and after", 50_000, 5_000)
