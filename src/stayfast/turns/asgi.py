"""The deadline of incoming requests: an endpoint of FastAPI or Starlette runs in a budget within its client's timeout.

    @app.post("/ask")
    @with_budget(total=4.0, reserve={"answer": 1.6})
    async def ask(question: Question) -> Answer:
        return await current_budget().run(answer, question)

The client sends its timeout in `x-stayfast-deadline-ms`, or another header that the gateway accepts; it can only shorten the
budget. Status codes: 400 for a header that is not a number, 504 for a turn out of time, 503 for a step without fallback that
its breaker skips. When the client disconnects, the endpoint is cancelled with all its steps, unless it takes the `Request`
itself: only one reader can receive from it. Needs Starlette.

The body of a `StreamingResponse`, or another response with a `body_iterator`, is part of the turn: the budget stays open
until its end. When the time is over, or the client disconnects, the iterator is cancelled and closed. The status is already
sent then, so the connection is aborted; a client cannot mistake a partial body for a complete one.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from functools import wraps
from math import inf
from types import MappingProxyType
from typing import Any, TypeVar, cast

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stayfast.core.errors import Rejected
from stayfast.turns.budget import Budget, OutOfTime, budget
from stayfast.turns.step import StepSkipped, StepTimeout
from stayfast.turns.step_run import CLEANUP_S
from stayfast.turns.validation import argument_error, is_seconds
from stayfast.wire.client_headers import parse_client_timeout_s

T = TypeVar("T")
Endpoint = Callable[..., Coroutine[Any, Any, T]]
_INJECTED = "stayfast_request"


class _ClientLeft(Exception):
    """The client disconnected."""


def with_budget(total: float, reserve: Mapping[str, float] = MappingProxyType({})) -> Callable[[Endpoint[T]], Endpoint[T]]:
    """Run an async endpoint in a budget of `total` seconds, or of the client's timeout. Raises like `budget`."""
    if not is_seconds(total):
        raise argument_error(f"total={total!r:.80}: seconds for the endpoint, as in @with_budget(total=4.0)", total)
    budget(total, reserve)

    def decorate(endpoint: Endpoint[T]) -> Endpoint[T]:
        _check_endpoint(endpoint)
        signature = inspect.signature(endpoint, eval_str=True)
        name = next((name for name, parameter in signature.parameters.items() if _is_request(parameter)), None)

        @wraps(endpoint)
        async def run_in_budget(*args: Any, **kwargs: Any) -> T:
            request = kwargs.pop(_INJECTED) if name is None else signature.bind(*args, **kwargs).arguments[name]
            try:
                timeout_s = parse_client_timeout_s(dict(request.headers.raw))
                async with AsyncExitStack() as stack:
                    b = await stack.enter_async_context(
                        budget(total, reserve, caller_timeout=inf if timeout_s is None else timeout_s))
                    work = endpoint(*args, **kwargs)
                    result = await (work if name is not None else _cancel_if_left(request.receive, work))
                    if isinstance(result, Response) and hasattr(result, "body_iterator"):
                        stack.pop_all()
                        await b.suspend()
                        return cast("T", _StreamedInBudget(result, b, watches=name is None))
                    return result
            except _ClientLeft:
                raise HTTPException(499, "The client disconnected.") from None
            except Rejected as error:
                raise HTTPException(error.status, error.message) from error
            except (OutOfTime, StepTimeout) as error:
                raise HTTPException(504, "The time for this request is over.") from error
            except StepSkipped as error:
                raise HTTPException(503, "A part of this service is temporarily unavailable.") from error

        if name is None:  # so that FastAPI passes the request
            injected = inspect.Parameter(_INJECTED, inspect.Parameter.KEYWORD_ONLY, annotation=Request)
            signature = signature.replace(parameters=[*signature.parameters.values(), injected])
        run_in_budget.__dict__["__signature__"] = signature
        return run_in_budget

    return decorate


def _check_endpoint(endpoint: object) -> None:
    if inspect.isasyncgenfunction(endpoint):
        raise TypeError(f"{endpoint!r:.80} yields: return StreamingResponse(pieces()) instead; its body is part of the turn")
    if not inspect.iscoroutinefunction(endpoint):
        raise TypeError(f"{endpoint!r:.80} is a plain function, which cannot be cancelled: write `async def`, and run "
                        "blocking code in a step, await current_budget().run(look_up, name)")


def _is_request(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    if kind is parameter.empty or kind is Any:  # Starlette's endpoints need no annotation
        return parameter.name == "request"
    return isinstance(kind, type) and issubclass(kind, Request)


class _StreamedInBudget(Response):
    """A response that is sent in the budget of its endpoint and closes it. Status, headers and background are shared."""

    __slots__ = ("_budget", "_response", "_watches")

    def __init__(self, response: Response, open_budget: Budget, *, watches: bool) -> None:
        self.__dict__ = response.__dict__  # one set of attributes for both
        self._response = response
        self._budget = open_budget
        self._watches = watches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        background, self.background = self.background, None  # runs after the turn
        async with AsyncExitStack() as stack:
            await self._budget.resume()
            stack.push_async_exit(self._budget)
            stack.push_async_callback(_close, self._response)
            try:
                if self._watches:
                    await _cancel_if_left(receive, self._response(scope, _never_receive, send))
                else:
                    await self._response(scope, receive, send)
            except _ClientLeft:
                pass
            except ClientDisconnect as error:
                if isinstance(error.__context__, TimeoutError):  # Starlette converts every OSError, which TimeoutError is
                    raise error.__context__ from None
                raise
        if background is not None:
            await background()


async def _never_receive() -> Message:
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never


async def _close(response: Any) -> None:
    """Close a generator that was interrupted, so that it releases its resources."""
    pieces = response.body_iterator
    if inspect.isasyncgen(pieces) and not pieces.ag_running:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_S):
                await pieces.aclose()


async def _cancel_if_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. If the client disconnects first, cancels the work and raises _ClientLeft."""
    loop = asyncio.get_running_loop()
    working, leaving = loop.create_task(work), loop.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving.result()  # raises if receiving failed
            raise _ClientLeft
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,), timeout=CLEANUP_S)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
