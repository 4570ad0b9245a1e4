"""One HTTP/2 connection: many requests at a time, through the `h2` library.

Flow control: a stream's window (`STREAM_WINDOW`) opens as its reader reads, so a reader that stops buffers at most that
much. The connection's window opens as bytes arrive, so that one reader does not block the other streams. A request that the
peer certainly did not process (above GOAWAY's last stream, or REFUSED_STREAM) may be sent again.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection as Machine
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from stayfast.core.errors import Fault
from stayfast.http.client.pool import ConnectionPool, PooledConnection
from stayfast.http.client.response import CHUNKED, EncodedRequest, HttpResponse

STREAM_WINDOW = 262_144  # bytes; 2.5 MB/s at a round trip of 100 ms; the buffer limit of a reader that stops
CONNECTION_WINDOW = 16_777_216
DEFAULT_MAX_STREAMS = 100  # before the peer's settings arrive (RFC 9113 6.5.2: a limit should be no smaller)
MAX_STREAMS = 256  # above it a second connection is opened, so that one lost connection does not lose all requests
LAST_STREAM_ID = 2**30  # after it the connection is replaced, long before the ids run out


class GracefulMachine(Machine):
    """Handles GOAWAY as in RFC 9113 6.8: streams up to the last one named continue. `h2` itself closes all streams."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class Http2Stream:
    """The state of one request."""

    __slots__ = ("has_room", "is_open", "n_unacknowledged", "response", "unsent")

    def __init__(self, response: HttpResponse, body: bytes, *, is_streamed: bool) -> None:
        self.response = response
        self.unsent = memoryview(body)
        self.n_unacknowledged = 0  # bytes read, or padding, for which the window has not been opened again
        self.is_open = is_streamed  # more parts of the body follow
        self.has_room: asyncio.Event | None = asyncio.Event() if is_streamed else None  # all that was given is sent


class H2Connection(PooledConnection):
    """A connection and the streams in progress on it."""

    def __init__(self, name: str, authority: str, transport: asyncio.Transport, pool: ConnectionPool, *, max_head_bytes: int,
                 loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._name = name
        self._authority = authority
        self._scheme = "http" if transport.get_extra_info("ssl_object") is None else "https"
        self._transport = transport
        self._pool = pool
        self._loop = loop
        self._machine = GracefulMachine(H2Configuration(header_encoding="latin-1", validate_outbound_headers=False,
                                                        normalize_outbound_headers=False))
        self._machine.local_settings = Settings(client=True, initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: max_head_bytes,
        })
        self._machine.decoder.max_header_list_size = max_head_bytes
        self._streams: dict[int, Http2Stream] = {}
        self._n_max = DEFAULT_MAX_STREAMS
        self._n_unacknowledged = 0
        self._has_settings = False  # the peer's settings have arrived
        self._is_leaving = False  # accepts no more requests; running ones continue
        self._is_writable = asyncio.Event()  # cleared while the write buffer is full; only streamed bodies wait for it
        self._is_writable.set()
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            ResponseReceived: self._on_head,
            DataReceived: self._on_data,
            StreamEnded: self._on_end,
            StreamReset: self._on_reset,
            WindowUpdated: self._on_window,
            RemoteSettingsChanged: self._on_settings,
            ConnectionTerminated: self._on_goaway,
        }
        self._machine.initiate_connection()
        self._machine.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._flush()

    def reserve(self) -> bool:
        self.n_active += 1
        return self.n_active < self._n_max

    def send_request(self, request: EncodedRequest) -> HttpResponse:
        response = HttpResponse(self, self._name, self._loop)
        if self._is_leaving or self._transport.is_closing():
            response.was_refused = True
            response.set_failure(Fault.RESET, "the connection closed before the request was sent")
            self._free_place()
            return response
        machine = self._machine
        stream_id = response.stream_id = machine.get_next_available_stream_id()
        fields = [(":method", request.method), (":scheme", self._scheme), (":authority", self._authority),
                  (":path", request.path)]
        if request.body:
            fields.append(("content-length", str(len(request.body))))
        fields += [(name.lower(), value) for name, value in request.headers if name != CHUNKED[0]]
        stream = self._streams[stream_id] = Http2Stream(response, request.body, is_streamed=request.is_streamed)
        try:
            machine.send_headers(stream_id, fields, end_stream=not request.body and not request.is_streamed)
        except ProtocolError:  # the peer lowered the stream limit after the reservation
            self._refuse_stream(stream_id, stream)
            return response
        if request.body:
            self._send_body(stream_id, stream)
        self._flush()
        if stream_id >= LAST_STREAM_ID:
            self._leave_pool()
        return response

    async def send_part(self, response: HttpResponse, part: bytes) -> None:
        stream = self._streams.get(response.stream_id)
        if stream is None or stream.has_room is None:
            return
        stream.has_room.clear()
        stream.unsent = memoryview(part)
        self._send_body(response.stream_id, stream)
        self._flush()
        await stream.has_room.wait()
        await self._is_writable.wait()

    def end_body(self, response: HttpResponse) -> None:
        stream = self._streams.get(response.stream_id)
        if stream is not None and stream.is_open:
            stream.is_open = False
            self._machine.end_stream(response.stream_id)
            self._flush()

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()

    def abort(self) -> None:
        self._transport.abort()
        self._leave_pool()

    def on_drained(self, response: HttpResponse, n_bytes: int) -> None:
        stream = self._streams.get(response.stream_id)
        if stream is None:
            return
        stream.n_unacknowledged += n_bytes
        if stream.n_unacknowledged >= STREAM_WINDOW // 2:
            self._machine.increment_flow_control_window(stream.n_unacknowledged, response.stream_id)
            stream.n_unacknowledged = 0
            self._flush()

    def on_abandoned(self, response: HttpResponse) -> None:
        """Reset the stream; the connection stays open."""
        if self._streams.pop(response.stream_id, None) is not None:
            self._machine.reset_stream(response.stream_id, ErrorCodes.CANCEL)
            self._flush()
            self._free_place()

    def data_received(self, data: bytes) -> None:
        """Feed `h2`, handle its events, send its output."""
        try:
            if not self._has_settings and data.startswith(b"HTTP/"):  # `h2` would read it as the header of a 5 MB frame
                raise ProtocolError
            for event in self._machine.receive_data(data):
                handler = self._handlers.get(type(event))
                if handler is not None:
                    handler(event)
        except (ProtocolError, ValueError):
            self._flush()  # sends GOAWAY with the error code
            self._fail_all(Fault.MALFORMED, "the answer is not HTTP/2")
            self.abort()
            return
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_pool()
        self._fail_all(Fault.RESET, "the connection closed before the answer was complete")

    def _on_head(self, event: ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            headers: dict[str, str] = {}
            for name, value in event.headers:
                key, text = str(name), str(value)
                headers[key] = text if key not in headers else f"{headers[key]}, {text}"  # RFC 9110 5.3
            status = int(headers.pop(":status"))
            if status < 200:
                raise ValueError("a final answer with an interim status")
            stream.response.status, stream.response.headers = status, headers
            stream.response.wake()

    def _on_data(self, event: DataReceived) -> None:
        n_bytes = event.flow_controlled_length
        self._n_unacknowledged += n_bytes
        if self._n_unacknowledged >= CONNECTION_WINDOW // 4:
            self._machine.increment_flow_control_window(self._n_unacknowledged)
            self._n_unacknowledged = 0
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.n_unacknowledged += n_bytes - len(event.data)
            if event.data:
                stream.response.parts.append(event.data)
                stream.response.n_unread += len(event.data)
                stream.response.wake()

    def _on_end(self, event: StreamEnded) -> None:
        stream = self._streams.pop(event.stream_id, None)
        if stream is not None:
            if stream.unsent or stream.is_open:  # answered before the whole request body was sent
                self._machine.reset_stream(event.stream_id, ErrorCodes.NO_ERROR)
            stream.response.set_complete()
            self._free_place()

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._streams.pop(event.stream_id, None)
        if stream is not None:
            stream.response.was_refused = event.error_code == ErrorCodes.REFUSED_STREAM
            stream.response.set_failure(Fault.RESET, f"the upstream reset the stream with HTTP/2 error {event.error_code:d}")
            self._free_place()

    def _on_window(self, event: WindowUpdated) -> None:
        if event.stream_id:
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                self._send_body(event.stream_id, stream)
        else:
            self._send_bodies()

    def _on_settings(self, event: RemoteSettingsChanged) -> None:
        self._has_settings = True
        self._n_max = min(MAX_STREAMS, self._machine.remote_settings.max_concurrent_streams)
        if self._is_leaving:
            return
        if self.n_active >= self._n_max:
            self._pool.mark_full(self)
        elif not self.is_listed:
            self._pool.release(self)
        self._send_bodies()

    def _on_goaway(self, event: ConnectionTerminated) -> None:
        self._leave_pool()
        for stream_id in [one for one in self._streams if one > (event.last_stream_id or 0)]:
            self._refuse_stream(stream_id, self._streams[stream_id])
        if not self._streams:
            self._transport.abort()

    def _send_bodies(self) -> None:
        for stream_id, stream in self._streams.items():
            self._send_body(stream_id, stream)

    def _send_body(self, stream_id: int, stream: Http2Stream) -> None:
        machine = self._machine
        while stream.unsent:
            n_bytes = min(machine.local_flow_control_window(stream_id), machine.max_outbound_frame_size)
            if n_bytes <= 0:
                return
            part, stream.unsent = stream.unsent[:n_bytes], stream.unsent[n_bytes:]
            machine.send_data(stream_id, bytes(part), end_stream=not stream.unsent and not stream.is_open)
        if stream.has_room is not None:
            stream.has_room.set()

    def _refuse_stream(self, stream_id: int, stream: Http2Stream) -> None:
        del self._streams[stream_id]
        stream.response.was_refused = True
        stream.response.set_failure(Fault.RESET, "the upstream refused the request on this connection")
        self._free_place()

    def _free_place(self) -> None:
        self.n_active -= 1
        if self._is_leaving:
            if not self._streams:
                self._transport.abort()
        elif self.n_active < self._n_max:
            self._pool.release(self)

    def _leave_pool(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self._pool.remove(self)

    def _fail_all(self, fault: Fault, message: str) -> None:
        streams, self._streams = self._streams, {}
        self.n_active -= len(streams)
        for stream in streams.values():
            stream.response.was_untouched = not stream.response.status
            stream.response.set_failure(fault, message)

    def _flush(self) -> None:
        data = self._machine.data_to_send()
        if data:
            self._transport.write(data)
