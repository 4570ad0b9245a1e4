"""The answer of a turn as it is written, and as it is read: from the start, late, again after a cut, by several at once.

    async with budget(30) as afterwards:
        async with budget(2.5) as b, Answer() as a:
            a.write_prefix("Let me see. ")                    # there at once
            found = await b.gather(orders=..., weather=..., by=0.6, late=afterwards)
            a.put_later("weather", found.late["weather"])   # a placeholder in the state; a patch when the straggler returns
            a.write("Your order has left.")
        await a.wait_settled()                               # the final event is out; patches follow

    async for event in a.read(after=parse_last_event_id(header), late=True):
        write(event.sse())

The last N_KEPT events are kept; older ones are folded into one snapshot, so that what is kept does not grow with the number
of events, and a reader that is too slow, or comes back too late, goes on from the snapshot. `final` and what follows are
always kept. Written and read on one loop; nothing here waits but a reader.
When wrong: the text itself is kept whole, once in the snapshot and once in the answer, as long as the Answer lives.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any

from stayfast.turns import patch
from stayfast.turns.budget import OutOfTime
from stayfast.turns.events import (
    AnswerEvent,
    CitationEvent,
    DegradedEvent,
    DeltaEvent,
    EventPayload,
    FinalEvent,
    PatchEvent,
    PrefixEvent,
    ProgressEvent,
    SnapshotEvent,
    to_json_value,
)
from stayfast.turns.patch import Json
from stayfast.turns.step import StepTimeout
from stayfast.turns.step_run import StepRun, current_scope
from stayfast.turns.validation import argument_error, is_count

N_KEPT = 512
MAX_DEPTH = 100  # of a value in the state: what is nested deeper cannot be told, or not be read, everywhere


class Answer:
    """See the module. One task enters it; steps of that turn may write as well. What is written must be text where text is
    said: TypeError tells what is not. Raises ValueError for `n_kept` below 1.
    """

    def __init__(self, capacity: int = N_KEPT) -> None:
        if not is_count(capacity, 1):
            raise argument_error(f"n_kept={capacity!r:.80}: how many events are kept, a whole number, 1 or more", capacity)
        self._capacity = capacity
        self._events: deque[AnswerEvent] = deque()
        self._n_events = 0
        self._folded = _FoldedEvents()  # those that are not in `_events` any more
        self._event_added = asyncio.Event()
        self._state: dict[str, Json] = {}
        self._texts: list[str] = []
        self._missing: dict[str, None] = {}
        self._pending: dict[str, None] = {}
        self.is_open = False  # for writing
        self.final_id = 0  # of the final event; 0 while there is none

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def state(self) -> dict[str, Json]:
        """What readers hold once they have read everything; replaced, never changed, by what follows."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come, late patches included."""
        return self.final_id > 0 and not self._pending

    def write_prefix(self, text: str) -> None:
        """Text that needs no model."""
        self._write_text(PrefixEvent, text)

    def write(self, text: str) -> None:
        """A piece of the answer; nothing where it is empty."""
        self._write_text(DeltaEvent, text)

    def report_progress(self, stage: str, status: str) -> None:
        self._emit(ProgressEvent(_check_text(stage, "report_progress", "stage"), _check_text(status, "report_progress",
                                                                                             "status")))

    def cite(self, source: str, start: int | None = None, end: int | None = None) -> None:
        """A source of characters `start` to `end` of the text, or of all of it. Raises ValueError for what cannot be."""
        is_place = all(at is None or (type(at) is int and at >= 0) for at in (start, end))
        if not is_place or (start is not None and end is not None and end < start):
            raise ValueError(f"a.cite(source, start, end): start={start!r:.80}, end={end!r:.80}: they are characters of the "
                             "text, counted from 0, and start is not after end")
        self._emit(CitationEvent(_check_text(source, "cite", "source"), start, end))

    def mark_degraded(self, part: str, reason: str) -> None:
        """The answer is without this part, or has it in a lesser form."""
        event = DegradedEvent(_check_text(part, "mark_degraded", "part"), _check_text(reason, "mark_degraded", "reason"))
        self._emit(event)
        self._missing[event.part] = None

    def put(self, name: str, value: Any) -> None:
        """Set one field of the state; readers get what differs. Raises ValueError where it is no JSON, or nested deeper than
        MAX_DEPTH.
        """
        self._check_open()
        self._put(_check_text(name, "put", "name"), _state_value(value))

    def put_later(self, name: str, straggler: StepRun) -> None:
        """Put a placeholder into the state, `{"status": "pending"}`, and what the straggler brings when it is over:
        `{"status": "ok", "value": ..., "elapsed_ms": ...}`, or the status timeout, failed, skipped or cancelled.
        Raises ValueError where that name is pending already.
        """
        self._check_open()
        name = _check_text(name, "put_later", "name")
        if not isinstance(straggler, StepRun):
            raise TypeError(f"{straggler!r:.80} is no straggler: write a.put_later({name!r}, found.late[{name!r}]), with "
                            f"what "
                            "b.gather(..., late=afterwards) left behind")
        if name in self._pending:
            raise ValueError(f"{name!r} is pending already: each straggler needs a name of its own")
        if straggler.is_done:
            self._put_result(name, straggler)
            return
        self._pending[name] = self._missing[name] = None
        self._put(name, {"status": "pending"})
        straggler.done_future().add_done_callback(lambda _: self._put_result(name, straggler))

    def read(self, after: int = 0, *, late: bool = False) -> "AnswerReader":
        """The events after that id, as they come, to `final`; with `late` the patches that follow it, too.

        Raises ValueError where no such event was told.
        """
        if type(after) is not int:
            raise TypeError(f"after={after!r:.80}: the id of an event, as in a.read(after=parse_last_event_id(header))")
        if not 0 <= after <= self._n_events:
            raise ValueError(f"Last-Event-ID: {after} was not told yet; this turn is at {self._n_events}")
        return AnswerReader(self, after, late=late)

    async def wait_settled(self) -> None:
        """Wait until nothing more can come: inside the budget that the stragglers go on under, which ends what does not."""
        while not self.is_over:
            await self._event_added.wait()

    async def __aenter__(self) -> "Answer":
        if self.is_open or self.final_id:
            raise RuntimeError("an answer is written once: write `async with Answer() as a:` for each turn")
        self.is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        where: TracebackType | None) -> None:
        match error:
            case None:
                how = "ok"
            case OutOfTime() | StepTimeout():
                how = "timeout"
            case asyncio.CancelledError():
                scope = current_scope.get()
                how = "timeout" if scope is not None and scope.is_cut_off else "cancelled"
            case _:
                how = "failed"
        self.final_id = self._n_events + 1
        detail = type(error).__name__ if how == "failed" else ""
        self._emit(FinalEvent(how, detail, tuple(self._missing), tuple(self._pending)))
        self.is_open = False

    def event_after(self, seen: int) -> AnswerEvent | None:
        """The next one for whoever has seen so many; None where there is none yet."""
        n_gone = self._folded.n
        if seen < n_gone:
            return AnswerEvent(n_gone, self._folded.snapshot())
        return self._events[seen - n_gone] if seen < self._n_events else None

    async def wait_for_event(self) -> None:
        await self._event_added.wait()

    def _put_result(self, name: str, straggler: StepRun) -> None:
        fields: dict[str, Json] = {"status": straggler.outcome}
        if straggler.outcome == "ok":
            try:
                fields["value"] = _state_value(straggler.result())
            except ValueError:
                fields = {"status": "failed", "detail": "what it brought cannot be said in JSON"}
        fields["elapsed_ms"] = round(straggler.spent_s * 1e3)
        self._pending.pop(name, None)
        if not self.final_id and fields["status"] == "ok":
            self._missing.pop(name, None)
        self._put(name, fields)

    def _put(self, name: str, value: Json) -> None:
        new = {**self._state, name: value}
        operations = patch.diff(self._state, new)
        self._state = new
        if operations:
            self._apply(PatchEvent(operations))

    def _write_text(self, kind: type[PrefixEvent | DeltaEvent], text: str) -> None:
        text_written = text if type(text) is str and text.isascii() else _check_text(text, "write" if kind is DeltaEvent
                                                                                     else "write_prefix", "text")
        if text_written:
            self._emit(kind(text_written))
            self._texts.append(text_written)

    def _emit(self, event: EventPayload) -> None:
        self._check_open()
        self._apply(event)

    def _check_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("this answer is not being written: write inside `async with Answer() as a:`, and give what "
                               'comes after it to a.put_later("weather", found.late["weather"])')

    def _apply(self, event: EventPayload) -> None:
        self._n_events += 1
        self._events.append(AnswerEvent(self._n_events, event))
        if len(self._events) > self._capacity and not self.final_id:
            self._folded.add(self._events.popleft())
        self._event_added.set()
        self._event_added.clear()

    def __repr__(self) -> str:
        return f"<Answer: {self._n_events} events, {'final' if self.final_id else 'open'}, {len(self._pending)} pending>"


class AnswerReader:
    """One reader's way through an answer. Closing it leaves the answer alone."""

    def __init__(self, of: Answer, seen: int, *, late: bool) -> None:
        self._answer = of
        self._late = late
        self.seen = seen  # the id of the last event that it gave

    def __aiter__(self) -> "AnswerReader":
        return self

    async def __anext__(self) -> AnswerEvent:
        while not self.is_over:
            event = self.next_ready()
            if event is not None:
                return event
            await self._answer.wait_for_event()
        raise StopAsyncIteration

    @property
    def is_over(self) -> bool:
        """Whether it was given all that it wants."""
        of = self._answer
        if of.final_id and self.seen >= of.final_id and not self._late:
            return True
        return of.is_over and of.event_after(self.seen) is None

    @property
    def is_ready(self) -> bool:
        """Whether nobody has to wait for the next event, or for the end."""
        return self.is_over or self._answer.event_after(self.seen) is not None

    def next_ready(self) -> AnswerEvent | None:
        """The next event where it is there already."""
        event = self._answer.event_after(self.seen) if not self.is_over else None
        if event is not None:
            self.seen = event.id
        return event


class _FoldedEvents:
    """Events that were told and are not kept one by one."""

    def __init__(self) -> None:
        self.n = 0
        self._texts: list[str] = []
        self._state: dict[str, Json] = {}
        self._citations: list[CitationEvent] = []
        self._degraded: list[DegradedEvent] = []

    def add(self, event: AnswerEvent) -> None:
        self.n = event.id
        match event.payload:
            case PrefixEvent(text) | DeltaEvent(text):
                self._texts.append(text)
            case PatchEvent(operations):
                self._state = patch.apply_patch(self._state, operations)
            case CitationEvent() as citation:
                self._citations.append(citation)
            case DegradedEvent() as degraded:
                self._degraded.append(degraded)

    def snapshot(self) -> SnapshotEvent:
        text = "".join(self._texts)
        self._texts = [text]
        return SnapshotEvent(text, self._state, tuple(self._citations), tuple(self._degraded))


def replace_surrogates(text: str) -> str:
    """Text that can be said in JSON: half of a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _check_text(text: str, call: str, what: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a.{call}: its {what} must be text, not {type(text).__name__}: what else there is to tell goes "
                        "into a.put(name, value)")
    return replace_surrogates(text)


def _state_value(value: Any) -> Json:
    plain = to_json_value(value)
    level = [plain]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level if isinstance(parent, dict | list)
                 for child in (parent.values() if isinstance(parent, dict) else parent) if isinstance(child, dict | list)]
        if not level:
            return plain
    raise ValueError(f"a {type(value).__name__} that is nested more than {MAX_DEPTH} deep")
