"""Background Tasks of the pipeline: shared calls, hedges, refreshes, labels."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Tasks of one loop. Each is referenced until it ends; an unexpected error goes to the loop's exception handler."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a Task; it runs from the next turn of the loop."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a background Task ended in an unexpected error", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    def __len__(self) -> int:
        return len(self._running)
