"""One turn of a loop that must not end: a loop of jobs that ends stays ended until the process is restarted."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stayfast.stores.base import StoreUnavailable

ReportError = Callable[[BaseException], None]


async def attempt(turn: Coroutine[Any, Any, None], report: ReportError) -> bool:
    """Returns whether the turn ended without an exception. report: gets every exception except StoreUnavailable."""
    failure: BaseException | None
    (failure,) = await asyncio.gather(turn, return_exceptions=True)
    if failure is not None and not isinstance(failure, StoreUnavailable):
        report(failure)
    return failure is None
