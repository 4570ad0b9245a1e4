"""Where the next attempt starts: at the first target that has a place under its limit, after a wait if none has.

Where prompts are laid out for a provider's cache, an attempt first waits for another request with the same beginning
(`pipeline.prompt_cache.planner`), within its own time.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.errors import Shed
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import Plan
from stayfast.pipeline.prompt_cache.planner import PlannedPrompt
from stayfast.pipeline.routing.selector import Target
from stayfast.policy.resilience.cross_process import describe_occupancy
from stayfast.policy.resilience.limits import TOLERANCE
from stayfast.upstreams.state.limiter import ConcurrencyLimiter, LimiterWaiter, LimitOption

SHARE_OF_THE_TIME: Final = 0.25  # the most that a request waits for another one to fill the prompt cache


async def choose_target(ex: Exchange, plan: Plan, candidates: deque[Target], ends_at: float, clock: Clock) -> Target:
    """Move the target of the next attempt to the front of the candidates: the first; if it is full, another with a free
    place that is no worse; else whichever of them has a free place first. Start the attempt before anything else is awaited.
    Raises Shed (too many requests wait, or the wait would take too long) and DeadlineExceeded.
    """
    layout, lane = plan.prompt.layout, plan.lane
    if layout is not None:
        await _wait_for_leader(ex, layout, candidates[0], ends_at, clock)
    if candidates[0].member.limiter_of(lane).has_room:
        return candidates[0]
    target: Target | None = None
    while target is None:  # again after a reload that added or removed lanes
        targets = _targets_by_limit(ex, lane, candidates, clock.now())
        target = next((one for limiter, one in targets.items() if limiter.has_room), None)
        if target is None:
            target = await _wait_for_place(ex, plan, targets, ends_at, clock)
        elif target is not candidates[0]:
            first = candidates[0].member
            ex.record.note(f"{target.member.upstream.name} before {first.upstream.name}, which is full: "
                           f"{_describe_occupancy(first.limiter_of(lane))}")
    if target is not candidates[0]:
        candidates.remove(target)
        candidates.appendleft(target)
    return target


async def _wait_for_leader(ex: Exchange, layout: PlannedPrompt, target: Target, ends_at: float, clock: Clock) -> None:
    """Wait while another request fills the prompt cache of the target with the same beginning. Raises DeadlineExceeded."""
    found = layout.find_leaders(target.member.upstream.name, target.model or ex.request.model)
    if found is None or found[0].find_leader(found[1]) is None:
        return
    leaders, key = found
    began_at = clock.now()
    until = began_at + min(layout.wait_s, (ends_at - began_at) * SHARE_OF_THE_TIME)
    leaders.n_waited += 1
    ex.timeouts.arm_bound()
    try:
        async with asyncio.timeout_at(until):
            while (leader := leaders.find_leader(key)) is not None:
                await asyncio.shield(leader)
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        late = ex.timeouts.take_timeout_error(Stage.CALL)
        if late is None:
            raise
        raise late from None
    finally:
        ex.timeouts.disarm()
        ex.record.note(f"waited {(clock.now() - began_at) * 1e3:.0f} ms for another request to fill the prompt cache")


def _targets_by_limit(ex: Exchange, lane: str, candidates: deque[Target], now: float) -> Mapping[ConcurrencyLimiter, Target]:
    """The first candidate and those that are no worse than it, by their limits."""
    targets: dict[ConcurrencyLimiter, Target] = {}
    accepts_any = False
    for target in candidates:
        is_well = target.member.is_healthy(now, target.model or ex.request.model)
        if not targets:
            accepts_any = not is_well
        elif not is_well and not accepts_any:
            continue
        targets.setdefault(target.member.limiter_of(lane), target)
    return targets


async def _wait_for_place(ex: Exchange, plan: Plan, targets: Mapping[ConcurrencyLimiter, Target], ends_at: float,
                          clock: Clock) -> Target | None:
    """The target that has a free place first; None: the limits have changed meanwhile."""
    began_at = clock.now()
    were_full = {limiter: f"{target.member.upstream.name}: {_describe_occupancy(limiter)}"
                 for limiter, target in targets.items()}
    at = next(iter(targets))
    ex.record.use_upstream(targets[at].member.upstream.name)
    ex.timeouts.arm_bound()
    is_rejected = False
    share = plan.share
    tenant, weight = (ex.arrival.tenant or "", 1.0) if share is None else (share.name, share.weight)
    try:
        called = await LimiterWaiter(clock, ends_at - ex.grace_s, plan.band, tenant, weight).wait(
            [LimitOption(limiter, _expected_ttft_s(ex, target)) for limiter, target in targets.items()])
    except Shed as shed:
        is_rejected = True
        ex.record.note(f"rejected, no place in time at {' nor at '.join(were_full.values())}; retry after "
                       f"{shed.retry_after_s or 0:.2g} s")
        raise
    except asyncio.CancelledError:
        late = ex.timeouts.take_timeout_error(Stage.CALL)
        if late is None:
            raise
        raise late from None
    else:
        at = called or at
        return targets[called] if called is not None else None
    finally:
        ex.timeouts.disarm()
        waited_s = clock.now() - began_at
        if waited_s > 0 and not is_rejected:
            ex.record.note(f"waited {waited_s * 1e3:.0f} ms for a place at {were_full[at]}")


def _expected_ttft_s(ex: Exchange, target: Target) -> float:
    """The time to the first token of such a request at the target, unless it is slow; of an unknown class, the shortest."""
    member, request = target.member, ex.request
    is_whole = not (request.stream or member.upstream.always_streams)
    norm = member.baselines.baseline_for(target.model or request.model, len(request.body) // BYTES_A_TOKEN, is_whole)
    return TOLERANCE * (norm.baseline_s or member.fastest_ttft_s)


def _describe_occupancy(limiter: ConcurrencyLimiter) -> str:
    lane = f" of lane {limiter.lane}" if limiter.lane else ""
    taken = describe_occupancy(limiter.n_taken, limiter.limit.value, limiter.shared_limit, " were", lane)
    return f"{taken}, {limiter.n_waiting} others waiting"
