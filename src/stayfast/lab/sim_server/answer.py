"""One request to the simulator: ask the provider, write what it says as it says it, break off as it breaks off."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from stayfast.core.clock import Clock
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.parser import HttpRequest
from stayfast.http.server.response import (
    LAST_CHUNK,
    DateLine,
    connection_line,
    frame,
    header_lines,
    status_line,
    stream_head,
    whole_response,
)
from stayfast.lab.sim_server.recording import LEFT, WHOLE, Grades, Records, RequestRecord
from stayfast.lab.simulated import Answering, Broke, Provider, SimulatedHead, SimulatedRequest


class SimRequest(HttpRequest):
    """What the simulator reads of a request's head: who is asking."""

    READ_HEADERS = frozenset((b"authorization", b"x-api-key"))

    __slots__ = ()

    @property
    def key(self) -> bytes:
        """The API key that came with it; empty without one."""
        return self.fields.get(b"x-api-key") or self.fields.get(b"authorization", b"").removeprefix(b"Bearer ")


Headers = Iterable[tuple[str, str]]
_FRAMING = frozenset(("connection", "content-length", "date", "transfer-encoding"))  # which are the server's to set


@dataclass(frozen=True, slots=True)
class SimulatorState:
    """What all answers of a simulator share."""

    clock: Clock
    dates: DateLine
    records: Records
    grades: Grades


class AnswerRun:
    """One answer on its way to its client. One Task runs it."""

    __slots__ = ("_ask", "_connection", "_desk", "_provider", "_received_at", "_record", "_request")

    def __init__(self, provider: Provider, ask: SimulatedRequest, connection: ServerConnection[SimRequest],
                 request: SimRequest,
                 desk: SimulatorState) -> None:
        self._provider = provider
        self._ask = ask
        self._connection = connection
        self._request = request
        self._desk = desk
        self._received_at = desk.clock.now()
        self._record = RequestRecord(desk.records.next_number(), provider.name, ask.api.value, ask.model, ask.stream,
                              desk.clock.wall(), ask.n_prompt_tokens)

    async def run(self) -> None:
        """From the question to the last byte, or to the client's leaving, which cancels this."""
        record, desk = self._record, self._desk
        desk.records.keep(record)
        desk.grades.note_request(self._request.key, self._request.body, self._received_at)
        answering = self._provider.ask(self._ask)
        answering.on_end = partial(_note_unread, record, answering)
        try:
            head = await answering.begin()
            record.status = head.status
            record.first_byte_s = desk.clock.now() - self._received_at
            desk.grades.note_answer(self._request.key, self._request.body, desk.clock.now(), head)
            if head.body is None:
                await self._stream(head, answering)
            else:
                self._connection.write(whole_response(
                    head_lines(head.status, head.headers, desk.dates), head.body,
                    connection_line(self._request, keep_alive=self._request.keep_alive)))
            record.ended = WHOLE
        except Broke as broke:
            record.ended = broke.kind
            await asyncio.sleep(0)  # the loop sends what is written at the end of its turn, and a reset would drop it
            if broke.kind == "cut":
                self._connection.close()
            else:
                self._connection.reset()
        except asyncio.CancelledError:
            record.ended = LEFT
            raise
        finally:
            answering.close()
            record.seconds = desk.clock.now() - self._received_at
        self._connection.finish(self._request)

    async def _stream(self, head: SimulatedHead, answering: Answering) -> None:
        connection, request, record = self._connection, self._request, self._record
        write, following = connection.write, answering.next
        is_chunked = not request.is_http_10
        request.keep_alive = request.keep_alive and is_chunked
        write(stream_head(head_lines(head.status, head.headers, self._desk.dates),
                          connection_line(request, keep_alive=request.keep_alive), is_chunked=is_chunked))
        while (data := await following()) is not None:
            if not record.n_chunks:
                record.first_chunk_s = self._desk.clock.now() - self._received_at
            record.n_chunks += 1
            write(frame(data) if is_chunked else data)
            if connection.is_full:
                await connection.drained()
        if is_chunked:
            write(LAST_CHUNK)


def _note_unread(record: RequestRecord, answering: Answering) -> None:
    record.n_tokens_unread = answering.n_unread


def head_lines(status: int, headers: Headers, dates: DateLine) -> bytes:
    """Status line and headers of an answer, but for those that frame its body."""
    fields = header_lines([pair for pair in headers if pair[0] not in _FRAMING])
    return status_line(status, b"Overloaded") + fields + dates.line()  # 529 is Anthropic's own
