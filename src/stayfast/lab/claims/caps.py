"""Long answers and a deadline: with the clients' limit of 100,000 tokens, and with limits that are fitted to the time left.

Answers have lengths of their own, and one in three is longer than its deadline allows. Each answer has a speed of its own
around that of the moment, as with other requests in its batch. Half are streams, half are whole answers, of which the
gateway sees no first token. In the second arm the model is SAG times as slow in the middle third. The upstream obeys the
limit, so that each answer ends with its last word, at its limit, or at the deadline. In virtual time.

At its own speed, each attempt could have written the floor of 16 tokens in time. So every answer counts that is cut at its
deadline, except those that began before the slow-down could be seen. To keep a limit of 16 for all from passing, the answers
that a limit ended without need are bounded, too, and so is the time that is left unused.
When wrong: speeds here change for all answers at once; a single slow replica behind one address does not.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import RequestDone
from stayfast.core.types import Api
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense
from stayfast.lab.harness.virtual import run_virtual_in_thread, serve_and_read, system_with_sink
from stayfast.lab.simulated import ScriptedUpstream, SendText, Wait
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.context.output_cap import CapConfig
from stayfast.settings import HttpUpstream, LogSettings, RouteSettings, Settings
from stayfast.testing import RecordingSink
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.scripted import Step
from stayfast.wire.request_body import decode

DEADLINE_S: Final = 8.0
TTFT_S, TTFT_SIGMA = 0.4, 0.3
GAP_S, GAP_SIGMA, OWN_SIGMA = 0.02, 0.4, 0.1
LENGTH, LENGTH_SIGMA = 250, 0.7
SAG: Final = 2.5
EVERY_S = 0.1
LEARNED: Final = 100  # answers before which too little is known
SEEN_S: Final = DEADLINE_S  # after the slow-down began
PERCENTILE, RESERVE_S = 99.0, 0.5
CUT: Final = 0.001
NEEDLESS, UNUSED = 0.3, 0.5


@dataclass(frozen=True, slots=True)
class CapsClaim:
    """n of an extent: answers of each of four runs."""

    full: Extent = Extent(6_000)
    quick: Extent = Extent(1_200)

    name = "caps"
    statement = (f"Limits fitted to a deadline of {DEADLINE_S:g} s at the {PERCENTILE:g}th percentile leave at most "
                 f"{CUT:.1%} of the answers to be cut by it, from {SEEN_S:g} s after the model became {SAG:g} times as "
                 f"slow, too; at most {NEEDLESS:.0%} of the answers are shortened without need.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n = conditions.choose(self.full, self.quick).n
        conditions.report_progress(f"four times {n:,} answers in virtual time")
        figures: list[Figure] = []
        for arm, sag in (("steady", 1.0), ("slower in the middle third", SAG)):
            plain = await run_virtual_in_thread(measure, n, conditions.seed, sag, is_fitted=False)
            fitted = await run_virtual_in_thread(measure, n, conditions.seed, sag, is_fitted=True)
            figures += compare_runs(arm, plain, fitted, is_steady=sag == 1.0)
        return ClaimResult(tuple(figures))


def compare_runs(arm: str, plain: "Sequence[CapAnswer]", fitted: "Sequence[CapAnswer]", *,
                 is_steady: bool) -> list[Figure]:
    """The figures of one arm: answers without and with fitted limits, to the same requests."""
    judged, n = [answer for answer in fitted if answer.is_judged], len(fitted)
    limited = [answer for answer in judged if answer.how == "limit"]
    n_cut = sum(answer.how == "deadline" for answer in judged)
    unused = sum(DEADLINE_S - answer.took_s for answer in limited) / max(1, len(limited)) / DEADLINE_S
    return [
        Figure.share(f"{arm}, as clients send it: answers cut by the deadline",
                     sum(answer.how == "deadline" for answer in plain), n, 0.05, Sense.AT_LEAST),
        Figure.count(f"{arm}, fitted: cut by the deadline, of {len(judged):,}", n_cut, CUT * len(judged)),
        Figure.share(f"{arm}, fitted: the same, with those that began before it was seen",
                     sum(answer.how == "deadline" for answer in fitted), n),
        Figure.share(f"{arm}, fitted: ended at a limit, and would have ended in time",
                     sum(answer.would_end for answer in limited), len(judged), NEEDLESS if is_steady else None),
        Figure.share(f"{arm}, fitted: ended at a limit", len(limited), len(judged), 0.05, Sense.AT_LEAST),
        Figure.share(f"{arm}, fitted: time that answers at a limit left unused, of the deadline",
                     round(unused * 1000), 1000, UNUSED if is_steady else None),
        Figure.count(f"{arm}, fitted: answers at a limit without a mark", sum(not answer.is_marked for answer in limited)),
        Figure.share(f"{arm}, as clients send it: usable answers", sum(answer.is_usable for answer in plain), n),
        Figure.share(f"{arm}, fitted: usable answers, whole or ended at a marked limit",
                     sum(answer.is_usable for answer in judged), len(judged), 0.99, Sense.AT_LEAST)]


@dataclass(slots=True)
class CapAnswer:
    """One answer. how: whole, limit or deadline. would_end: its own end was before the deadline. is_judged: the pace was
    known, and has not just changed.
    """

    how: str
    took_s: float
    would_end: bool
    is_marked: bool
    is_judged: bool

    @property
    def is_usable(self) -> bool:
        return self.how == "whole" or (self.how == "limit" and self.is_marked)


async def measure(loop: SimLoop, n_answers: int, seed: int, sag: float, *, is_fitted: bool) -> list[CapAnswer]:
    """The answers to n_answers requests, one every EVERY_S. sag: the speed in the middle third, as a share of the usual one.
    is_fitted: with limits that are fitted to the deadline.
    """
    rng, sink = Random(seed), RecordingSink()
    cap = CapConfig(fit_deadline=True, percentile=PERCENTILE, reserve_s=RESERVE_S) if is_fitted else CapConfig()
    settings = Settings(upstreams={"a": HttpUpstream("openai", base_url="http://a", probe=False)},
                        log=LogSettings(level="error", requests=False),
                        routes={"m": RouteSettings(("a",), deadline=DEADLINE_S, cap=cap)})
    system = system_with_sink(settings, sink, loop, rng)
    slow_at = (loop.now() + n_answers * EVERY_S / 3, loop.now() + n_answers * EVERY_S * 2 / 3)
    writer = SpeedWriter("a", loop, seed, sag, slow_at)
    for member in system.registry:
        member.upstream = writer

    async def send(number: int) -> CapAnswer:
        request = decode(Api.CHAT, msgspec.json.encode({
            "model": "m", "stream": number % 2 == 0, "max_tokens": 100_000,
            "messages": [{"role": "user", "content": str(number)}]}))
        began_at, is_marked, how = loop.now(), False, "deadline"
        try:
            served = await serve_and_read(system.gateway, request, Arrival(f"req_{number}", began_at), loop)
            is_marked = served.reply.degraded == "capped"
            how = "limit" if served.reply.summary.finish_reason == "length" else "whole"
        except StayfastError:
            how = "deadline"
        is_new = sag > 1.0 and -DEADLINE_S <= began_at - slow_at[0] < SEEN_S
        return CapAnswer(how, loop.now() - began_at, writer.whole_s[str(number)] <= DEADLINE_S, is_marked,
                         number >= LEARNED and not is_new)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(n_answers):
            tasks.append(group.create_task(send(number)))
            await asyncio.sleep(EVERY_S)
    assert len(sink.facts_of(RequestDone)) == n_answers
    return [task.result() for task in tasks]


class SpeedWriter(ScriptedUpstream):
    """Writes answers of random lengths, each token at the speed of its instant. whole_s: how long each would take in all."""

    def __init__(self, name: str, clock: Clock, seed: int, sag: float, slow_at: tuple[float, float]) -> None:
        super().__init__(name, [[]], clock)
        self._now = clock.now
        self._seed = seed
        self._sag = sag
        self._slow_at = slow_at
        self.whole_s: dict[str, float] = {}

    async def open(self, call: Call) -> AnswerStream:
        prompt = msgspec.json.decode(call.request.body)["messages"][0]["content"]
        rng = Random(f"{self._seed} {prompt}")  # the same in all runs
        own = rng.lognormvariate(0.0, OWN_SIGMA)
        at = began_at = self._now()
        steps: list[Step] = []
        for number in range(max(1, int(LENGTH * rng.lognormvariate(0.0, LENGTH_SIGMA)))):
            wait_s = (TTFT_S * rng.lognormvariate(0.0, TTFT_SIGMA) if number == 0 else
                      GAP_S * own * rng.lognormvariate(0.0, GAP_SIGMA))
            wait_s *= self._sag if self._slow_at[0] <= at < self._slow_at[1] else 1.0
            at += wait_s
            steps += (Wait(wait_s), SendText("word "))
        self.whole_s[prompt] = at - began_at
        self.scripts = [steps]
        return await super().open(call)
