"""Measure the cost of deadlines for a request: ledger, timers and `Server-Timing`, without and with stage budgets.

Run it as `python scripts/bench/budget.py`. It prints microseconds a request without the stages themselves, the best of many
rounds, because other load on the machine only makes rounds slower.
"""

import asyncio
import time
from collections.abc import Callable

import uvloop

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Timeouts
from stayfast.core.types import Api, Request, Stage
from stayfast.pipeline.exchange import Arrival, Exchange
from stayfast.pipeline.plan import RoutePolicy
from stayfast.pipeline.timing.timeouts import TimerWheel
from stayfast.policy.budget import BudgetConfig, divide_deadline

N_ROUNDS = 200
N_REQUESTS = 500
PARTS = BudgetConfig(admit="10%", cache="5%", context="5%", route="1%", model="50%", relay="20%", post="1%")
BEFORE_THE_REPLY = (Stage.ADMIT, Stage.CACHE, Stage.CONTEXT, Stage.ROUTE, Stage.CALL)


def make_request(policy: RoutePolicy, clock: SystemClock) -> Callable[[], None]:
    """A function that takes a streamed request through its stages, with one read."""
    request, timers = Request(Api.CHAT, "m", True, b""), TimerWheel(clock)

    def once() -> None:
        ex = Exchange(request, Arrival("r", clock.now()), policy, timers)
        for stage in BEFORE_THE_REPLY:
            ex.ledger.enter(stage)
        ex.timeouts.arm("first_token_s", policy.timeouts.first_token_s, clock.now())
        ex.timeouts.disarm()
        ex.ledger.enter(Stage.RELAY)
        ex.ledger.server_timing()  # of the response headers
        ex.timeouts.arm("idle_s", policy.timeouts.idle_s, clock.now())
        ex.timeouts.disarm()
        ex.ledger.enter(Stage.SETTLE)
        ex.timeouts.stop()
        ex.ledger.finish()
        ex.ledger.server_timing()  # at the end of the stream

    return once


async def best_us(once: Callable[[], None]) -> float:
    """Microseconds a call in the best round."""
    best_s = float("inf")
    for _ in range(N_ROUNDS):
        began_at = time.perf_counter()
        for _ in range(N_REQUESTS):
            once()
        best_s = min(best_s, time.perf_counter() - began_at)
        await asyncio.sleep(0)
    return best_s / N_REQUESTS * 1e6


async def main() -> None:
    clock, total_s = SystemClock(), Timeouts().total_s
    plain, shared = RoutePolicy(), RoutePolicy(Timeouts(), divide_deadline(PARTS, total_s, "30%"))
    print(f"no stage budgets   {await best_us(make_request(plain, clock)):6.2f} us a request")
    print(f"all stage budgets  {await best_us(make_request(shared, clock)):6.2f} us a request")


uvloop.run(main())
