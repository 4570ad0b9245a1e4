"""Threads in virtual time: plain functions that take as long as they say, without a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class _Outcome(Future[Any]):
    """That of a function that runs: it can no longer be cancelled, only left alone."""

    is_abandoned = False

    def cancel(self) -> bool:
        """See concurrent.futures."""
        self.is_abandoned = True
        return False


class VirtualThreads:
    """Starts plain functions on the running virtual loop: `budget(2.5, threads=VirtualThreads())`.

    In such a function `sleep(seconds)` stands for what would block. It is run at once, to the end; its result comes later.
    """

    def __init__(self) -> None:
        self._took_s = 0.0
        self.running: dict[Future[Any], str] = {}  # what has not ended, by the step's name

    def sleep(self, seconds: float) -> None:
        """The function that runs takes so much longer."""
        self._took_s += seconds

    def __call__(self, step: str, call: Callable[[], Any]) -> "Future[Any]":
        """Start one."""
        outcome = _Outcome()
        self._took_s = 0.0
        done = Future[Any]()
        done.set_running_or_notify_cancel()
        with _Into(done):
            done.set_result(call())
        self.running[outcome] = step
        asyncio.get_running_loop().call_later(self._took_s, self._end, outcome, done)
        return outcome

    def _end(self, outcome: "Future[Any]", done: "Future[Any]") -> None:
        del self.running[outcome]
        error = done.exception()
        if error is None:
            outcome.set_result(done.result())
        else:
            outcome.set_exception(error)


class _Into:
    """Hands what is raised inside to a future."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
