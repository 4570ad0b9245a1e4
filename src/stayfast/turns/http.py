"""The deadline of outgoing HTTP requests: the time left in the turn becomes their timeout, and a header.

    client = httpx.AsyncClient(event_hooks={"request": [httpx_hook]})                     # created once
    session = aiohttp.ClientSession(middlewares=[aiohttp_middleware])
    answer = await openai.chat.completions.create(..., **sdk_options())                   # the same for anthropic

A Stayfast gateway, or any server that reads the header, works within the same deadline. Outside of a budget nothing changes.
None of these libraries is imported here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, TypeVar

from stayfast.turns.budget import OutOfTime, remaining
from stayfast.turns.validation import argument_error, is_seconds

HEADER = "x-stayfast-deadline-ms"
T = TypeVar("T")


def deadline_headers() -> dict[str, str]:
    """The time left, in whole milliseconds, as a header; empty outside of a budget. Raises OutOfTime if no time is left."""
    left_s = _left_s()
    return {} if left_s == inf else {HEADER: _format_ms(left_s)}


def sdk_options(*, timeout: float | None = None, extra_headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Options of one call of the OpenAI or Anthropic SDK: `create(..., **sdk_options())`. Raises OutOfTime.

    Pass your own timeout and headers here: `create(..., **sdk_options(timeout=5, extra_headers={"x-team": "a"}))`.
    """
    if timeout is not None and not is_seconds(timeout):
        raise argument_error(f"timeout={timeout!r:.80}: seconds, above 0, as in sdk_options(timeout=5)", timeout)
    left_s = _left_s()
    headers = dict(extra_headers or ())
    if left_s < inf:
        timeout = left_s if timeout is None else min(left_s, timeout)
        headers[HEADER] = _format_ms(left_s)
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    return options | {"extra_headers": headers} if headers else options


async def httpx_hook(request: Any) -> None:
    """A request hook of `httpx.AsyncClient`: limits its timeouts to the time left. Raises OutOfTime."""
    httpx_sync_hook(request)


def httpx_sync_hook(request: Any) -> None:
    """The same for `httpx.Client`."""
    left_s = _left_s()
    if left_s < inf:
        request.headers[HEADER] = _format_ms(left_s)
        timeouts_s = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {phase: min(left_s, timeouts_s.get(phase) or inf)
                                         for phase in ("connect", "read", "write", "pool")}


async def aiohttp_middleware(request: Any, handler: Callable[[Any], Awaitable[T]]) -> T:
    """A client middleware of aiohttp: the response must begin within the time left. Raises OutOfTime."""
    left_s = _left_s()
    if left_s == inf:
        return await handler(request)
    request.headers[HEADER] = _format_ms(left_s)
    async with asyncio.timeout(left_s):
        return await handler(request)


def _left_s() -> float:
    left_s = remaining()
    if left_s <= 0:
        raise OutOfTime("no time is left in this turn for a request")
    return left_s


def _format_ms(left_s: float) -> str:
    return str(max(1, int(left_s * 1e3)))
