"""Lanes get their shares of the places, lend what stands idle, and lose count of nothing.

Callers of three kinds, each kind so many that it always wants more: short prompts, long ones, and requests that can wait.
One short client in ten leaves, at any moment. Three situations take turns: all are there; batch is away; short is away. Each
kind's part of all place-seconds is taken from what the gateway says of the requests that are over, not from the lanes' own
counts; and at sampled instants the places that it thinks taken are put beside what the upstream has running.

When wrong: the first WARMUP_S of each situation are left out, in which lanes still remember what others used.
"""

import asyncio
from collections.abc import Sequence
from itertools import cycle
from random import Random
from typing import NamedTuple

from stayfast.core.events import Fact, RequestDone
from stayfast.core.types import Request, Stage
from stayfast.lab.harness.claim import Figure, Finding, Sense
from stayfast.lab.harness.virtual import DAY_S, UPSTREAM, VirtualClaim, VirtualTenants, chat, simulated
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.lanes import LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop

WITHIN = 5.0  # %
N_PLACES = 32
N_CALLERS = 60
LEAVERS = 0.1
WARMUP_S, SITUATION_S, SAMPLE_S = 35.0, 95.0, 0.5
PROVIDER = ProviderConfig(ttft=Mixture(0.4), prefill_per_token=0.002, gaps=GapConfig(0.02, 0.0, 64), fills_max_tokens=True)
LANES = LanesConfig(long_share=0.25, batch_share=0.125)
DUE = {"short": 20 / 32, "long": 8 / 32, "batch": 4 / 32}
PROMPTS = {"short": (20, 10), "long": (5000, 10), "batch": (200, 10)}  # tokens of prompt and answer
AWAY = (None, "batch", "short")


class _Situation(NamedTuple):
    away: str | None
    since: float
    until: float
    held_s: dict[str, float]  # place-seconds of each kind


class _Ledger:
    """A sink: place-seconds by kind in each situation."""

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
        began_at = next(stage.ended_at for stage in fact.stages if stage.stage is Stage.ADMIT)
        kind = fact.request_id.partition("_")[0]
        for _, since, until, held_s in self.situations[-2:]:
            held_s[kind] += max(0.0, min(until, fact.ended_at) - max(since, began_at))


class _Scene:
    def __init__(self, lanes: LanesConfig, loop: SimLoop, seed: int) -> None:
        queue = QueueConfig(max_queue=10_000, max_wait_s=3000.0, target_wait_s=3000.0)
        self.ledger = _Ledger()
        self.crowd = VirtualTenants(PROVIDER, {}, AdmissionConfig(N_PLACES, queue, reserved_share=0.0, lanes=lanes), loop,
                                    seed,
                             sink=self.ledger)
        self.away: str | None = None
        self.n_sent = 0
        self.most_off = 0
        self._loop = loop
        self._back = asyncio.Event()
        self._rng = Random(seed)

    async def act(self, n_requests: int, absences: Sequence[str | None]) -> None:
        """These situations over and over, until so many requests were sent."""
        requests = {kind: chat(*tokens) for kind, tokens in PROMPTS.items()}
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(self._caller(kind, request))
                       for kind, request in requests.items() for _ in range(N_CALLERS)]
            for n, away in enumerate(cycle(absences), 1):
                self.away = away
                self._back.set()
                self._back.clear()
                await self._watch(away)
                if self.n_sent >= n_requests and n % len(absences) == 0:
                    break
            for task in callers:
                task.cancel()

    async def _caller(self, kind: str, request: Request) -> None:
        leaves = kind == "short"
        urgency = Urgency.BATCH if kind == "batch" else None
        while True:
            while self.away == kind:
                await self._back.wait()
            self.n_sent += 1
            leave_after_s = self._rng.uniform(0.0, 0.6) if leaves and self._rng.random() < LEAVERS else DAY_S
            await self.crowd.ask(None, request, leave_after_s, prefix=kind, urgency=urgency)

    async def _watch(self, away: str | None) -> None:
        await asyncio.sleep(WARMUP_S)
        since = self._loop.now()
        until = since + SITUATION_S - WARMUP_S
        self.ledger.situations.append(_Situation(away, since, until, dict.fromkeys(DUE, 0.0)))
        upstream = simulated(self.crowd.system, UPSTREAM)
        while (left_s := until - self._loop.now()) > 0:
            await asyncio.sleep(min(left_s, self._rng.uniform(0.0, 2 * SAMPLE_S)))  # never at an instant of its own making
            self.most_off = max(self.most_off, abs(self.crowd.admission.places.n_taken - upstream.counts.n_running))


async def play(loop: SimLoop, n_requests: int, seed: int, lanes: LanesConfig = LANES,
               absences: Sequence[str | None] = AWAY) -> Finding:
    """All situations, and the verdict. The gateway gets `lanes`; it is judged by DUE."""
    scene = _Scene(lanes, loop, seed)
    await scene.act(n_requests, absences)
    ledger, places = scene.ledger, scene.crowd.admission.places
    n_lost = ledger.n - ledger.n_served - ledger.n_left - ledger.n_shed
    left = [lane.n_running + lane.n_prefilling + lane.queue.n for lane in places.lanes.all] if places.lanes else []
    return Finding((
        *_shares(ledger.situations), *_used(ledger.situations),
        Figure("places taken, beside what the upstream runs: off by at most", float(scene.most_off), "", 0.0),
        Figure("places still taken at the end", float(places.n_taken + sum(left)), "", 0.0),
        Figure("requests neither served, left nor shed", float(n_lost), "", 0.0),
        Figure("requests asked and not told of", float(scene.n_sent - ledger.n), "", 0.0),
    ), (f"{ledger.n:,} requests in {loop.now() / 60:.0f} virtual minutes, of which {ledger.n_left:,} left.",))


LANES_CLAIM = VirtualClaim(
    "lanes", f"Short, long and batch requests that always want more get their shares of the places within {WITHIN:g} %; "
    "what one leaves idle the others use; over a million requests no place is lost or given twice.", play,
    "{:,} requests in virtual time", 1_000_000, 30_000)


def _shares(situations: list[_Situation]) -> list[Figure]:
    """Of the situations in which all were there."""
    held_s = {kind: sum(each.held_s[kind] for each in situations if each.away is None) for kind in DUE}
    whole_s = sum(held_s.values())
    return [Figure(f"{kind}, due {due:.1%} of the places: off by", abs(held_s[kind] / whole_s / due - 1) * 100, "%", WITHIN)
            for kind, due in DUE.items()]


def _used(situations: list[_Situation]) -> list[Figure]:
    figures = []
    for away in dict.fromkeys(each.away for each in situations):
        chosen = [each for each in situations if each.away == away]
        whole_s = N_PLACES * sum(each.until - each.since for each in chosen)
        used = sum(sum(each.held_s.values()) for each in chosen) / whole_s
        words = "all are there" if away is None else f"{away} is away"
        figures.append(Figure(f"places used while {words}", used * 100, "%", 90.0, Sense.AT_LEAST))
    return figures
