"""A turn served as a model: a function named in the settings runs for each request, within the request's deadline.

    upstreams: {support: {kind: turn, turn: "support:answer"}}   # async def answer(request: TurnRequest, a: Answer) -> None
    routes: {support: {upstreams: [support], deadline: 4}}

The turn's budget ends END_MARGIN_S before the request's deadline, so that a partial answer can still be sent. When the
client disconnects, the turn is cancelled with all its steps. A client of typed events may reconnect within `resume_s`, with
the same x-request-id and a Last-Event-ID; until then the turn continues.
When wrong: a turn is kept in its process. Other workers of the same parent find it (`turns.remote_resume`); a client that
reconnects to another replica gets a 404.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import aclosing
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.events import Sink, TurnFailed
from stayfast.core.steps import TurnSnapshot
from stayfast.turns.answer import Answer, AnswerReader
from stayfast.turns.budget import OutOfTime, budget
from stayfast.turns.events import FinalEvent, event_text
from stayfast.turns.function import TurnFunction, TurnRefused, TurnRequest
from stayfast.turns.remote_resume import RemoteTurnPart, RemoteTurnStream, ResumeRemotely, ResumeRequest, read_turn_part
from stayfast.turns.report import EVENT_LOOP, find_blamed_anywhere, list_steps
from stayfast.turns.step import ContainedError, StepTimeout, error_kind, last_frames
from stayfast.upstreams.base import Call
from stayfast.upstreams.turn import TurnPiece, TurnRun, TurnUpstream
from stayfast.wire.dialect import untranslatable_field
from stayfast.wire.request_body import parse_conversation
from stayfast.wire.trace_context import encode_trace_headers

END_MARGIN_S = 0.025  # for the budget's grace and clean-up, and late timers of a busy loop
MAX_TURNS = 1000
MAX_TURN_CHARS = 64_000_000  # of all turns that have ended
CANCEL_WAIT_S = 1.0  # a cancelled turn that still runs after this is reported as abandoned


class InvalidTurnAnswer(TypeError):
    """The function returned no answer; the message is for its author."""


class ResumableTurns:
    """Turns whose clients may reconnect, by tenant and request id. Bound to one loop; survives a reload."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str | None, str], RunningTurn] = {}
        self._n_chars = 0

    def add(self, turn: "RunningTurn") -> None:
        """Keep a turn; above MAX_TURNS the oldest is dropped."""
        before = self._turns.get(turn.key)
        if before is not None:
            self.drop(before)
        elif len(self._turns) >= MAX_TURNS:
            self.drop(next(iter(self._turns.values())))
        self._turns[turn.key] = turn

    def record_end(self, turn: "RunningTurn") -> None:
        """The turn has ended; above MAX_TURN_CHARS the oldest ended turns are dropped."""
        if self._turns.get(turn.key) is turn:
            turn.n_chars = len(turn.answer.text)
            self._n_chars += turn.n_chars
        while self._n_chars > MAX_TURN_CHARS:
            self.drop(next(other for other in self._turns.values() if other.n_chars))

    def find(self, tenant: str | None, request_id: str) -> "RunningTurn | None":
        return self._turns.get((tenant, request_id))

    def drop(self, turn: "RunningTurn") -> None:
        if self._turns.get(turn.key) is turn:
            del self._turns[turn.key]
            self._n_chars -= turn.n_chars
        turn.stop_waiting()

    @property
    def n_chars(self) -> int:
        """The text of all ended turns."""
        return self._n_chars

    def __len__(self) -> int:
        return len(self._turns)


class ServedTurn(TurnUpstream):
    """One function as an upstream. Task-safe."""

    def __init__(self, name: str, function: TurnFunction, clock: Clock, sink: Sink, *, resume_s: float = 15.0,
                 is_idempotent: bool = False, resume_remotely: ResumeRemotely | None = None,
                 resumable: ResumableTurns | None = None) -> None:
        super().__init__(name, clock)
        self.function = function  # for turns that begin from now on
        self.resumable = resumable if resumable is not None else ResumableTurns()
        self.resume_remotely = resume_remotely
        self._sink = sink
        self._resume_s = resume_s
        self._is_idempotent = is_idempotent
        self._running: set[RunningTurn] = set()

    def replace_function(self, function: TurnFunction) -> None:
        """For turns that begin from now on."""
        self.function = function

    async def start_turn(self, call: Call) -> TurnRun:
        wish = call.events
        if wish is not None and wish.after is not None:
            return await self._resume(ResumeRequest(self.name, call.tenant, call.request_id, wish.after, wish.late))
        turn = self._start_turn(call)
        return TurnReading(turn, turn.answer.read(late=wish is not None and wish.late), is_plain=wish is None)

    async def _resume(self, request: ResumeRequest) -> TurnRun:
        turn = self.resumable.find(request.tenant, request.request_id)
        if turn is not None:
            try:
                return TurnReading(turn, turn.answer.read(request.after, late=request.late))
            except ValueError as error:
                raise Rejected(f"{error}.", param="last-event-id") from error
        first = await self.resume_remotely(request) if self.resume_remotely is not None else None
        if first is None or self.resume_remotely is None:
            raise Rejected("This turn can no longer be resumed: send the request again without last-event-id.", status=404,
                           code="turn_not_kept", param="last-event-id")
        return RemoteTurnStream(request, first, self.resume_remotely)

    async def find_turn(self, request: ResumeRequest) -> RemoteTurnPart | None:
        """The reply to a poll from another process; None if the turn is not in this process."""
        turn = self.resumable.find(request.tenant, request.request_id)
        if turn is None:
            return None
        try:
            reading = TurnReading(turn, turn.answer.read(request.after, late=request.late))
        except ValueError:
            return None
        try:
            return await read_turn_part(reading)
        finally:
            reading.close()

    def _start_turn(self, call: Call) -> "RunningTurn":
        parsed = parse_conversation(call.request)
        if parsed.native:
            raise untranslatable_field(parsed.native[0], "a turn")
        headers = dict(call.headers) | dict(encode_trace_headers(call.trace) if call.trace is not None else ())
        left_s = call.deadline.remaining_s(self._clock.now())
        late = budget(max(left_s - END_MARGIN_S, left_s / 2, 1e-3))
        request = TurnRequest(call.model, parsed, late, call.request.stream, call.request_id, call.tenant, headers)
        wish = call.events
        is_resumable = wish is not None and self._resume_s > 0
        turn = RunningTurn(self.name, self.function, request, is_idempotent=self._is_idempotent,
                           sends_late=wish is not None and wish.late, resume_s=self._resume_s if is_resumable else 0.0,
                           drop=self.resumable.drop, report_abandoned=self._report_abandoned)
        if is_resumable:
            self.resumable.add(turn)
        self._running.add(turn)
        turn.task.add_done_callback(lambda _: self._on_turn_done(turn))
        return turn

    @property
    def n_running(self) -> int:
        return len(self._running)

    def cancel_all(self) -> None:
        """Cancel the running turns, as the process ends."""
        for turn in self._running:
            turn.cancel()

    def _on_turn_done(self, turn: "RunningTurn") -> None:
        self._running.discard(turn)
        self.resumable.record_end(turn)
        error = None if turn.task.cancelled() else turn.task.exception()
        if error is not None and not isinstance(error, TurnRefused | OutOfTime | StepTimeout):
            where = str(error) if isinstance(error, InvalidTurnAnswer) else last_frames(error)
            self._sink.emit(TurnFailed(self.name, turn.request.request_id, error_kind(error), where))

    def _report_abandoned(self, turn: "RunningTurn") -> None:
        self._sink.emit(TurnFailed(self.name, turn.request.request_id, "abandoned",
                                   f"{turn.name} was cancelled but still runs: let it raise asyncio.CancelledError"))

    def __repr__(self) -> str:
        return (f"<ServedTurn {self.name}: {self.function.name}, {self.n_running} running, {len(self.resumable)} "
                "resumable>")


class RunningTurn:
    """One turn, while it runs and while its client may reconnect."""

    def __init__(self, upstream: str, function: TurnFunction, request: TurnRequest, *, is_idempotent: bool,
                 sends_late: bool, resume_s: float, drop: "Callable[[RunningTurn], None]",
                 report_abandoned: "Callable[[RunningTurn], None]") -> None:
        self.request = request
        self.late = request.late  # the budget of the whole turn
        self.answer = Answer()
        self.key = (request.tenant, request.request_id)
        self.n_chars = 0  # of its text, once it has ended
        self.reported_at = -inf  # when a reader last reported its steps
        self._upstream = upstream
        self.name = function.name
        self._function = function
        self._is_idempotent = is_idempotent
        self._sends_late = sends_late
        self._resume_s = resume_s
        self._drop = drop
        self._report_abandoned = report_abandoned
        self._is_cancelled = False
        self._n_readers = 0
        self._leave_timer: asyncio.TimerHandle | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def add_reader(self) -> None:
        self._n_readers += 1
        self._stop_leave_timer()

    def remove_reader(self) -> None:
        """Without readers the turn is cancelled, after `resume_s` if its client may reconnect."""
        self._n_readers -= 1
        if self._n_readers:
            return
        if self._resume_s:
            self._leave_timer = asyncio.get_running_loop().call_later(self._resume_s, self._drop, self)
        else:
            self.cancel()

    def stop_waiting(self) -> None:
        """The client can no longer reconnect."""
        self._resume_s = 0.0
        self._stop_leave_timer()
        if not self._n_readers:
            self.cancel()

    def _stop_leave_timer(self) -> None:
        if self._leave_timer is not None:
            self._leave_timer.cancel()
            self._leave_timer = None

    def cancel(self) -> None:
        if self._is_cancelled or self.task.done():
            return
        self._is_cancelled = True
        self.task.cancel()
        timer = asyncio.get_running_loop().call_later(CANCEL_WAIT_S, self._report_abandoned, self)
        self.task.add_done_callback(lambda _: timer.cancel())

    @property
    def is_ending(self) -> bool:
        """Whether its steps are done, or being cancelled."""
        return self.task.done() or self.task.cancelling() > 0

    async def failure(self) -> UpstreamFailed:
        """The error of a turn whose final event is not ok. Waits until the task has ended."""
        await asyncio.wait([self.task])
        error = None if self.task.cancelled() else self.task.exception()
        return self._failure_of(error or asyncio.CancelledError())

    async def _run(self) -> None:
        try:
            async with self.late:
                async with self.answer as a:
                    await self._write(a)
                if self._sends_late:
                    await a.wait_settled()
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self.task.cancelling():
                raise
            raise ContainedError(f"{self.name} raised {type(error).__name__}, which ends the turn only") from error

    async def _write(self, a: Answer) -> None:
        function, request = self._function, self.request
        result = function.call(request, a) if function.writes else function.call(request)
        text = None
        if function.yields and inspect.isasyncgen(result):
            async with aclosing(result) as pieces:
                async for piece in pieces:
                    a.write(_check_text(function, piece, "yielded"))
                    await asyncio.sleep(0)  # a generator that never awaits must not block the loop
        else:
            text = await result
        if text is not None:
            a.write(_check_text(function, text, "returned"))
        if not a.text:
            raise InvalidTurnAnswer(f"the turn {function.name} returned nothing: return its text, yield it in pieces, or "
                                    "take the answer as second argument and call a.write(text)")

    def _failure_of(self, error: BaseException) -> UpstreamFailed:
        match error:
            case TurnRefused():
                message = str(error) or "this turn does not answer that"
                refused = UpstreamFailed(self._upstream, Fault.STATUS, message, upstream_status=400, is_final=True,
                                         code="turn_refused", kind="invalid_request_error")
                refused.status = 400
                return refused
            case OutOfTime() | StepTimeout():
                by = self.late.broken_by or find_blamed_anywhere(self.late)
                where = "" if not by else ", as the event loop was blocked" if by == EVENT_LOOP else f" in its step {by}"
                failed = UpstreamFailed(self._upstream, Fault.TIMEOUT, f"the turn {self._upstream} ran out of time{where}",
                                        code="turn_out_of_time", kind="timeout_error")
                failed.status = 504
            case InvalidTurnAnswer():
                failed = UpstreamFailed(self._upstream, Fault.RAISED, str(error), code="turn_without_answer")
            case _:
                failed = UpstreamFailed(self._upstream, Fault.RAISED, f"the turn {self._upstream} failed with "
                                        f"{error_kind(error)}; the gateway's log has the location")
        failed.is_once = not self._is_idempotent
        return failed

    def __repr__(self) -> str:
        return f"<RunningTurn {self.request.request_id}: {self.answer!r}, {self._n_readers} readers>"


class TurnReading:
    """One client reading a turn: a `TurnRun`. One task reads it."""

    def __init__(self, turn: RunningTurn, reader: AnswerReader, *, is_plain: bool = False) -> None:
        self._turn = turn
        self._reader = reader
        self._is_plain = is_plain
        self._n_sent = 0  # characters
        self._since = turn.reported_at
        self._has_sent = reader.last_id > 0  # this reading, or one before it
        self._failed: UpstreamFailed | None = None
        self._is_closed = False
        turn.add_reader()

    async def next(self) -> TurnPiece | None:
        """The final event of a failed turn is sent only after other events; else the failure is raised at once."""
        if self._failed is not None:
            raise self._failed
        event = await anext(self._reader, None)
        if event is None:
            return None
        if isinstance(event.payload, FinalEvent) and event.payload.outcome != "ok":
            self._failed = await self._turn.failure()
            if not self._has_sent:
                raise self._failed
        self._has_sent = True
        text = event_text(event, self._n_sent)
        self._n_sent += len(text)
        return TurnPiece(text, b"" if self._is_plain else event.sse(), event.id)

    def is_ready(self) -> bool:
        return self._failed is not None or self._reader.is_ready

    def steps_so_far(self) -> TurnSnapshot:
        return list_steps(self._turn.late, since=self._since, is_ending=self._turn.is_ending)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._turn.reported_at = self._turn.late.now()
            self._turn.remove_reader()


def _check_text(function: TurnFunction, piece: object, verb: str) -> str:
    if not isinstance(piece, str):
        raise InvalidTurnAnswer(f"the turn {function.name} {verb} a {type(piece).__name__}: it must be text")
    return piece
