"""A place at an upstream that takes no more than its limit: elsewhere, or after a wait."""

import asyncio
from collections import deque

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.following import follow
from stayfast.pipeline.handoffs import Target
from stayfast.pipeline.prefixing import Layout
from stayfast.upstreams.limited import Limited


def must_wait(ex: Exchange, target: Target, layout: Layout | None) -> bool:
    """Whether an attempt at the target may have to wait, or to go elsewhere: else there is no need for `make_room`."""
    return layout is not None or not target.member.limited(ex.lane).has_room


async def make_room(ex: Exchange, candidates: deque[Target], ends_at: float, clock: Clock,
                    layout: Layout | None = None) -> Target:
    """The first candidate, when an attempt may begin there, before anything else is awaited.

    Where the first is full, another that has room and is no worse comes to the front; where none has, the request waits for
    the first, under its deadline. Before that it lets another that begins alike go first (see `follow`).
    Raises Shed (too many wait, or it would take too long) and DeadlineExceeded.
    """
    if layout is not None:
        await follow(ex, layout, candidates[0], ends_at, clock)
    member, lane = candidates[0].member, ex.lane
    limited = member.limited(lane)
    if limited.has_room:
        return candidates[0]
    now = clock.now()
    model = ex.request.model
    is_well = member.is_well(now, candidates[0].model or model)
    for target in candidates:
        other = target.member
        if other.limited(lane).has_room and (other.is_well(now, target.model or model) or not is_well):
            candidates.remove(target)
            candidates.appendleft(target)
            ex.notes.append(f"{other.upstream.name} before {member.upstream.name}, which is full: {_full(limited)}")
            return target
    ex.upstream = member.upstream.name
    ex.watch.arm_bound()
    was_full = _full(limited)
    try:
        await limited.room(ends_at - now)
        while (its := member.limited(lane)) is not limited:  # a reload has brought lanes, or ended them
            limited = its
            await limited.room(ends_at - clock.now())
    except Shed as shed:
        ex.notes.append(f"turned away, no place at {member.upstream.name} in time: {was_full}, the next one may be free in "
                        f"{shed.retry_after_s or 0:.2g} s")
        was_full = ""
        raise
    except asyncio.CancelledError:
        verdict = ex.watch.verdict(Stage.CALL)
        if verdict is None:
            raise
        raise verdict from None
    finally:
        ex.watch.disarm()
        waited_s = clock.now() - now
        if was_full and waited_s > 0:
            ex.notes.append(f"waited {waited_s * 1e3:.0f} ms for a place at {member.upstream.name}: {was_full}")
    return candidates[0]


def _full(limited: Limited) -> str:
    n_elsewhere = limited.common.n_elsewhere() if limited.common is not None else 0
    theirs = f" ({n_elsewhere} of them by other workers)" if n_elsewhere else ""
    lane = f" of lane {limited.lane}" if limited.lane else ""
    return (f"{limited.n_in_flight + n_elsewhere} of {limited.limit.value:.0f} places{lane} were taken{theirs}, "
            f"{limited.n_waiting} others waiting")
