"""The embedded engine as an upstream: its child process serves OpenAI's protocol on loopback.

Always streams, even whole answers: llama.cpp continues a non-streamed request after its client has disconnected. While the
engine starts, or restarts after a crash, requests wait for it within their connect time-out.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.types import COUNT_APIS, AnswerSummary, Api, Chunk, Request
from stayfast.policy.context.schema_size import least_tokens
from stayfast.policy.engines.slots import BLOCK_BYTES, SlotMap
from stayfast.policy.routing.affinity import hash_blocks
from stayfast.upstreams.base import AnswerStream, Call, Upstream
from stayfast.wire.dialect import parse_object
from stayfast.wire.output_limit import find_output_schema, short_limit
from stayfast.wire.prompt import read_prompt

Address = tuple[str, int]
ANSWER_APIS = frozenset(Api) - {Api.EMBEDDINGS, Api.RERANK}
TASK_APIS: Mapping[str, frozenset[Api]] = {
    "generate": ANSWER_APIS, "embed": frozenset((Api.EMBEDDINGS,)), "rerank": frozenset((Api.RERANK,))}
# Of llama.cpp; others are translated.
NATIVE_LOCAL_APIS = frozenset((Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.RERANK))
RESTART_TAKES_S = 1.0
_SLOTTED_APIS = ANSWER_APIS - COUNT_APIS
_MEDIA_TYPES = ("image", "image_url", "input_image", "input_audio", "file", "input_file", "document")
_OPTIONAL_CHOICES = ("auto", "none", None)  # values of tool_choice that do not force a call
_MEDIA = re.compile(b'"(?:%b)"' % "|".join(_MEDIA_TYPES).encode())  # a request without a match need not be parsed
POLL_S = 0.05
ANY_SLOT = -1  # llama.cpp's


class EngineAddress(NamedTuple):
    """What the parent process announces of a ready engine."""

    host: str
    port: int
    n_slots: int


class EngineEndpoint(Protocol):
    """An engine of this process, or of the parent process of the workers."""

    @property
    def is_ready(self) -> bool:
        """Whether it was reachable last."""

    @property
    def address(self) -> Address | None: ...

    @property
    def n_slots(self) -> int | None:
        """Answers that it generates at the same time, as its process was started; None: not known yet."""

    @property
    def slots(self) -> SlotMap | None:
        """Of an engine to which this process alone sends requests, and of its last start; None: the engine chooses."""

    async def wait_ready(self, deadline: Deadline) -> bool:
        """Wait until it is reachable; False if the deadline passes first."""


class LocalUpstream:
    """The embedded engine. Task-safe."""

    kind = "embedded"
    always_streams = True

    def __init__(self, name: str, engine: EngineEndpoint, dial: Callable[[Address], Upstream], clock: Clock, *,
                 calls_tools: bool = True, apis: frozenset[Api] = ANSWER_APIS) -> None:
        """apis: of the engine's task."""
        self.name = name
        self._apis = apis
        self._calls_tools = calls_tools  # False: the model's chat template does not support tools
        self._engine = engine
        self._dial = dial  # makes an upstream for an address
        self._clock = clock
        self._address: Address | None = None
        self._inner: Upstream | None = None

    def can_serve(self, api: Api) -> bool:
        return api in self._apis

    async def open(self, call: Call) -> AnswerStream:
        if call.request.api in ANSWER_APIS:
            self._check_answerable(call)
        connect_by = Deadline(call.deadline.end_of_wait(call.connect_s, self._clock.now()))
        if not self._engine.is_ready:
            await self._wait(connect_by)
        try:
            return await self._open_in_slot(call)
        except UpstreamFailed as failed:
            if failed.fault not in (Fault.CONNECT, Fault.RESET):
                raise
            await self._wait(connect_by)  # it has just crashed, before it generated anything for this request
            return await self._open_in_slot(call)

    async def _open_in_slot(self, call: Call) -> "_LocalStream":
        """Open in the slot that holds the conversation, if the slots are this process's to choose."""
        taken = self._take_slot(call.request)
        if taken is None:  # the engine chooses, never the client: a slot is another client's conversation
            return _LocalStream(self.name, await self._inner_upstream().open(replace(call, slot=ANY_SLOT)))
        try:
            stream = await self._inner_upstream().open(replace(call, slot=taken.number))
        except BaseException:
            taken.release()
            raise
        return _LocalStream(self.name, stream, taken)

    def _take_slot(self, request: Request) -> "_TakenSlot | None":
        slots = self._engine.slots
        if slots is None or request.api not in _SLOTTED_APIS:
            return None
        return _TakenSlot(slots, hash_blocks(read_prompt(request.body).prompt, block_bytes=BLOCK_BYTES), self._clock)

    def _check_answerable(self, call: Call) -> None:
        """Raise Rejected for what the model cannot answer."""
        if call.request.n_choices != 1:
            raise Rejected("The embedded model gives one answer to one prompt.", code="unsupported_value",
                           param="prompt" if call.request.api is Api.COMPLETIONS else "n")
        path = find_media_path(call.request)
        if path is not None:
            raise Rejected(f"{path}: the embedded model reads text only.", code="unsupported_value", param=path)
        if not self._calls_tools and requires_tool_call(call.request):
            raise Rejected("tool_choice: this embedded model does not support tools. Use auto or none, or another model.",
                           code="unsupported_value", param="tool_choice")
        _check_schema(call.request)

    def close(self) -> None:
        """Close idle connections. The engine keeps running."""
        if self._inner is not None:
            self._inner.close()

    async def _wait(self, until: Deadline) -> None:
        if not await self._engine.wait_ready(until):
            raise UpstreamFailed(self.name, Fault.CRASHED, "the embedded model is starting; retry in a moment",
                                 upstream_status=503, retry_after_s=RESTART_TAKES_S)

    def _inner_upstream(self) -> Upstream:
        """The upstream of the engine's current address."""
        address = self._engine.address
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
    """Reports a broken connection as a crash of the engine."""

    __slots__ = ("_name", "_slot", "_stream")

    def __init__(self, name: str, stream: AnswerStream, slot: "_TakenSlot | None" = None) -> None:
        self._name = name
        self._stream = stream
        self._slot = slot

    @property
    def summary(self) -> AnswerSummary:
        return self._stream.summary

    async def next(self) -> Chunk | None:
        try:
            return await self._stream.next()
        except UpstreamFailed as failed:
            if failed.fault is not Fault.RESET:
                raise
            raise UpstreamFailed(self._name, Fault.CRASHED, "the embedded model crashed during the answer; it is being "
                                 "restarted", retry_after_s=RESTART_TAKES_S) from failed

    def cut(self) -> Chunk | None:
        return self._stream.cut()

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            if self._slot is not None:
                self._slot.release()


class _TakenSlot:
    """A slot that one request uses."""

    __slots__ = ("_clock", "_is_released", "_slots", "number")

    def __init__(self, slots: SlotMap, blocks: Sequence[int], clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._is_released = False
        self.number = slots.begin(blocks, clock.now())

    def release(self) -> None:
        """Safe to call again."""
        if not self._is_released:
            self._is_released = True
            self._slots.end(self.number, self._clock.now())


def _check_schema(request: Request) -> None:
    """Raise Rejected for a schema to which no answer within the output limit can be valid."""
    limit = request.max_output_tokens
    if not limit or (schema := find_output_schema(request)) is None:
        return
    if limit < (n_least := least_tokens(schema)):
        raise short_limit(request, limit, n_least)


def requires_tool_call(request: Request) -> bool:
    """Whether `tool_choice` forces a tool call, in any of the protocols."""
    if b'"tool_choice"' not in request.body:
        return False
    choice = parse_object(request.body).get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        allowed = choice.get("allowed_tools")  # chat nests it, responses does not
        choice = (allowed if isinstance(allowed, dict) else choice).get("mode") if kind == "allowed_tools" else kind
    return choice not in _OPTIONAL_CHOICES


def find_media_path(request: Request) -> str | None:
    """The JSON path of an image, audio or file in a request; None without one."""
    if _MEDIA.search(request.body) is None:
        return None
    field = "input" if request.api is Api.RESPONSES else "messages"
    return _media_in(parse_object(request.body).get(field), field)


def _media_in(value: object, path: str) -> str | None:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            here = f"{path}[{index}]"
            if item.get("type") in _MEDIA_TYPES:
                return here
            found = _media_in(item.get("content"), f"{here}.content") or _media_in(item.get("output"), f"{here}.output")
            if found is not None:
                return found
    return None


class ParentEngine:
    """An engine that the parent process runs. `engine_addresses` returns the addresses that the parent last sent."""

    __slots__ = ("_engine_addresses", "_name")

    def __init__(self, name: str, addresses: Callable[[], Mapping[str, EngineAddress]]) -> None:
        self._name = name
        self._engine_addresses = addresses

    @property
    def is_ready(self) -> bool:
        """Whether its address is known; it may have crashed since."""
        return self.address is not None

    @property
    def address(self) -> Address | None:
        found = self._engine_addresses().get(self._name)
        return found[:2] if found is not None else None

    @property
    def n_slots(self) -> int | None:
        found = self._engine_addresses().get(self._name)
        return found.n_slots if found is not None else None

    @property
    def slots(self) -> SlotMap | None:
        """None: the other workers use it too."""
        return None

    async def wait_ready(self, deadline: Deadline) -> bool:
        """Connect every POLL_S until it succeeds."""
        try:
            async with asyncio.timeout_at(deadline.at):
                while True:
                    if await self._accepts():
                        return True
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False

    async def _accepts(self) -> bool:
        address = self.address
        if address is None:
            return False
        try:
            _, writer = await asyncio.open_connection(*address)
        except OSError:
            return False
        writer.close()
        return True
