"""The hot endpoints: decode, serve, relay. One Task a request, cancelled the moment its client leaves."""

import asyncio
import contextlib

from stayfast.core.errors import Shed, StayfastError
from stayfast.core.types import Allowance, Api, Sight
from stayfast.http.server.connection import Connection
from stayfast.http.server.response import LAST_CHUNK, connection_line, frame
from stayfast.pipeline.exchange import Arrival
from stayfast.server.backend import Reply
from stayfast.server.edge import Edge
from stayfast.server.inbound import (
    EVENTS,
    Inbound,
    cache_control,
    caller_trace,
    events_wish,
    forwarded,
    says_more,
    sdk_silence_s,
    urgency,
)
from stayfast.server.respond import error_answer, events_head, json_answer
from stayfast.wire.client_headers import patience_s, rate_limit_lines
from stayfast.wire.errors import render_event
from stayfast.wire.json_input import decode
from stayfast.wire.sse import comment

CHAT = Api.CHAT
_KEEP_ALIVE = comment("keep-alive")


async def answer(edge: Edge, line: Connection[Inbound], inbound: Inbound) -> None:
    """A request's whole life as the edge sees it."""
    out = Answer(edge, line, inbound)
    try:
        await out.run()
    except StayfastError as error:
        out.fail(error)
    except asyncio.CancelledError:
        if line.verdict is None:
            line.abort()  # nobody is left to answer; for a cancellation from elsewhere it leaves nobody waiting
            raise
        out.fail(line.verdict)
    except Exception as error:  # noqa: BLE001  # the Task's boundary
        line.report(error)
        out.fail(StayfastError("The gateway failed at this request. Its log says why."))


class Answer:
    """One answer being written. Owned by its Task; `comment` is called by the connection's timer."""

    __slots__ = ("_common", "_edge", "_has_begun", "_inbound", "_is_chunked", "_is_served", "_line", "_request_id", "_sight")

    def __init__(self, edge: Edge, line: Connection[Inbound], inbound: Inbound) -> None:
        self._edge = edge
        self._line = line
        self._inbound = inbound
        self._request_id = edge.request_id(inbound)
        self._common = edge.common(self._request_id)
        self._is_chunked = not inbound.is_http_10
        self._is_served = False  # the gateway knows of it, and tells of its end
        self._has_begun = False
        self._sight: Sight | None = None

    async def run(self) -> None:
        """Decode, serve, relay. Raises StayfastError."""
        inbound, current = self._inbound, self._edge.current
        fields = inbound.fields
        if says_more(fields):
            trace = self._edge.place(caller_trace(fields))
            arrival = Arrival(self._request_id, inbound.accepted_at, inbound.tenant, forwarded(fields, trace),
                              patience_s(fields), sdk_silence_s(fields), trace, urgency(fields), cache_control(fields),
                              events_wish(fields) if EVENTS in fields else None)
        else:
            arrival = Arrival(self._request_id, inbound.accepted_at, inbound.tenant, trace=self._edge.place(None))
        request = decode(inbound.api or CHAT, inbound.body, current.limits)
        keepalive_s = current.config.keepalive_s
        if request.stream and keepalive_s and fields.get(b"x-stayfast-keepalive") != b"off":
            if arrival.silence_s is not None:  # its SDK gives up after so much silence
                keepalive_s = min(keepalive_s, arrival.silence_s / 2)
            self._line.start_keepalive(self.comment, inbound.accepted_at + keepalive_s, keepalive_s)
        self._is_served = True
        reply = await current.backend.gateway.serve(request, arrival)
        try:
            self._sight = reply.sight
            if request.stream:
                await self._relay(reply)
            else:
                await self._send_whole(reply)
        finally:
            reply.close(self._line.verdict)
        self._line.finish(inbound)

    def comment(self) -> None:
        """Keep proxies and clients from taking silence for death."""
        if self._has_begun:
            self._line.write(frame(_KEEP_ALIVE) if self._is_chunked else _KEEP_ALIVE)
        else:
            self._begin(b"", _KEEP_ALIVE)

    def fail(self, error: StayfastError) -> None:
        """Answer with an error: by status while that is possible, else as an event in an answer that then breaks off."""
        edge, line, inbound = self._edge, self._line, self._inbound
        line.stop_keepalive()
        if not self._is_served:
            edge.note_refusal(inbound, error)
        if self._has_begun:
            event = render_event(error, inbound.api or CHAT, self._request_id, self._sight)
            line.write(frame(event) if self._is_chunked else event)
            line.close()  # without the last chunk: no client may take this answer for a whole one
            return
        common = self._common + self._limits(error.allowances) if isinstance(error, Shed) else self._common
        line.write(error_answer(error, inbound, common, self._request_id, keep_alive=line.will_stay(inbound),
                                total_s=edge.clock.now() - inbound.accepted_at))
        line.finish(inbound)

    def _about(self, reply: Reply) -> bytes:
        """The headers that say who answered, after how many attempts, where the time went, what it is short of, what a cache
        had to do with it, and what the client has left.
        """
        degraded = f"x-stayfast-degraded: {reply.degraded}\r\n" if reply.degraded is not None else ""
        if (cache := reply.cache) is not None:
            degraded += f"x-cache: {cache}\r\n"
        about = (f"server-timing: {reply.server_timing()}\r\nx-stayfast-upstream: {reply.upstream}\r\n"
                 f"x-stayfast-attempts: {reply.n_attempts}\r\n{degraded}").encode("latin-1", "replace")
        return about + self._limits(reply.allowances) if reply.allowances else about

    def _limits(self, allowances: tuple[Allowance, ...]) -> bytes:
        return rate_limit_lines(self._inbound.api or CHAT, allowances, self._edge.clock.wall())

    def _begin(self, about: bytes, data: bytes) -> None:
        """Head and first bytes in one write."""
        self._has_begun = True
        inbound = self._inbound
        keep_alive = self._is_chunked and self._line.will_stay(inbound)
        connection = connection_line(inbound, keep_alive=keep_alive)
        head = events_head(self._common + about, connection, is_chunked=self._is_chunked)
        self._line.write(head + (frame(data) if self._is_chunked else data))

    async def _relay(self, reply: Reply) -> None:
        line = self._line
        line_write, pull = line.write, reply.next
        chunk = await pull()
        line.stop_keepalive()
        while chunk is not None:
            data = chunk.data
            if data:  # an empty chunk would end the body
                if not self._has_begun:
                    self._begin(self._about(reply), data)
                else:
                    line_write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
                if line.is_full:
                    with contextlib.suppress(TimeoutError):  # the next pull says so, and closes the upstream
                        async with asyncio.timeout_at(reply.deadline_at):
                            await line.drained()
            chunk = await pull()
        last = comment("server-timing " + reply.server_timing())
        if reply.degraded is not None:
            last = comment(f"x-stayfast-degraded {reply.degraded}") + last
        if not self._has_begun:
            self._begin(self._about(reply), last)
            last = b""
        if self._is_chunked:
            line_write(frame(last) + LAST_CHUNK if last else LAST_CHUNK)
        else:
            line_write(last)
            line.close()

    async def _send_whole(self, reply: Reply) -> None:
        pull = reply.next
        parts = []
        while (chunk := await pull()) is not None:
            parts.append(chunk.data)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        inbound, line = self._inbound, self._line
        connection = connection_line(inbound, keep_alive=line.will_stay(inbound))
        line.write(json_answer(body, self._common + self._about(reply), connection))
