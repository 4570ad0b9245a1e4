"""Lanes get their shares of the places, lend idle places, and lose none.

Three kinds of requests have permanent demand: short prompts, long prompts, and batch requests. One short client in ten
leaves at a random moment. Three situations alternate: all kinds are present; batch is absent; short is absent. Each kind's
share of the place-seconds is computed from the gateway's facts about finished requests, not from the lanes' own counts. At
sampled instants the gateway's count of occupied places is compared with the number of requests at the upstream.

When wrong: the first WARMUP_S of each situation are excluded, in which lanes still remember earlier usage.
"""

import asyncio
from collections.abc import Sequence
from itertools import cycle
from random import Random
from typing import NamedTuple

from stayfast.core.events import Fact, RequestDone
from stayfast.core.types import Request, Stage
from stayfast.lab.harness.claim import ClaimResult, Figure, Sense, ratio
from stayfast.lab.harness.virtual import DAY_S, UPSTREAM, VirtualClaim, VirtualTenants, chat_request, simulated_upstream
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.lanes import LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop

WITHIN = 5.0  # %
MIN_USED = 90.0  # %
N_PLACES = 32
N_CALLERS = 60
LEAVING_SHARE = 0.1
N_SLICES = 5  # of a situation after its warm-up, over which the intervals are computed
WARMUP_S, SITUATION_S, SAMPLE_S = 35.0, 95.0, 0.5
PROVIDER = ProviderConfig(ttft=Mixture(0.4), prefill_per_token=0.002, gaps=GapConfig(0.02, 0.0, 64), fills_max_tokens=True)
LANES = LanesConfig(long_share=0.25, batch_share=0.125)
DUE = {"short": 20 / 32, "long": 8 / 32, "batch": 4 / 32}
PROMPTS = {"short": (20, 10), "long": (5000, 10), "batch": (200, 10)}  # tokens of prompt and answer
ABSENT = (None, "batch", "short")


class _Situation(NamedTuple):
    """A slice of a situation. place_s: place-seconds by kind in [since, until)."""

    absent: str | None
    since: float
    until: float
    place_s: dict[str, float]


class _PlaceLedger:
    """A sink that sums place-seconds by kind and situation."""

    def __init__(self) -> None:
        self.n = self.n_served = self.n_left = self.n_shed = 0
        self.situations: list[_Situation] = []

    def emit(self, fact: Fact) -> None:
        if not isinstance(fact, RequestDone):
            return
        self.n += 1
        self.n_served += fact.status == 200
        self.n_left += fact.status == 499
        self.n_shed += fact.shed is not None
        if not fact.n_attempts:
            return
        admitted_at = next(stage.ended_at for stage in fact.stages if stage.stage is Stage.ADMIT)
        kind = fact.request_id.partition("_")[0]
        for _, since, until, place_s in self.situations[-2 * N_SLICES:]:
            place_s[kind] += max(0.0, min(until, fact.ended_at) - max(since, admitted_at))


class _LaneRun:
    def __init__(self, lanes: LanesConfig, loop: SimLoop, seed: int) -> None:
        queue = QueueConfig(max_queue=10_000, max_wait_s=3000.0, target_wait_s=3000.0)
        self.ledger = _PlaceLedger()
        self.tenants = VirtualTenants(PROVIDER, {}, AdmissionConfig(N_PLACES, queue, reserved_share=0.0, lanes=lanes), loop,
                                      seed,
                                      sink=self.ledger)
        self.n_sent = 0
        self.max_off = 0
        self._absent: str | None = None
        self._loop = loop
        self._has_changed = asyncio.Event()
        self._rng = Random(seed)

    async def run(self, n_requests: int, absences: Sequence[str | None]) -> None:
        """Cycle through the situations until n_requests were sent."""
        requests = {kind: chat_request(*tokens) for kind, tokens in PROMPTS.items()}
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(self._call_forever(kind, request))
                       for kind, request in requests.items() for _ in range(N_CALLERS)]
            for n, absent in enumerate(cycle(absences), 1):
                self._absent = absent
                self._has_changed.set()
                self._has_changed.clear()
                await self._run_situation(absent)
                if self.n_sent >= n_requests and n % len(absences) == 0:
                    break
            for task in callers:
                task.cancel()

    async def _call_forever(self, kind: str, request: Request) -> None:
        may_leave = kind == "short"
        urgency = Urgency.BATCH if kind == "batch" else None
        while True:
            while self._absent == kind:
                await self._has_changed.wait()
            self.n_sent += 1
            leaves = may_leave and self._rng.random() < LEAVING_SHARE
            await self.tenants.send(None, request, self._rng.uniform(0.0, 0.6) if leaves else DAY_S, prefix=kind,
                                    urgency=urgency)

    async def _run_situation(self, absent: str | None) -> None:
        await asyncio.sleep(WARMUP_S)
        since, slice_s = self._loop.now(), (SITUATION_S - WARMUP_S) / N_SLICES
        until = since + N_SLICES * slice_s
        for n in range(N_SLICES):
            begins_s = since + n * slice_s
            self.ledger.situations.append(_Situation(absent, begins_s, begins_s + slice_s, dict.fromkeys(DUE, 0.0)))
        upstream = simulated_upstream(self.tenants.system, UPSTREAM)
        while (left_s := until - self._loop.now()) > 0:
            await asyncio.sleep(min(left_s, self._rng.uniform(0.0, 2 * SAMPLE_S)))  # never at the instant of another event
            self.max_off = max(self.max_off, abs(self.tenants.admission.places.n_taken - upstream.counts.n_running))


async def measure(loop: SimLoop, n_requests: int, seed: int, lanes: LanesConfig = LANES,
                  absences: Sequence[str | None] = ABSENT) -> ClaimResult:
    """Run all situations. The gateway is configured with `lanes`; the goals follow from DUE."""
    run = _LaneRun(lanes, loop, seed)
    await run.run(n_requests, absences)
    ledger, places = run.ledger, run.tenants.admission.places
    n_lost = ledger.n - ledger.n_served - ledger.n_left - ledger.n_shed
    n_in_lanes = sum(lane.n_running + lane.n_prefilling + lane.queue.n for lane in places.lanes.all) if places.lanes else 0
    return ClaimResult((
        *_share_figures(ledger.situations), *_usage_figures(ledger.situations),
        Figure.count("places taken, compared with what the upstream runs: off by at most", run.max_off),
        run.tenants.leftover_figure(n_in_lanes),
        Figure.count("requests neither served, left nor shed", n_lost),
        Figure.count("requests sent without an event", run.n_sent - ledger.n),
    ), (f"{ledger.n:,} requests in {loop.now() / 60:.0f} virtual minutes, of which {ledger.n_left:,} left.",))


LANES_CLAIM = VirtualClaim(
    "lanes", f"Short, long and batch requests with permanent demand get their shares of the places within {WITHIN:g} %. "
    f"Idle places are lent: at least {MIN_USED:g} % of all places are used while a kind is away. Over a million requests no "
    "place is lost or given twice.",
    measure, "{:,} requests in virtual time", 1_000_000, 30_000)


def _share_figures(situations: list[_Situation]) -> list[Figure]:
    """Shares in the situations in which all kinds were present."""
    chosen = [each.place_s for each in situations if each.absent is None]
    return [Figure.mean_distance(f"{kind}, due {due:.1%} of the places: off by",
                                 [(ratio(place_s[kind], sum(place_s.values())) / due - 1) * 100 for place_s in chosen], "%",
                                 WITHIN) for kind, due in DUE.items()]


def _usage_figures(situations: list[_Situation]) -> list[Figure]:
    figures = []
    for absent in dict.fromkeys(each.absent for each in situations):
        used = [sum(each.place_s.values()) / (N_PLACES * (each.until - each.since)) * 100 for each in situations
                if each.absent == absent]
        words = "all are there" if absent is None else f"{absent} is away"
        figures.append(Figure.mean(f"places used while {words}", used, "%", MIN_USED, Sense.AT_LEAST))
    return figures
