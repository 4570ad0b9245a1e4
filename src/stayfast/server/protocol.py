"""One client's connection: bytes to the reader, requests to Tasks one after the other, and every wait bounded.

Reading never stops while a request is answered, because the end of reading is how the client's leaving shows: the
request's Task is cancelled in the same turn of the loop. Of what a client sends far ahead, the requests that are whole are
answered and the rest is dropped. One timer serves all time-outs. It is never moved later, only found to be early when it
fires, so that a request on a warm connection touches no timer.
"""

import asyncio
import math
from collections.abc import Callable
from typing import cast

from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.server.asgi import bridge
from stayfast.server.edge import Edge
from stayfast.server.hot import answer
from stayfast.server.inbound import Inbound
from stayfast.server.reader import IDLE, Reader
from stayfast.server.respond import CONTINUE, error_answer

HIGH_WATER_BYTES = 128 * 1024  # unsent bytes above which nothing more is pulled from an upstream
LOW_WATER_BYTES = 32 * 1024
READ_AHEAD_BYTES = 64 * 1024  # taken in while a request is answered; above it the connection takes no more requests
LINGER_S = 2.0  # how long bytes are still taken after a refusal, so that a reset does not overtake it


class Connection(asyncio.Protocol):
    """One connection. Its methods are the loop's to call, but for those that an answer uses to write itself."""

    __slots__ = ("_closing_at", "_comment", "_comment_at", "_comment_every_s", "_edge", "_idle_since", "_is_lingering",
                 "_is_lost", "_n_ahead", "_n_unsent", "_reader", "_stalled_since", "_task", "_timer", "_timer_at",
                 "_transport", "_waiter", "is_full", "verdict", "write")

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._reader = Reader(edge.current.config, edge.clock, edge.gate)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._comment: Callable[[], None] | None = None
        self._comment_at = math.inf
        self._comment_every_s = math.inf
        self._idle_since = 0.0
        self._n_ahead = 0
        self._is_lost = False
        self._is_lingering = False
        self._closing_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._waiter: asyncio.Future[None] | None = None
        self._stalled_since = 0.0
        self._n_unsent = 0
        self.verdict: StayfastError | None = None  # why the running answer was cut short; None: its client left
        self.is_full = False  # the client does not keep up: await `drained` before pulling more

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast("asyncio.Transport", transport)
        self.write: Callable[[bytes], None] = self._transport.write
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        edge = self._edge
        config = edge.current.config
        self._idle_since = edge.clock.now()
        if len(edge.connections) >= config.max_connections:
            inbound = Inbound(self._idle_since)
            inbound.is_broken = True
            self._refuse(inbound, Shed("Too many connections.", code="too_many_connections", retry_after_s=1.0))
        else:
            edge.connections.add(self)
            self._check_by(self._idle_since + config.idle_timeout_s)

    def data_received(self, data: bytes) -> None:
        """The client sent bytes."""
        if self._is_lingering or self._is_lost:
            return
        reader = self._reader
        reader.feed(data)
        if self._task is not None or self.is_full:
            self._n_ahead += len(data)
            if self._n_ahead > READ_AHEAD_BYTES:
                reader.stop(Rejected(f"More than {READ_AHEAD_BYTES} bytes came while an answer was under way: wait for it, "
                                     "or use another connection.", code="too_far_ahead"))
            return
        self._advance()
        if reader.phase != IDLE and self._task is None:
            self._check_by(reader.due_at())

    def eof_received(self) -> None:
        """The client will send nothing more: it has left. What is half done ends here."""
        if self._task is not None or self._is_lingering:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._is_lost = True
        self._edge.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cancel()

    def pause_writing(self) -> None:
        """More is unsent than should be."""
        self.is_full = True
        self._stalled_since = self._edge.clock.now()
        self._n_unsent = self._transport.get_write_buffer_size()
        self._check_by(self._stalled_since + self._edge.current.config.write_stall_s)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_full = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif self._task is None:
            self._advance()

    # What an answer calls. `write` is the transport's own.

    async def drained(self) -> None:
        """Return once the client has caught up. One waiter: the request's Task."""
        if self.is_full:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def will_stay(self, inbound: Inbound) -> bool:
        """Whether the connection stays open after this request."""
        return inbound.keep_alive and not self._edge.is_draining

    def comment_every(self, comment: Callable[[], None], first_at: float, every_s: float) -> None:
        """Call `comment` at `first_at` and then each `every_s`, until `stop_comments`."""
        self._comment = comment
        self._comment_every_s = every_s
        self._comment_at = first_at
        self._check_by(first_at)

    def stop_comments(self) -> None:
        """The silence is over."""
        self._comment = None
        self._comment_at = math.inf

    def finish(self, inbound: Inbound) -> None:
        """The answer is written: go on with the next request, wait for one, or close."""
        self._task = None
        if self._is_lost or self._closing_at < math.inf:
            return
        if not self.will_stay(inbound):
            self.close()
            return
        reader = self._reader
        edge = self._edge
        self._idle_since = now = edge.clock.now()
        if reader.phase != IDLE:
            reader.restart_wait(now)
            self._check_by(reader.due_at())
        else:
            self._check_by(now + edge.current.config.idle_timeout_s)
        if reader.ready or reader.owes_continue:
            self._advance()

    def close(self) -> None:
        """Close once everything written has been sent; for an answer cut short as for one that is whole."""
        self.stop_comments()
        self._task = None
        self._closing_at = self._edge.clock.now() + self._edge.current.config.write_stall_s
        self._check_by(self._closing_at)
        self._transport.close()

    def abort(self) -> None:
        """Close at once and drop what is unsent."""
        self._cancel()
        self._transport.abort()

    def cut_short(self, why: StayfastError) -> None:
        """End what runs here with an error that its client is told of."""
        if self._task is None:
            self.abort()
        else:
            self.verdict = why
            self._task.cancel(why)  # so that who tells of the request knows that its client has not left

    def close_if_idle(self) -> None:
        """Close a connection on which nothing is under way."""
        if self._task is None and self._reader.phase == IDLE and not self._is_lingering:
            self.close()

    def peer(self) -> tuple[str, int] | None:
        """The client's address, where it has one."""
        name = self._transport.get_extra_info("peername")
        return (name[0], name[1]) if isinstance(name, tuple) and len(name) >= 2 else None

    # Its own affairs.

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _advance(self) -> None:
        """Answer what is ready, one request at a time."""
        reader = self._reader
        ready = reader.ready
        while ready and self._task is None and not self.is_full and self._closing_at == math.inf:
            inbound = ready.popleft()
            if inbound.refusal is not None:
                self._refuse(inbound, inbound.refusal)
            else:
                life = answer if inbound.api is not None else bridge
                self._n_ahead = 0
                self._task = self._edge.tasks.spawn(life(self._edge, self, inbound))
        if reader.owes_continue and self._task is None and not self.is_full:
            reader.owes_continue = False
            self.write(CONTINUE)

    def _refuse(self, inbound: Inbound, error: StayfastError) -> None:
        edge = self._edge
        request_id = edge.request_id(inbound)
        keep_alive = self.will_stay(inbound)
        self.write(error_answer(error, inbound, edge.common(request_id), request_id, keep_alive=keep_alive,
                                total_s=edge.clock.now() - inbound.accepted_at))
        edge.note_refusal(inbound, request_id, error)
        if inbound.is_broken:
            self._linger()
        else:
            self.finish(inbound)

    def _linger(self) -> None:
        """Close our side, and take what still comes for a while: a reset would wipe out the refusal unread."""
        self._is_lingering = True
        self._closing_at = self._edge.clock.now() + LINGER_S
        self._check_by(self._closing_at)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _check_by(self, at: float) -> None:
        """Have the timer fire no later than `at`."""
        if at < self._timer_at and not self._is_lost:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        due_at = self._tick(self._edge.clock.now())
        if due_at < math.inf:
            self._check_by(due_at)

    def _tick(self, now: float) -> float:
        """Act on what is overdue; returns when to look again."""
        config = self._edge.current.config
        due_at = min(self._closing_at, self._stall_at(now, config.write_stall_s))
        if due_at <= now:
            self.abort()
            return math.inf
        if self._closing_at < math.inf:
            return due_at
        if self._task is not None:
            if self._comment is not None and self._comment_at <= now:
                self._comment_at = now + self._comment_every_s
                self._comment()
            return min(due_at, self._comment_at)
        return min(due_at, self._wait_for_request(now, config.idle_timeout_s))

    def _stall_at(self, now: float, limit_s: float) -> float:
        """When a client that takes nothing is given up."""
        if not self.is_full:
            return math.inf
        n_unsent = self._transport.get_write_buffer_size()
        if n_unsent < self._n_unsent:
            self._stalled_since = now
        self._n_unsent = n_unsent
        return self._stalled_since + limit_s

    def _wait_for_request(self, now: float, idle_s: float) -> float:
        reader = self._reader
        if reader.phase == IDLE:
            if self._idle_since + idle_s <= now:
                self.close()
            return self._idle_since + idle_s
        if reader.due_at() <= now:
            reader.time_out()
            self._advance()
        return reader.due_at()

    def __repr__(self) -> str:
        state = "answering" if self._task is not None else ("waiting", "in a head", "in a body")[self._reader.phase]
        return f"<Connection {state}, {len(self._reader.ready)} ready>"
