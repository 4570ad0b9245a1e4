"""The embedded engine as an upstream: its child process speaks OpenAI's protocol on loopback.

Always streamed, even for whole answers: llama.cpp goes on with a non-streamed request when its client is gone. While the
engine starts (or starts again after a crash) requests wait for it, within their connect time-out.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Chunk, Request
from stayfast.upstreams.base import AnswerStream, Call, Upstream
from stayfast.wire.dialect import object_in

Address = tuple[str, int]
RESTART_TAKES_S = 1.0
_MEDIA_TYPES = ("image", "image_url", "input_image", "input_audio", "file", "input_file", "document")
_FREE_CHOICES = ("auto", "none", None)  # of tools: the model need not call one
_MEDIA = re.compile(b'"(?:%b)"' % "|".join(_MEDIA_TYPES).encode())  # most requests need no closer look
KNOCK_EVERY_S = 0.05


class EngineDoor(Protocol):
    """Where an engine can be reached, in this process or in the one above the workers."""

    @property
    def is_ready(self) -> bool:
        """Whether it answers, as far as is known."""

    @property
    def address(self) -> Address | None:
        """Host and port."""

    async def wait_ready(self, deadline: Deadline) -> bool:
        """Wait until it answers; False when the deadline passes first."""


class LocalUpstream:
    """The embedded engine. Task-safe."""

    kind = "embedded"
    always_streams = True

    def __init__(self, name: str, door: EngineDoor, dial: Callable[[Address], Upstream], clock: Clock, *,
                 calls_tools: bool = True) -> None:
        self.name = name
        self._calls_tools = calls_tools  # False: its model's chat template knows no tools
        self._door = door
        self._dial = dial  # makes the upstream that speaks to an address
        self._clock = clock
        self._address: Address | None = None
        self._inner: Upstream | None = None

    def can_serve(self, api: Api) -> bool:
        """Whatever can be said in OpenAI chat or completions, and token counts; it has no embeddings."""
        return api is not Api.EMBEDDINGS

    async def open(self, call: Call) -> AnswerStream:
        if call.request.n_choices != 1:
            raise Rejected("The embedded model gives one answer to one prompt at a time.", code="unsupported_value",
                           param="prompt" if call.request.api is Api.COMPLETIONS else "n")
        seen_at = path_of_media(call.request)
        if seen_at is not None:
            raise Rejected(f"{seen_at}: the embedded model reads text only.", code="unsupported_value", param=seen_at)
        if not self._calls_tools and must_call_tool(call.request):
            raise Rejected("tool_choice: this embedded model calls no tools, and cannot be made to; use auto or none, or "
                           "another model.", code="unsupported_value", param="tool_choice")
        connect_by = Deadline(call.deadline.within(call.connect_s, self._clock.now()))
        if not self._door.is_ready:
            await self._wait(connect_by)
        try:
            stream = await self._reach().open(call)
        except UpstreamFailed as failed:
            if failed.fault not in (Fault.CONNECT, Fault.RESET):
                raise
            await self._wait(connect_by)  # it died a moment ago; nothing was generated for this request
            stream = await self._reach().open(call)
        return _LocalStream(self.name, stream)

    def close(self) -> None:
        """Close idle connections; the process is its supervisor's to stop."""
        if self._inner is not None:
            self._inner.close()

    async def _wait(self, until: Deadline) -> None:
        if not await self._door.wait_ready(until):
            raise UpstreamFailed(self.name, Fault.CRASHED, "the embedded model is starting; try again in a moment",
                                 upstream_status=503, retry_after_s=RESTART_TAKES_S)

    def _reach(self) -> Upstream:
        """The client for the engine's present address."""
        address = self._door.address
        if address is None:
            raise UpstreamFailed(self.name, Fault.CRASHED, "the embedded model is not running", upstream_status=503,
                                 retry_after_s=RESTART_TAKES_S)
        if self._inner is None or address != self._address:
            self.close()
            self._address, self._inner = address, self._dial(address)
        return self._inner

    def __repr__(self) -> str:
        return f"<LocalUpstream {self.name} at {self._address}>"


class _LocalStream:
    """Says in words what a broken connection to a process of our own means."""

    __slots__ = ("_name", "_stream")

    def __init__(self, name: str, stream: AnswerStream) -> None:
        self._name = name
        self._stream = stream

    @property
    def sight(self) -> AnswerSummary:
        return self._stream.sight

    async def next(self) -> Chunk | None:
        try:
            return await self._stream.next()
        except UpstreamFailed as failed:
            if failed.fault is not Fault.RESET:
                raise
            raise UpstreamFailed(self._name, Fault.CRASHED, "the embedded model stopped while it answered; it is being "
                                 "restarted", retry_after_s=RESTART_TAKES_S) from failed

    def cut(self) -> Chunk | None:
        return self._stream.cut()

    def close(self) -> None:
        self._stream.close()


def must_call_tool(request: Request) -> bool:
    """Whether a request demands that a tool be called, in any of the protocols."""
    if b'"tool_choice"' not in request.body:
        return False
    choice = object_in(request.body).get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        allowed = choice.get("allowed_tools")  # chat nests it, responses does not
        choice = (allowed if isinstance(allowed, dict) else choice).get("mode") if kind == "allowed_tools" else kind
    return choice not in _FREE_CHOICES


def path_of_media(request: Request) -> str | None:
    """Where a request holds a picture, sound or a file, which the engine would answer with its own error; None: nowhere."""
    if _MEDIA.search(request.body) is None:
        return None
    field = "input" if request.api is Api.RESPONSES else "messages"
    return _media_in(object_in(request.body).get(field), field)


def _media_in(value: object, path: str) -> str | None:
    for at, one in enumerate(value if isinstance(value, list) else ()):
        if isinstance(one, dict):
            here = f"{path}[{at}]"
            if one.get("type") in _MEDIA_TYPES:
                return here
            found = _media_in(one.get("content"), f"{here}.content") or _media_in(one.get("output"), f"{here}.output")
            if found is not None:
                return found
    return None


class ParentEngine:
    """The way to an engine that the parent process runs. `told()` is what it last said of where engines are."""

    __slots__ = ("_engine_addresses", "_name")

    def __init__(self, name: str, engine_addresses: Callable[[], Mapping[str, Address]]) -> None:
        self._name = name
        self._engine_addresses = engine_addresses

    @property
    def is_ready(self) -> bool:
        """Whether its place is known; whether it still answers there shows when it is asked."""
        return self.address is not None

    @property
    def address(self) -> Address | None:
        return self._engine_addresses().get(self._name)

    async def wait_ready(self, deadline: Deadline) -> bool:
        """Knock until somebody opens."""
        try:
            async with asyncio.timeout_at(deadline.at):
                while True:
                    if await self._opens():
                        return True
                    await asyncio.sleep(KNOCK_EVERY_S)
        except TimeoutError:
            return False

    async def _opens(self) -> bool:
        address = self.address
        if address is None:
            return False
        try:
            _, writer = await asyncio.open_connection(*address)
        except OSError:
            return False
        writer.close()
        return True
