"""The deadline on its way in: an endpoint of FastAPI or Starlette runs in the budget that its caller has left.

    @app.post("/ask")
    @with_budget(total=4.0, reserve={"answer": 1.6})
    async def ask(question: Question) -> Answer:
        return await current_budget().run(answer, question)

The caller says how long it waits in `x-stayfast-deadline-ms`, or any other header that the gateway takes; that makes the
budget shorter, never longer. What is no number is answered by 400, a turn that outlives its time by 504, and a step that its
breaker skips by 503, where it has no fallback. When the caller leaves, the endpoint is cancelled with all that it runs; not
one that takes the `Request` itself, as only one can read from it. Needs Starlette.

What a `StreamingResponse`, or another one with a `body_iterator`, streams is a part of the turn: the budget is open, and
`current_budget()` and `remaining()` its own, until the body's end. When its time is over, or its reader leaves, the iterator is
cancelled and closed. As the status has been sent by then, the connection breaks off: no client takes half of it for all.
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
from stayfast.wire.client_headers import client_timeout_s

T = TypeVar("T")
Endpoint = Callable[..., Coroutine[Any, Any, T]]
_INJECTED = "stayfast_request"


class _ClientLeft(Exception):
    """Nobody waits any more."""


def with_budget(total: float, reserve: Mapping[str, float] = MappingProxyType({})) -> Callable[[Endpoint[T]], Endpoint[T]]:
    """Run an async endpoint in a budget of `total` seconds, or of what its caller has left. ValueError as of `budget`."""
    if not is_seconds(total):
        raise argument_error(f"total={total!r:.80}: the most seconds that the endpoint may take, as in "
                             f"@with_budget(total=4.0)",
                             total)
    budget(total, reserve)

    def decorated(endpoint: Endpoint[T]) -> Endpoint[T]:
        _check_endpoint(endpoint)
        signature = inspect.signature(endpoint, eval_str=True)
        name = next((name for name, parameter in signature.parameters.items() if _is_request(parameter)), None)

        @wraps(endpoint)
        async def ending(*args: Any, **kwargs: Any) -> T:
            request = kwargs.pop(_INJECTED) if name is None else signature.bind(*args, **kwargs).arguments[name]
            try:
                patience = client_timeout_s(dict(request.headers.raw))
                async with AsyncExitStack() as opened:
                    b = await opened.enter_async_context(
                        budget(total, reserve, caller_timeout=inf if patience is None else patience))
                    work = endpoint(*args, **kwargs)
                    made = await (work if name is not None else _cancel_if_left(request.receive, work))
                    if isinstance(made, Response) and hasattr(made, "body_iterator"):
                        opened.pop_all()
                        await b.suspend()
                        return cast("T", _Streamed(made, b, watches=name is None))
                    return made
            except _ClientLeft:
                raise HTTPException(499, "The caller has left.") from None
            except Rejected as error:
                raise HTTPException(error.status, error.message) from error
            except (OutOfTime, StepTimeout) as error:
                raise HTTPException(504, "The time for this request is over.") from error
            except StepSkipped as error:
                raise HTTPException(503, "A part of this service is left alone, as it fails.") from error

        if name is None:  # so that FastAPI hands it over
            injected = inspect.Parameter(_INJECTED, inspect.Parameter.KEYWORD_ONLY, annotation=Request)
            signature = signature.replace(parameters=[*signature.parameters.values(), injected])
        ending.__dict__["__signature__"] = signature
        return ending

    return decorated


def _check_endpoint(endpoint: object) -> None:
    if inspect.isasyncgenfunction(endpoint):
        raise TypeError(f"{endpoint!r:.80} yields: let the endpoint return StreamingResponse(pieces()), whose pieces are a "
                        "part of its turn then")
    if not inspect.iscoroutinefunction(endpoint):
        raise TypeError(f"{endpoint!r:.80} is a plain function that nobody can end: write `async def`, and what "
                        "blocks as a step of it, await current_budget().run(look_up, name)")


def _is_request(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    if kind is parameter.empty or kind is Any:  # as Starlette's endpoints may have it
        return parameter.name == "request"
    return isinstance(kind, type) and issubclass(kind, Request)


class _Streamed(Response):
    """A response that goes on in the turn of its endpoint, which it ends. Status, headers and background are its own."""

    __slots__ = ("_of", "_turn", "_watches")

    def __init__(self, of: Response, turn: Budget, *, watches: bool) -> None:
        self.__dict__ = of.__dict__  # what is changed here is changed there
        self._of = of
        self._turn = turn
        self._watches = watches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        background, self.background = self.background, None  # that is no part of the turn
        async with AsyncExitStack() as opened:
            await self._turn.resume()
            opened.push_async_exit(self._turn)
            opened.push_async_callback(_close, self._of)
            try:
                if self._watches:
                    await _cancel_if_left(receive, self._of(scope, _never_receive, send))
                else:
                    await self._of(scope, receive, send)
            except _ClientLeft:
                pass
            except ClientDisconnect as error:
                if isinstance(error.__context__, TimeoutError):  # which is an OSError, and so taken for a reader that left
                    raise error.__context__ from None
                raise
        if background is not None:
            await background()


async def _never_receive() -> Message:
    nothing: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await nothing


async def _close(response: Any) -> None:
    """Let a generator that was left in the middle close what it holds."""
    pieces = response.body_iterator
    if inspect.isasyncgen(pieces) and not pieces.ag_running:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_S):
                await pieces.aclose()


async def _cancel_if_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; it is cancelled where the caller leaves. Raises _CallerLeft then."""
    loop = asyncio.get_running_loop()
    working, leaving = loop.create_task(work), loop.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving.result()  # where the server could not say
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
