"""The Responses API over one WebSocket: each `response.create` is served as a POST with `stream: true` would be.

Responses of one lane (`stream_id`) run one after another, lanes run in parallel. A response starts when its lane reaches it;
its deadline counts from then. The end of the WebSocket cancels its responses, as a disconnect cancels a request. An
unexpected exception ends the WebSocket with 1011.
"""

import asyncio
from collections import deque
from secrets import token_hex

from stayfast.core.errors import Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import RequestRefused
from stayfast.core.types import Api, Request
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.websocket import WebSocketConnection
from stayfast.keys.principal import Principal
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.arrivals import decode_request, read_arrival, run_if_large
from stayfast.server.http_request import LlmHttpRequest, client_request_id
from stayfast.server.jobs.new_jobs import check_model
from stayfast.server.jobs.responses import continue_stored
from stayfast.server.paths import shutting_down_error
from stayfast.server.reported_stream import MAX_HELD_BYTES, ReportedStream
from stayfast.server.sockets.hub import SocketHub
from stayfast.wire.jobs.response_objects import is_own_id
from stayfast.wire.sockets.response_frames import (
    CreateFrame,
    SteerFrame,
    add_lane,
    encode_empty_response,
    encode_socket_error,
    encode_steer_failure,
    parse_members,
    read_finished,
    read_frame,
    read_lane,
)
from stayfast.wire.sockets.response_memory import LOCAL_ID, RememberedResponse, ResponseMemory
from stayfast.wire.sse import EventSplitter, parse_events

MAX_UNFINISHED = 16  # responses that run or wait in their lanes
MAX_LANES = 32  # with a name
RETRY_S = 1.0
_OF_ONE_REQUEST = (b"idempotency-key", b"x-stainless-retry-count", b"last-event-id", b"prefer", b"x-stayfast-job",
                   b"x-stayfast-events", b"x-request-id")


class ResponsesSocket:
    """One WebSocket. Its handler reads the messages; one Task for each busy lane answers them."""

    __slots__ = ("_connection", "_fields", "_hub", "_lanes", "_memory", "_n_bytes", "_n_responses", "_n_unfinished",
                 "_request", "_request_id", "_socket", "_tasks", "_tenant")

    def __init__(self, hub: SocketHub, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest,
                 socket: WebSocketConnection, tasks: asyncio.TaskGroup) -> None:
        self._hub = hub
        self._connection = connection
        self._socket = socket
        self._tasks = tasks
        self._fields = {name: value for name, value in request.fields.items() if name not in _OF_ONE_REQUEST}
        self._request = request
        self._request_id = client_request_id(request.fields)
        self._tenant = request.tenant
        self._memory = ResponseMemory(hub.active.config.max_body_bytes)
        self._lanes: dict[str | None, deque[CreateFrame]] = {}  # those that have been used; frames that wait or run
        self._n_unfinished = 0
        self._n_bytes = 0  # of the bodies of unfinished frames
        self._n_responses = 0

    async def run(self) -> None:
        """Read messages until the WebSocket ends."""
        while True:
            await self._take(await self._socket.receive())

    async def _take(self, message: str | bytes) -> None:
        lane: str | None = None
        try:
            depth = self._hub.active.config.max_depth
            members = await run_if_large(len(message), lambda: parse_members(message, depth))
            lane = read_lane(members)
            frame = await run_if_large(len(message), lambda: read_frame(members, lane))
            if isinstance(frame, SteerFrame):
                await self._socket.send(encode_steer_failure(frame))
                return
            self._admit(frame)
        except (Rejected, Shed) as error:
            request_id = self._next_id()
            self._note_refusal(error, request_id, self._hub.clock.now())
            await self._socket.send(encode_socket_error(error, request_id, lane))
            return
        queue = self._lanes[frame.lane]
        queue.append(frame)
        if len(queue) == 1:
            self._tasks.create_task(self._run_lane(queue))

    def _admit(self, frame: CreateFrame) -> None:
        """Count a frame and open its lane. Raises Shed."""
        if self._socket.is_draining:
            raise shutting_down_error()
        if self._n_unfinished >= MAX_UNFINISHED:
            raise Shed(f"{MAX_UNFINISHED} responses of this WebSocket are unfinished, the limit. Wait for the end of one, "
                       "or open another WebSocket.", reason="responses_in_flight", status=429,
                       code="too_many_responses", retry_after_s=RETRY_S)
        max_bytes = 2 * self._hub.active.config.max_body_bytes
        if self._n_bytes + len(frame.body) > max_bytes:
            raise Shed(f"The unfinished requests of this WebSocket would exceed {max_bytes} bytes. Wait for the end of one.",
                       reason="responses_in_flight", status=429, code="too_many_responses", retry_after_s=RETRY_S)
        if frame.lane not in self._lanes:
            if frame.lane is not None and sum(lane is not None for lane in self._lanes) >= MAX_LANES:
                raise Rejected(f"stream_id: this WebSocket has {MAX_LANES} lanes already, which is the limit. Use one of "
                               "them again.", code="too_many_lanes", param="stream_id")
            self._lanes[frame.lane] = deque()
        self._n_unfinished += 1
        self._n_bytes += len(frame.body)

    async def _run_lane(self, queue: deque[CreateFrame]) -> None:
        with self._socket.working():
            while queue:
                await self._respond(queue[0])
                frame = queue.popleft()
                self._n_unfinished -= 1
                self._n_bytes -= len(frame.body)

    async def _respond(self, frame: CreateFrame) -> None:
        answer = _Answer(self._hub, self._socket, frame, self._memory, self._next_id())
        began_at = self._hub.clock.now()
        try:
            await answer.run(self._fields, self._hub.check_key(self._request), began_at, self._connection)
        except StayfastError as error:
            await self._send_failure(answer, error, began_at)

    async def _send_failure(self, answer: "_Answer", error: StayfastError, began_at: float) -> None:
        if not answer.is_served:
            self._note_refusal(error, answer.request_id, began_at)
        more = {"x-stayfast-upstream": error.upstream} if isinstance(error, UpstreamFailed) else None
        await self._socket.send(encode_socket_error(error, answer.request_id, answer.frame.lane, n_events=answer.n_events,
                                                    more=more))

    def _next_id(self) -> str:
        """The id of the next response: that of the handshake, if the client chose one, and a number."""
        self._n_responses += 1
        if self._request_id is None or len(self._request_id) > 100:
            return self._hub.ids.next()
        return f"{self._request_id}.{self._n_responses}"

    def _note_refusal(self, error: StayfastError, request_id: str, began_at: float) -> None:
        clock = self._hub.clock
        self._hub.sink.emit(RequestRefused(
            request_id=request_id, path="/v1/responses", status=error.status, code=error.code, wall_at=clock.wall(),
            seconds=clock.now() - began_at, tenant=self._tenant))

    def __repr__(self) -> str:
        return f"<ResponsesSocket: {self._n_unfinished} unfinished in {len(self._lanes)} lanes>"


class _Answer:
    """One response, from its frame to its last event."""

    __slots__ = ("_before", "_fields", "_hub", "_memory", "_socket", "frame", "is_served", "n_events", "request_id")

    def __init__(self, hub: SocketHub, socket: WebSocketConnection, frame: CreateFrame, memory: ResponseMemory,
                 request_id: str) -> None:
        self._hub = hub
        self._socket = socket
        self._memory = memory
        self._before: RememberedResponse | None = None  # what it continues
        self._fields = frame.fields  # of the request whose items are remembered
        self.frame = frame
        self.request_id = request_id
        self.is_served = False  # the gateway has it, and emits the event of its end
        self.n_events = 0

    async def run(self, fields: dict[bytes, bytes], caller: Principal | None, began_at: float,
                  connection: ServerConnection[LlmHttpRequest]) -> None:
        """Raises StayfastError."""
        current, tenant = self._hub.active, caller.tenant if caller is not None else None
        request = await self._continue(await decode_request(Api.RESPONSES, self.frame.body, current.limits), tenant)
        if caller is not None:
            caller.check_route(request.model)
        if not self.frame.is_generating:
            check_model(request, current)
            response_id = f"{LOCAL_ID}_{token_hex(16)}"
            await self._send(encode_empty_response(request, self.frame.fields, response_id, int(self._hub.clock.wall())))
            return
        arrival = read_arrival(self.request_id, began_at, tenant, fields, self._hub.start_trace,
                               key_id=caller.key_id if caller is not None else "")
        self.is_served = True
        serve = current.backend.gateway.serve
        try:
            reply = await serve(request, arrival)
        except (Rejected, UpstreamFailed) as error:
            if self._before is None or request.previous_response_id is None or not _is_unknown(error):
                raise
            reply = await serve(await self._send_items(self._before), arrival)
        try:
            await self._relay(reply)
        finally:
            reply.close(connection.abort_reason)

    async def _relay(self, reply: Reply) -> None:
        stream, splitter = ReportedStream(reply, Api.RESPONSES), EventSplitter(2 * MAX_HELD_BYTES)
        while (chunk := await stream.next()) is not None:
            events = [event for event, _ in parse_events(splitter, chunk.data) if event.startswith(b"{")]  # no [DONE]
            if events:
                await self._send(events, reply.deadline_at)

    async def _send(self, events: list[bytes], until: float | None = None) -> None:
        finished = read_finished(events[-1])
        if finished is not None:
            self._memory.remember(self._fields, self._before, finished)
        self.n_events += len(events)
        await self._socket.send(*[add_lane(event, self.frame.lane) for event in events], until=until)

    async def _continue(self, request: Request, tenant: str | None) -> Request:
        """The request with the conversation that it continues, if that is known here. Raises Rejected."""
        before_id, current = request.previous_response_id, self._hub.active
        if before_id is None:
            return request
        self._before = self._memory.find(before_id)
        if self._before is not None:
            return request if self._before.is_stored else await self._send_items(self._before)
        service = current.backend.jobs
        if service is not None and is_own_id(before_id):
            continued = await continue_stored(service, request, tenant, current)
            self._fields = parse_members(continued.body.decode(), current.config.max_depth)
            return continued
        is_unstored = bytes(self.frame.fields.get("store", b"")) == b"false"
        if is_unstored or is_own_id(before_id) or before_id.startswith(LOCAL_ID):
            raise Rejected(f"Previous response with id '{before_id[:80]}' not found. This WebSocket does not know it: send "
                           "the whole conversation as input.", code="previous_response_not_found",
                           param="previous_response_id")
        return request

    async def _send_items(self, before: RememberedResponse) -> Request:
        fields = self.frame.fields
        body = await run_if_large(before.n_bytes, lambda: self._memory.continue_body(fields, before))
        return await decode_request(Api.RESPONSES, body, self._hub.active.limits)


def _is_unknown(error: Rejected | UpstreamFailed) -> bool:
    """Whether no upstream can continue the stored response."""
    return error.code == "previous_response_not_found" or error.param == "previous_response_id" or (
        isinstance(error, UpstreamFailed) and error.is_model_missing)
