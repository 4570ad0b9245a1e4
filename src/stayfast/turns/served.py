"""A turn served as a model: the function that a setting names, run for each request in the time that it has.

    upstreams: {support: {kind: turn, turn: "support:answer"}}          async def answer(asked: Asked, a: Answer) -> None
    routes:    {support: {upstreams: [support], deadline: 4}}               a.delta(await current().run(look_up, asked.text))

It runs in a budget that ends END_MARGIN_S before the request must be over, so that what it has by then still gets out. When
its client leaves it is cancelled at once, with all that it runs; a client of the typed events may come back, with the same
x-request-id and the Last-Event-ID that it saw, for `resume_s` after it was cut off. Until then the turn goes on.
When wrong: turns are kept where they run. The other workers of the same parent are asked (`turns.remote_resume`); a client
that comes back to another replica is told by a 404 that it is not there.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import aclosing
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.events import Sink, TurnFailed
from stayfast.core.steps import TurnSeen
from stayfast.turns.answer import Answer, Reader
from stayfast.turns.budget import OutOfTime, budget
from stayfast.turns.events import Final, text_of
from stayfast.turns.function import Asked, Function, Refused
from stayfast.turns.remote_resume import AskOthers, RemoteEvent, RemoteTurnStream, Sought, read_event
from stayfast.turns.report import EVENT_LOOP, find_blamed_anywhere, list_steps
from stayfast.turns.step import Contained, StepTimeout, kind_of, where_raised
from stayfast.upstreams.base import Call
from stayfast.upstreams.turn import TurnPiece, TurnRun, TurnUpstream
from stayfast.wire.dialect import unsayable
from stayfast.wire.encode import conversation
from stayfast.wire.trace_context import headers_of

END_MARGIN_S = 0.025  # of the budget's own grace and clean-up, and a busy loop's timers
MAX_KEPT = 1000
MAX_KEPT_CHARS = 64_000_000  # of turns that have ended
OBEYS_S = 1.0  # what a cancelled turn has to close what it holds before it is told of as abandoned


class BadAnswer(TypeError):
    """The function did not bring an answer; in words for whoever wrote it."""


class ResumableTurns:
    """Turns that their clients may come back to, by tenant and request id. One loop's; outlives a reload."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str | None, str], RunningTurn] = {}
        self._n_chars = 0

    def add(self, turn: "RunningTurn") -> None:
        """Keep it; with too many, the oldest goes."""
        before = self._turns.get(turn.key)
        if before is not None:
            self.drop(before)
        elif len(self._turns) >= MAX_KEPT:
            self.drop(next(iter(self._turns.values())))
        self._turns[turn.key] = turn

    def weigh(self, turn: "RunningTurn") -> None:
        """It has ended; with too much text, the oldest of those that have go."""
        if self._turns.get(turn.key) is turn:
            turn.n_chars = len(turn.answer.text)
            self._n_chars += turn.n_chars
        while self._n_chars > MAX_KEPT_CHARS:
            self.drop(next(one for one in self._turns.values() if one.n_chars))

    def of(self, tenant: str | None, request_id: str) -> "RunningTurn | None":
        return self._turns.get((tenant, request_id))

    def drop(self, turn: "RunningTurn") -> None:
        if self._turns.get(turn.key) is turn:
            del self._turns[turn.key]
            self._n_chars -= turn.n_chars
        turn.forgo()

    def __len__(self) -> int:
        return len(self._turns)


class ServedTurn(TurnUpstream):
    """One function as an upstream. Task-safe."""

    def __init__(self, name: str, function: Function, clock: Clock, sink: Sink, *, resume_s: float = 15.0,
                 is_idempotent: bool = False, ask_others: AskOthers | None = None,
                 resumable: ResumableTurns | None = None) -> None:
        super().__init__(name, clock)
        self.function = function  # for turns that begin from now on
        self.resumable = resumable if resumable is not None else ResumableTurns()
        self._ask_others = ask_others
        self._sink = sink
        self._resume_s = resume_s
        self._is_idempotent = is_idempotent
        self._running: set[RunningTurn] = set()

    def replace_function(self, function: Function) -> None:
        """For turns that begin from now on."""
        self.function = function

    async def begin(self, call: Call) -> TurnRun:
        wish = call.events
        if wish is not None and wish.after is not None:
            return await self._again(Sought(self.name, call.tenant, call.request_id, wish.after, wish.late))
        turn = self._start_turn(call)
        return Reading(turn, turn.answer.read(late=wish is not None and wish.late), is_plain=wish is None)

    async def _again(self, sought: Sought) -> TurnRun:
        turn = self.resumable.of(sought.tenant, sought.request_id)
        if turn is not None:
            try:
                return Reading(turn, turn.answer.read(sought.after, late=sought.late))
            except ValueError as error:
                raise Rejected(f"{error}.", param="last-event-id") from error
        first = await self._ask_others(sought) if self._ask_others is not None else None
        if first is None or self._ask_others is None:
            raise Rejected("This turn is not kept here any more: ask anew, without last-event-id.", status=404,
                           code="turn_not_kept", param="last-event-id")
        return RemoteTurnStream(sought, first, self._ask_others)

    async def find_turn(self, sought: Sought) -> RemoteEvent | None:
        """What another process is to be told of a turn that is kept here; None where it is not."""
        turn = self.resumable.of(sought.tenant, sought.request_id)
        if turn is None:
            return None
        try:
            reading = Reading(turn, turn.answer.read(sought.after, late=sought.late))
        except ValueError:
            return None
        try:
            return await read_event(reading)
        finally:
            reading.close()

    def _start_turn(self, call: Call) -> "RunningTurn":
        parsed = conversation(call.request)
        if parsed.native:
            raise unsayable(parsed.native[0], "a turn")
        headers = dict(call.headers) | dict(headers_of(call.trace) if call.trace is not None else ())
        left_s = call.deadline.remaining(self._clock.now())
        late = budget(max(left_s - END_MARGIN_S, left_s / 2, 1e-3))
        turn_request = Asked(call.model, parsed, late, call.request.stream, call.request_id, call.tenant, headers)
        wish = call.events
        is_resumable = wish is not None and self._resume_s > 0
        turn = RunningTurn(self.name, self.function, turn_request, is_idempotent=self._is_idempotent,
                    waits=wish is not None and wish.late, stays_s=self._resume_s if is_resumable else 0.0,
                           drop=self.resumable.drop,
                    abandon=self._abandoned)
        if is_resumable:
            self.resumable.add(turn)
        self._running.add(turn)
        turn.task.add_done_callback(lambda _: self._ended(turn))
        return turn

    def end(self) -> None:
        """Cancel what runs, as the process ends."""
        for turn in self._running:
            turn.cancel()

    def _ended(self, turn: "RunningTurn") -> None:
        self._running.discard(turn)
        self.resumable.weigh(turn)
        error = None if turn.task.cancelled() else turn.task.exception()
        if error is not None and not isinstance(error, Refused | OutOfTime | StepTimeout):
            where = str(error) if isinstance(error, BadAnswer) else where_raised(error)
            self._sink.emit(TurnFailed(self.name, turn.request.request_id, kind_of(error), where))

    def _abandoned(self, turn: "RunningTurn") -> None:
        self._sink.emit(TurnFailed(self.name, turn.request.request_id, "abandoned", f"{turn.name} was cancelled and goes "
                                                                                    f"on: "
                                   "let asyncio.CancelledError through"))

    def __repr__(self) -> str:
        return f"<ServedTurn {self.name}: {self.function.name}, {len(self._running)} running, {len(self.resumable)} kept>"


class RunningTurn:
    """One turn, while it runs and while its client may come back."""

    def __init__(self, upstream: str, function: Function, request: Asked, *, is_idempotent: bool, waits: bool,
                 stays_s: float,
                 drop: "Callable[[RunningTurn], None]", abandon: "Callable[[RunningTurn], None]") -> None:
        self.request = request
        self.late = request.late  # the budget of all of it
        self.answer = Answer()
        self.key = (request.tenant, request.request_id)
        self.n_chars = 0  # of its text, once it has ended
        self.reported_at = -inf  # when some reader was the last to tell of its steps
        self._upstream = upstream
        self.name = function.name
        self._function = function
        self._is_idempotent = is_idempotent
        self._waits = waits
        self._stays_s = stays_s
        self._drop = drop
        self._abandon = abandon
        self._is_cancelled = False
        self._n_readers = 0
        self._leaving: asyncio.TimerHandle | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def come(self) -> None:
        self._n_readers += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def leave(self) -> None:
        """One less does; the last one ends it, or will."""
        self._n_readers -= 1
        if self._n_readers:
            return
        if self._stays_s:
            self._leaving = asyncio.get_running_loop().call_later(self._stays_s, self._drop, self)
        else:
            self.cancel()

    def forgo(self) -> None:
        """Nobody can come back to it any more."""
        self._stays_s = 0.0
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if not self._n_readers:
            self.cancel()

    def cancel(self) -> None:
        if self._is_cancelled or self.task.done():
            return
        self._is_cancelled = True
        self.task.cancel()
        alarm = asyncio.get_running_loop().call_later(OBEYS_S, self._abandon, self)
        self.task.add_done_callback(lambda _: alarm.cancel())

    @property
    def is_ending(self) -> bool:
        """Whether its steps are over, or about to be."""
        return self.task.done() or self.task.cancelling() > 0

    async def failure(self) -> UpstreamFailed:
        """What a turn whose final event says so has failed with, once what it held is closed."""
        await asyncio.wait([self.task])
        error = None if self.task.cancelled() else self.task.exception()
        return self._failed(error or asyncio.CancelledError())

    async def _run(self) -> None:
        try:
            async with self.late:
                async with self.answer as a:
                    await self._write(a)
                if self._waits:
                    await a.settled()
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self.task.cancelling():
                raise
            raise Contained(f"{self.name} raised {type(error).__name__}, which ends nothing but the turn") from error

    async def _write(self, a: Answer) -> None:
        function, request = self._function, self.request
        made = function.of(request, a) if function.writes else function.of(request)
        error_text = None
        if function.yields and inspect.isasyncgen(made):
            async with aclosing(made) as pieces:
                async for piece in pieces:
                    a.delta(_text(function, piece, "yielded"))
                    await asyncio.sleep(0)  # one that awaits nothing would have the loop to itself
        else:
            error_text = await made
        if error_text is not None:
            a.delta(_text(function, error_text, "returned"))
        if not a.text:
            raise BadAnswer(f"the turn {function.name} returned nothing: let it return its text, yield it in pieces, or "
                            "take the answer as its second argument and write a.delta(text)")

    def _failed(self, error: BaseException) -> UpstreamFailed:
        match error:
            case Refused():
                words = str(error) or "this turn does not answer that"
                refused = UpstreamFailed(self._upstream, Fault.STATUS, words, upstream_status=400, is_final=True,
                                         code="turn_refused", kind="invalid_request_error")
                refused.status = 400
                return refused
            case OutOfTime() | StepTimeout():
                by = self.late.broken_by or find_blamed_anywhere(self.late)
                where = "" if not by else ", as the event loop was blocked" if by == EVENT_LOOP else f" in its step {by}"
                failed = UpstreamFailed(self._upstream, Fault.TIMEOUT, f"the turn {self._upstream} ran out of time{where}",
                                        code="turn_out_of_time", kind="timeout_error")
                failed.status = 504
            case BadAnswer():
                failed = UpstreamFailed(self._upstream, Fault.RAISED, str(error), code="turn_without_answer")
            case _:
                failed = UpstreamFailed(self._upstream, Fault.RAISED, f"the turn {self._upstream} failed with "
                                        f"{kind_of(error)}; the gateway's log says where")
        failed.is_once = not self._is_idempotent
        return failed

    def __repr__(self) -> str:
        return f"<RunningTurn {self.request.request_id}: {self.answer!r}, {self._n_readers} readers>"


class Reading:
    """One client's way through a turn: a `TurnRun`. One task reads it."""

    def __init__(self, turn: RunningTurn, reader: Reader, *, is_plain: bool = False) -> None:
        self._turn = turn
        self._reader = reader
        self._is_plain = is_plain
        self._n_given = 0  # characters
        self._since = turn.reported_at
        self._has_given = reader.seen > 0  # by this reading, or one before it
        self._failed: UpstreamFailed | None = None
        self._is_closed = False
        turn.come()

    async def next(self) -> TurnPiece | None:
        """The final event of a turn that failed is given to whoever has seen something of it."""
        if self._failed is not None:
            raise self._failed
        event = await anext(self._reader, None)
        if event is None:
            return None
        if isinstance(event.told, Final) and event.told.how != "ok":
            self._failed = await self._turn.failure()
            if not self._has_given:
                raise self._failed
        self._has_given = True
        text = text_of(event, self._n_given)
        self._n_given += len(text)
        return TurnPiece(text, b"" if self._is_plain else event.sse(), event.id)

    def ready(self) -> bool:
        return self._failed is not None or self._reader.is_ready

    def seen(self) -> TurnSeen:
        return list_steps(self._turn.late, since=self._since, is_ending=self._turn.is_ending)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._turn.reported_at = self._turn.late.now()
            self._turn.leave()


def _text(function: Function, piece: object, how: str) -> str:
    if not isinstance(piece, str):
        raise BadAnswer(f"the turn {function.name} {how} a {type(piece).__name__}: it must be text")
    return piece
