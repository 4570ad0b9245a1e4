"""What a request pays for its deadline: ledger, timer and `Server-Timing`, without parts and with all of them.

Run it as `python scripts/bench/budget.py`; it prints microseconds a request, the best of many rounds, since what is
slower was the machine. It says nothing of the stages themselves.
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
from stayfast.policy.budget import BudgetConfig, share_out

N_ROUNDS = 200
N_REQUESTS = 500
PARTS = BudgetConfig(admit="10%", cache="5%", context="5%", route="1%", model="50%", relay="20%", post="1%")
BEFORE_THE_REPLY = (Stage.ADMIT, Stage.CACHE, Stage.CONTEXT, Stage.ROUTE, Stage.CALL)


def life(terms: RoutePolicy, clock: SystemClock) -> Callable[[], None]:
    """A streamed request's way through its stages, with one read."""
    request, timers = Request(Api.CHAT, "m", True, b""), TimerWheel(clock)

    def once() -> None:
        ex = Exchange(request, Arrival("r", clock.now()), terms, timers)
        for stage in BEFORE_THE_REPLY:
            ex.enter(stage)
        ex.timeouts.arm("first_token_s", terms.timeouts.first_token_s, clock.now())
        ex.timeouts.disarm()
        ex.enter(Stage.RELAY)
        ex.ledger.server_timing()  # of the head
        ex.timeouts.arm("idle_s", terms.timeouts.idle_s, clock.now())
        ex.timeouts.disarm()
        ex.ledger.enter(Stage.SETTLE)
        ex.timeouts.stop()
        ex.ledger.finish()
        ex.ledger.server_timing()  # of the last line

    return once


async def best_us(once: Callable[[], None]) -> float:
    """Microseconds a call."""
    best_s = float("inf")
    for _ in range(N_ROUNDS):
        began_at = time.perf_counter()
        for _ in range(N_REQUESTS):
            once()
        best_s = min(best_s, time.perf_counter() - began_at)
        await asyncio.sleep(0)
    return best_s / N_REQUESTS * 1e6


async def main() -> None:
    """Both, in turn."""
    clock, total_s = SystemClock(), Timeouts().total_s
    plain, shared = RoutePolicy(), RoutePolicy(Timeouts(), share_out(PARTS, total_s, "30%"))
    print(f"no parts   {await best_us(life(plain, clock)):6.2f} us a request")
    print(f"all parts  {await best_us(life(shared, clock)):6.2f} us a request")


uvloop.run(main())
