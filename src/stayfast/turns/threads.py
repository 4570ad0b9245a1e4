"""Steps that are plain functions: each runs in a thread of its own, and one that is not waited for is abandoned visibly.

A thread cannot be cancelled. A pool of them fills up with what hangs, and keeps the program from ending; so each call gets
a thread that ends with the program, their number is bounded, and who is still there can be asked (`running`).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

MAX_THREADS = 64

StartThread = Callable[[str, Callable[[], Any]], "Future[Any]"]


class TooManyThreads(RuntimeError):
    """Nothing was started."""


class _ThreadFuture(Future[Any]):
    """What a call comes to. A running one cannot be cancelled: who tries abandons it."""

    is_abandoned = False

    def cancel(self) -> bool:
        self.is_abandoned = True
        return super().cancel()


class StepThread(threading.Thread):
    """One call. As a context it hands what is raised to whoever waits."""

    def __init__(self, step: str, call: Callable[[], Any]) -> None:
        super().__init__(name=f"stayfast-step-{step}", daemon=True)
        self.step = step
        self.future = _ThreadFuture()
        self._call = call

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
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
    """The threads of steps that have not ended, of all turns; those that nobody waits for say `is_abandoned`."""
    return [thread for thread in threading.enumerate() if isinstance(thread, StepThread)]


def start_thread(step: str, call: Callable[[], Any]) -> "Future[Any]":
    """Start `call` in a thread. Raises TooManyThreads at MAX_THREADS, naming what is there."""
    others = running_threads()
    if len(others) >= MAX_THREADS:
        n_abandoned = sum(thread.is_abandoned for thread in others)
        names = ", ".join(sorted({thread.step for thread in others}))
        raise TooManyThreads(f"{len(others)} threads are busy, {n_abandoned} of them abandoned, with {names}")
    thread = StepThread(step, call)
    thread.start()
    return thread.future
