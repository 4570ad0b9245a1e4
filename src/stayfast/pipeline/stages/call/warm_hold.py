"""A request that finds no replica ready waits here for one to start, within its own time.

Its time for a fallback stays: `Plan.hold_until` ends before it. A replica that turned ready comes first; if none does in
time, the fallback answers; without one, the request is sent as if there were no phases.
"""

import asyncio

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan
from stayfast.pipeline.warm.route_pool import RoutePool


async def hold_until_ready(ex: Exchange, plan: Plan, pool: RoutePool, clock: Clock) -> Plan | None:
    """The plan to call, after the wait; None: the fallback must answer. Raises DeadlineExceeded."""
    began_at, model = clock.now(), ex.request.model
    pool.n_held += 1
    ex.timeouts.arm_bound()
    try:
        while True:
            now = clock.now()
            ready = tuple([one for one in plan.candidates
                           if one.member.is_ready_replica or one.member.load_of(now, one.model or model).share > 0])
            if ready or now >= plan.hold_until or not await pool.wait_changed(plan.hold_until):
                break
    except asyncio.CancelledError:
        late = ex.timeouts.take_timeout_error(Stage.CALL)
        if late is None:
            raise
        raise late from None
    finally:
        ex.timeouts.disarm()
        pool.n_held -= 1
        ex.record.note(f"waited {(clock.now() - began_at) * 1e3:.0f} ms for a replica to be ready")
    if not ready and plan.fallback:
        return None
    others = [target for target in plan.candidates if not any(target is one for one in ready)]
    return replace(plan, candidates=(*ready, *others), hold=None)


class NoReplicaReady(UpstreamFailed):
    """Nothing was sent: no replica of the route became ready in time."""

    status = 503

    def __init__(self, plan: Plan) -> None:
        names = ", ".join(target.member.upstream.name for target in plan.candidates)
        super().__init__(names, Fault.CONNECT, f"not sent to {names}: none of them was ready in time",
                         code="no_replica_ready", kind="overloaded_error", retry_after_s=1.0)
