"""Runs the hooks of one route around a request.

They see and return parsed JSON, never internals. The changed request is validated again, and is what the cache, equal
requests and the upstream see. Streams are not rewritten: `after` runs on whole answers only.
When wrong: a plain function that blocks stops all requests of its worker for as long; `thread: true` avoids that.
"""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import HookFailed, Rejected
from stayfast.core.types import Chunk, Request
from stayfast.pipeline.hooks.config import HooksConfig
from stayfast.pipeline.hooks.hook import HookAnswer, HookRefused, HookRequest, LoadedHook
from stayfast.wire.request_body import decode

StartThread = Callable[[str, Callable[[], Any]], "Future[Any]"]
_FIXED = ("model", "stream")
_OBJECT: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class HookedRequest:
    """A request whose route has hooks, between `before` and `after`."""

    __slots__ = ("_clock", "_deadline", "_hooks", "_note", "_streams", "view")

    def __init__(self, hooks: "RouteHooks", view: HookRequest, deadline: Deadline, *, clock: Clock,
                 note: Callable[[str], None], streams: bool) -> None:
        self.view = view
        self._streams = streams
        self._hooks = hooks
        self._deadline = deadline
        self._clock = clock
        self._note = note

    async def run(self, hook: LoadedHook, call: Callable[..., Any], *arguments: Any) -> Any:
        """One part of one hook, within its time. Raises Rejected and HookFailed."""
        now = self._clock.now()
        self.view.remaining_s = max(0.0, self._deadline.at - now)
        ends_at = min(self._deadline.at, now + self._hooks.config.timeout_s)
        try:
            async with asyncio.timeout_at(ends_at):
                with _Translated(hook.name):
                    return await self._hooks.call(call, *arguments)
        except TimeoutError:
            raise HookFailed(f"the hook {hook.name} did not end in {ends_at - now:.3g} s") from None

    def fail(self, failed: HookFailed) -> None:
        """Continue without the hook, or raise."""
        if self._hooks.config.on_error == "fail":
            raise failed
        self._note(f"skipped: {failed.message}")

    async def after(self, chunk: Chunk) -> Chunk:
        """A whole answer, as the hooks changed it; the first part of a stream as it is. Raises HookFailed."""
        if self._streams:
            return chunk
        try:
            return await self._hooks.change_answer(self, chunk)
        except HookFailed as failed:
            self.fail(failed)
            return chunk


class RouteHooks:
    """The hooks of one route, in their order. Holds no state of a request."""

    __slots__ = ("_clock", "_hooks", "_start_thread", "config")

    def __init__(self, hooks: tuple[LoadedHook, ...], config: HooksConfig, clock: Clock, start_thread: StartThread) -> None:
        self.config = config
        self._hooks = hooks
        self._clock = clock
        self._start_thread = start_thread

    async def before(self, request: Request, view: HookRequest, deadline: Deadline, note: Callable[[str], None]
                     ) -> tuple[Request, HookedRequest]:
        """The request as the hooks changed it. Raises Rejected and HookFailed."""
        view.body = _OBJECT.decode(request.body)
        hooked = HookedRequest(self, view, deadline, clock=self._clock, note=note, streams=request.stream)
        for hook in self._hooks:
            if hook.before is not None:
                try:
                    request = await self._change_request(hooked, hook, hook.before, request)
                except HookFailed as failed:
                    hooked.fail(failed)
                    view.body = _OBJECT.decode(request.body)
        return request, hooked

    async def _change_request(self, hooked: HookedRequest, hook: LoadedHook, call: Callable[..., Any], request: Request
                              ) -> Request:
        view = hooked.view
        before = msgspec.json.encode(view.body)
        result = await hooked.run(hook, call, view)
        view.body = _check_result(hook, "before", result, view.body)
        body = _encode(hook, view.body)
        if body == before:
            return request
        try:
            changed = decode(request.api, body)
        except Rejected as wrong:
            raise HookFailed(f"the hook {hook.name} made an invalid request: {wrong.message}") from None
        for name in _FIXED:
            if getattr(changed, name) != getattr(request, name):
                raise HookFailed(f"the hook {hook.name} changed {name}, which hooks must not")
        return changed

    async def change_answer(self, hooked: HookedRequest, chunk: Chunk) -> Chunk:
        """Run the hooks on a whole answer, last first."""
        hooks = [(hook, hook.after) for hook in reversed(self._hooks) if hook.after is not None]
        if not hooks:
            return chunk
        try:
            answer = HookAnswer(_OBJECT.decode(chunk.data))
        except msgspec.DecodeError:
            raise HookFailed("the answer is not a JSON object, so hooks cannot see it") from None
        for hook, after in hooks:
            result = await hooked.run(hook, after, hooked.view, answer)
            answer.body = _check_result(hook, "after", result, answer.body)
        return Chunk(_encode(hooks[-1][0], answer.body), chunk.n_content)

    async def call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a part of a hook; await it if it is async."""
        if self.config.thread and not inspect.iscoroutinefunction(call):
            return await asyncio.wrap_future(self._start_thread("hook", lambda: call(*arguments)))
        result = call(*arguments)
        return await result if inspect.isawaitable(result) else result


class _Translated(AbstractContextManager[None]):
    """Turns what a hook raises into errors of the gateway. Of an unexpected one only its class is named: its text may quote
    a prompt.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if isinstance(error, HookRefused):
            raise Rejected(str(error), status=error.status, code="refused_by_hook") from None
        if isinstance(error, Exception):
            raise HookFailed(f"the hook {self._name} raised {type(error).__name__}") from error


def _check_result(hook: LoadedHook, part: str, result: Any, body: Any) -> dict[str, Any]:
    if result is not None and not isinstance(result, dict):
        raise HookFailed(f"{part} of the hook {hook.name} returned a {type(result).__name__}, not a dict or None")
    found = body if result is None else result
    if not isinstance(found, dict):
        raise HookFailed(f"{part} of the hook {hook.name} made the body a {type(found).__name__}, not a dict")
    return found


def _encode(hook: LoadedHook, body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise HookFailed(f"the hook {hook.name} made a body that JSON cannot hold ({type(error).__name__})") from None
