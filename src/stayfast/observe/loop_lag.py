"""How late the event loop runs: the wait that no request can see in itself, because nothing is stamped while it lasts."""

import asyncio

from stayfast.core.clock import Clock
from stayfast.core.events import LoopLag, Sink

EVERY_S = 0.1


async def watch_loop(clock: Clock, sink: Sink) -> None:
    """Set a timer again and again, and tell how late it rang. Until cancelled; costs ten short wake-ups a second."""
    while True:
        due_at = clock.now() + EVERY_S
        await asyncio.sleep(EVERY_S)
        sink.emit(LoopLag(max(0.0, clock.now() - due_at)))
