"""An asyncio loop in a thread of the tests' own process, for servers that clients without a loop call."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PATIENCE_S = 20.0
T = TypeVar("T")


class LoopThread:
    """The running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.at_end: list[Callable[[], None]] = []  # called in the loop, before its Tasks are cancelled

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


@contextmanager
def loop_in_thread(name: str) -> Iterator[LoopThread]:
    """A loop until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    running = LoopThread(loop)

    async def stop() -> None:
        for close in running.at_end:
            close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed transports end in the loop's next round

    try:
        yield running
    finally:
        running.run(stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
