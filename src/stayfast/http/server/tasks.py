"""The one place that makes Tasks. Each is held until it ends, and none ends in silence."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Running Tasks of one loop. `on_error(error)` gets every exception but cancellation; it must not raise."""

    __slots__ = ("_on_error", "_running", "loop")

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a Task; it runs from the next turn of the loop."""
        task = self.loop.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def report(self, error: BaseException) -> None:
        """Hand on an exception that its Task has answered for in another way (with a 500, say)."""
        self._on_error(error)

    async def wait(self, limit_s: float) -> None:
        """Return when none is running, or after `limit_s` seconds."""
        if self._running:
            await asyncio.wait(self._running, timeout=limit_s)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<Tasks: {len(self._running)} running>"
