"""A place at an upstream that takes no more than its limit: elsewhere, or after a wait."""

import asyncio
from collections import deque

from stayfast.core.clock import Clock
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Target
from stayfast.upstreams.registry import Member


async def make_room(ex: Exchange, candidates: deque[Target], ends_at: float, clock: Clock) -> None:
    """Return when an attempt may begin at the first candidate, before anything else is awaited.

    Where the first is full, another that has room and is no worse comes to the front; where none has, the request waits for
    the first, under its deadline. Raises Shed (too many wait, or it would take too long) and DeadlineExceeded.
    """
    member = candidates[0].member
    if member.has_room:
        return
    now = clock.now()
    is_well = member.is_well(now)
    for target in candidates:
        other = target.member
        if other.has_room and (other.is_well(now) or not is_well):
            candidates.remove(target)
            candidates.appendleft(target)
            ex.notes.append(f"{other.upstream.name} before {member.upstream.name}, which is full: {_full(member)}")
            return
    ex.upstream = member.upstream.name
    ex.watch.arm_bound()
    was_full = _full(member)
    try:
        await member.room(ends_at - now)
    except asyncio.CancelledError:
        verdict = ex.watch.verdict(Stage.CALL)
        if verdict is None:
            raise
        raise verdict from None
    finally:
        ex.watch.disarm()
        waited_s = clock.now() - now
        if waited_s > 0:  # else it was turned away at once, and says so itself
            ex.notes.append(f"waited {waited_s * 1e3:.0f} ms for a place at {member.upstream.name}: {was_full}")


def _full(member: Member) -> str:
    n_elsewhere = member.common.n_elsewhere() if member.common is not None else 0
    theirs = f" ({n_elsewhere} of them by other workers)" if n_elsewhere else ""
    return (f"{member.n_in_flight + n_elsewhere} of {member.limit.value:.0f} places were taken{theirs}, {member.n_waiting} "
            f"others waiting")
