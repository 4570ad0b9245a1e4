"""Threads for steps that are plain functions.

A thread cannot be cancelled. Hanging calls would fill up a thread pool, and a pool waits for them when the process exits. So
each call has its own daemon thread. Their number is bounded, and `running_threads` lists them, abandoned ones included.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

MAX_THREADS = 64

StartThread = Callable[[str, Callable[[], Any]], "Future[Any]"]


class TooManyThreads(RuntimeError):
    """MAX_THREADS are busy; no thread was started."""


class _ThreadFuture(Future[Any]):
    """The result of a call. `cancel` marks the call as abandoned; it cannot end a running one."""

    is_abandoned = False

    def cancel(self) -> bool:
        self.is_abandoned = True
        return super().cancel()


class StepThread(threading.Thread):
    """The thread of one call. As a context manager it sets an exception raised in it on the future."""

    def __init__(self, step: str, call: Callable[[], Any]) -> None:
        super().__init__(name=f"stayfast-step-{step}", daemon=True)
        self.step = step
        self.future = _ThreadFuture()
        self._call = call

    @property
    def is_abandoned(self) -> bool:
        """Whether the step no longer waits for this thread."""
        return self.future.is_abandoned

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            with self:
                self.future.set_result(self._call())

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> bool:
        if error is not None:
            self.future.set_exception(error)
        return True


def running_threads() -> list[StepThread]:
    """The running threads of all turns, abandoned ones included."""
    return [thread for thread in threading.enumerate() if isinstance(thread, StepThread)]


def start_thread(step: str, call: Callable[[], Any]) -> "Future[Any]":
    """Start `call` in a thread. Raises TooManyThreads at MAX_THREADS, with the names of the running steps."""
    others = running_threads()
    if len(others) >= MAX_THREADS:
        n_abandoned = sum(thread.is_abandoned for thread in others)
        names = ", ".join(sorted({thread.step for thread in others}))
        raise TooManyThreads(f"{len(others)} threads are busy, {n_abandoned} of them abandoned, in steps {names}")
    thread = StepThread(step, call)
    thread.start()
    return thread.future
