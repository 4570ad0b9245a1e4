"""One request to the simulator: call the provider, and write its answer as it is generated, connection faults included."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from stayfast.core.clock import Clock
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.parser import HttpRequest
from stayfast.http.server.response import (
    LAST_CHUNK,
    DateHeader,
    connection_line,
    encode_chunk,
    header_lines,
    status_line,
    stream_head,
    whole_response,
)
from stayfast.lab.sim_server.recording import CLIENT_LEFT, COMPLETE, ClientGrades, RequestRecord, RequestRecords
from stayfast.lab.simulated import ConnectionBroken, Provider, SimulatedCall, SimulatedHead, SimulatedRequest


class SimRequest(HttpRequest):
    """The simulator reads only the API key of a request's head."""

    READ_HEADERS = frozenset((b"authorization", b"x-api-key"))

    @property
    def key(self) -> bytes:
        """The API key; empty without one."""
        return self.fields.get(b"x-api-key") or self.fields.get(b"authorization", b"").removeprefix(b"Bearer ")


Headers = Iterable[tuple[str, str]]
_FRAMING = frozenset(("connection", "content-length", "date", "transfer-encoding"))  # set by the server


@dataclass(frozen=True, slots=True)
class SimulatorState:
    """The shared state of a simulator."""

    clock: Clock
    dates: DateHeader
    records: RequestRecords
    grades: ClientGrades


class AnswerRun:
    """One answer to a client. One Task runs it."""

    __slots__ = ("_connection", "_provider", "_received_at", "_record", "_request", "_simulated_request", "_state")

    def __init__(self, provider: Provider, simulated_request: SimulatedRequest, connection: ServerConnection[SimRequest],
                 request: SimRequest, state: SimulatorState) -> None:
        self._provider = provider
        self._simulated_request = simulated_request
        self._connection = connection
        self._request = request
        self._state = state
        self._received_at = state.clock.now()
        self._record = RequestRecord(state.records.next_number(), provider.name, simulated_request.api.value,
                                     simulated_request.model, simulated_request.stream,
                                     state.clock.wall(), simulated_request.n_prompt_tokens)

    async def run(self) -> None:
        """Send the whole answer. A disconnect of the client cancels this."""
        record, state = self._record, self._state
        state.records.add(record)
        state.grades.note_request(self._request.key, self._request.body, self._received_at)
        answering = self._provider.start_call(self._simulated_request)
        answering.on_end = partial(_note_unread, record, answering)
        try:
            head = await answering.wait_head()
            record.status = head.status
            record.first_byte_s = state.clock.now() - self._received_at
            state.grades.note_answer(self._request.key, self._request.body, state.clock.now(), head)
            if head.body is None:
                await self._send_stream(head, answering)
            else:
                self._connection.write(whole_response(
                    head_lines(head.status, head.headers, state.dates), head.body,
                    connection_line(self._request, keep_alive=self._request.keep_alive)))
            record.ended = COMPLETE
        except ConnectionBroken as broke:
            record.ended = broke.kind
            await asyncio.sleep(0)  # the loop sends written bytes at the end of its iteration; a reset would drop them
            if broke.kind == "cut":
                self._connection.close()
            else:
                self._connection.reset()
        except asyncio.CancelledError:
            record.ended = CLIENT_LEFT
            raise
        finally:
            answering.close()
            record.seconds = state.clock.now() - self._received_at
        self._connection.finish(self._request)

    async def _send_stream(self, head: SimulatedHead, answering: SimulatedCall) -> None:
        connection, request, record = self._connection, self._request, self._record
        write = connection.write
        is_chunked = not request.is_http_10
        request.keep_alive = request.keep_alive and is_chunked
        write(stream_head(head_lines(head.status, head.headers, self._state.dates),
                          connection_line(request, keep_alive=request.keep_alive), is_chunked=is_chunked))
        while (data := await answering.next()) is not None:
            if not record.n_chunks:
                record.first_chunk_s = self._state.clock.now() - self._received_at
            record.n_chunks += 1
            write(encode_chunk(data) if is_chunked else data)
            if connection.is_write_buffer_full:
                await connection.wait_writable()
        if is_chunked:
            write(LAST_CHUNK)


def _note_unread(record: RequestRecord, answering: SimulatedCall) -> None:
    record.n_tokens_unread = answering.n_unread


def head_lines(status: int, headers: Headers, dates: DateHeader) -> bytes:
    """Status line and headers of an answer, without those that frame its body."""
    fields = header_lines([pair for pair in headers if pair[0] not in _FRAMING])
    return status_line(status, b"Overloaded") + fields + dates.encode()  # 529 is Anthropic's own
