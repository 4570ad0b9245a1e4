"""Going second: a request waits for one that begins alike and went first (see `leading`), within its own time."""

import asyncio
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.types import Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Target
from stayfast.pipeline.prefixing import Layout

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
