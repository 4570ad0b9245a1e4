"""The deadline on its way in: an endpoint of FastAPI or Starlette runs in the budget that its caller has left.

    @app.post("/ask")
    @within(total=4.0, reserve={"answer": 1.6})
    async def ask(question: Question) -> Answer:
        return await current().run(answer, question)

The caller says how long it waits in `x-stayfast-deadline-ms`, or any other header that the gateway takes; that makes the
budget shorter, never longer. What is no number is answered by 400, a turn that outlives its time by 504, and a step that its
breaker skips by 503, where it has no fallback. When the caller leaves, the endpoint is cancelled with all that it runs; not
one that takes the `Request` itself, as only one can read from it. Needs Starlette.
When wrong: what a `StreamingResponse` streams is asked for when the endpoint has returned, and the budget is over.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from math import inf
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from stayfast.core.errors import Rejected
from stayfast.turns.budget import budget
from stayfast.turns.errors import OutOfTime, StepSkipped, StepTimeout
from stayfast.turns.running import CLEANUP_S
from stayfast.wire.patience import patience_s

T = TypeVar("T")
Endpoint = Callable[..., Coroutine[Any, Any, T]]
_INJECTED = "stayfast_request"


def within(total: float, reserve: Mapping[str, float] = MappingProxyType({})) -> Callable[[Endpoint[T]], Endpoint[T]]:
    """Run an async endpoint in a budget of `total` seconds, or of what its caller has left. ValueError as of `budget`."""
    budget(total, reserve)

    def decorated(endpoint: Endpoint[T]) -> Endpoint[T]:
        if not inspect.iscoroutinefunction(endpoint):
            raise TypeError(f"{endpoint!r:.80} is a plain function that nobody can end: write `async def`, and what "
                            "blocks as a step of it, await current().run(look_up, name)")
        signature = inspect.signature(endpoint, eval_str=True)
        name = next((name for name, its in signature.parameters.items() if _is_request(its)), None)

        @wraps(endpoint)
        async def ending(*args: Any, **kwargs: Any) -> T:
            request = kwargs.pop(_INJECTED) if name is None else signature.bind(*args, **kwargs).arguments[name]
            try:
                patience = patience_s(dict(request.headers.raw))
                async with budget(total, reserve, patience=inf if patience is None else patience):
                    work = endpoint(*args, **kwargs)
                    return await (work if name is not None else _unless_left(request, work))
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


def _is_request(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    if kind is parameter.empty or kind is Any:  # as Starlette's endpoints may have it
        return parameter.name == "request"
    return isinstance(kind, type) and issubclass(kind, Request)


async def _unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; it is cancelled where the caller leaves."""
    loop = asyncio.get_running_loop()
    working, leaving = loop.create_task(work), loop.create_task(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving.result()  # where the server could not say
            raise HTTPException(499, "The caller has left.")
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,), timeout=CLEANUP_S)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
