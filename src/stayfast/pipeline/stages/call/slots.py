"""A place at an upstream that takes no more than its limit: elsewhere, or after a wait.

Going second: a request waits for one that begins alike and went first (see `leading`), within its own time.
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
from stayfast.pipeline.plan import Target
from stayfast.pipeline.prompt_cache.planner import Layout
from stayfast.policy.resilience.limits import TOLERANCE
from stayfast.upstreams.state.limiter import Choice, Limited, Turn

SHARE_OF_THE_TIME: Final = 0.25  # that is spent on waiting, at most


async def follow(ex: Exchange, layout: Layout, target: Target, ends_at: float, clock: Clock) -> None:
    """Return when this request may go to the target: at once, unless another is having the same beginning remembered there.

    Raises DeadlineExceeded.
    """
    found = layout.leads(target.member.upstream.name, target.model or ex.request.model)
    if found is None or found[0].ahead(found[1]) is None:
        return
    leads, key = found
    began_at = clock.now()
    until = began_at + min(layout.wait_s, (ends_at - began_at) * SHARE_OF_THE_TIME)
    leads.n_waited += 1
    ex.watch.arm_bound()
    try:
        async with asyncio.timeout_at(until):
            while (lead := leads.ahead(key)) is not None:
                await asyncio.shield(lead)  # it is not this request's own to cancel
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        verdict = ex.watch.verdict(Stage.CALL)
        if verdict is None:
            raise
        raise verdict from None
    finally:
        ex.watch.disarm()
        ex.notes.append(f"waited {(clock.now() - began_at) * 1e3:.0f} ms for another request to fill the prompt cache")


def must_wait(ex: Exchange, target: Target, layout: Layout | None) -> bool:
    """Whether an attempt at the target may have to wait, or to go elsewhere: else there is no need for `make_room`."""
    return layout is not None or not target.member.limited(ex.lane).has_room


async def make_room(ex: Exchange, candidates: deque[Target], ends_at: float, clock: Clock,
                    layout: Layout | None = None) -> Target:
    """Who comes to the front of the candidates: an attempt may begin there, before anything else is awaited.

    The first; where it is full, another that has room and is no worse; where none has, whichever of those has a place first,
    after a wait under the request's deadline. Before that it lets another that begins alike go first (see `follow`).
    Raises Shed (too many wait, or it would take too long) and DeadlineExceeded.
    """
    if layout is not None:
        await follow(ex, layout, candidates[0], ends_at, clock)
    limited = candidates[0].member.limited(ex.lane)
    if limited.has_room:
        return candidates[0]
    target: Target | None = None
    while target is None:  # again where a reload has brought lanes, or ended them
        targets = _well(ex, candidates, clock.now())
        target = next((one for at, one in targets.items() if at.has_room), None)
        if target is None:
            target = await _wait(ex, targets, ends_at, clock)
        elif target is not candidates[0]:
            first = candidates[0].member
            ex.notes.append(f"{target.member.upstream.name} before {first.upstream.name}, which is full: "
                            f"{_full(first.limited(ex.lane))}")
    if target is not candidates[0]:
        candidates.remove(target)
        candidates.appendleft(target)
    return target


def _well(ex: Exchange, candidates: deque[Target], now: float) -> Mapping[Limited, Target]:
    """The first, and those that are no worse, by the limits that they are under."""
    targets: dict[Limited, Target] = {}
    takes_any = False
    for target in candidates:
        is_well = target.member.is_well(now, target.model or ex.request.model)
        if not targets:
            takes_any = not is_well
        elif not is_well and not takes_any:
            continue
        targets.setdefault(target.member.limited(ex.lane), target)
    return targets


async def _wait(ex: Exchange, targets: Mapping[Limited, Target], ends_at: float, clock: Clock) -> Target | None:
    """The target that has a place first; None: ask again."""
    began_at = clock.now()
    were_full = {limited: f"{target.member.upstream.name}: {_full(limited)}" for limited, target in targets.items()}
    at = next(iter(targets))
    ex.upstream = targets[at].member.upstream.name
    ex.watch.arm_bound()
    is_away = False
    band, share = ex.rank or (0, None)
    tenant, weight = (ex.arrival.tenant or "", 1.0) if share is None else (share.name, share.weight)
    try:
        called = await Turn(clock, ends_at, band, tenant, weight).wait(
            [Choice(limited, _first_s(ex, target)) for limited, target in targets.items()])
    except Shed as shed:
        is_away = True
        ex.notes.append(f"turned away, no place in time at {' nor at '.join(were_full.values())}; to come again in "
                        f"{shed.retry_after_s or 0:.2g} s")
        raise
    except asyncio.CancelledError:
        verdict = ex.watch.verdict(Stage.CALL)
        if verdict is None:
            raise
        raise verdict from None
    else:
        at = called or at
        return targets[called] if called is not None else None
    finally:
        ex.watch.disarm()
        waited_s = clock.now() - began_at
        if waited_s > 0 and not is_away:
            ex.notes.append(f"waited {waited_s * 1e3:.0f} ms for a place at {were_full[at]}")


def _first_s(ex: Exchange, target: Target) -> float:
    """What the first token of such a request takes there unless it is slow; in a class that nobody knows yet, any."""
    member, request = target.member, ex.request
    is_whole = not (request.stream or member.upstream.always_streams)
    norm = member.usual.norm(target.model or request.model, len(request.body) // BYTES_A_TOKEN, is_whole)
    return TOLERANCE * (norm.usual_s or member.quickest_s)


def _full(limited: Limited) -> str:
    n_elsewhere = limited.common.n_elsewhere() if limited.common is not None else 0
    theirs = f" ({n_elsewhere} of them by other workers)" if n_elsewhere else ""
    lane = f" of lane {limited.lane}" if limited.lane else ""
    return (f"{limited.n_in_flight + n_elsewhere} of {limited.limit.value:.0f} places{lane} were taken{theirs}, "
            f"{limited.n_waiting} others waiting")
