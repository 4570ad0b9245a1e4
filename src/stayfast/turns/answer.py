"""The answer of a turn as a stream of events, for one writer and any number of readers.

    async with budget(30) as afterwards:
        async with budget(2.5) as b, Answer() as a:
            a.write_prefix("Let me see. ")              # available at once
            found = await b.gather(orders=..., weather=..., by=0.6, late=afterwards)
            a.put_later("weather", found.late["weather"])   # sends a placeholder now, and a patch when the step is done
            a.write("Your order has left.")
        await a.wait_settled()                          # the final event has been sent; late patches follow

    async for event in a.read(after=parse_last_event_id(header), late=True):
        send(event.sse())

The last `max_events` events are kept; older ones are merged into one snapshot, so memory does not grow with the number of
events. A reader that is too slow, or reconnects too late, continues from the snapshot. The final event and the patches after
it are never merged. Used on one event loop; only readers wait.
When wrong: the Answer has the whole text twice, in the snapshot and as `text`.
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

MAX_EVENTS = 512
MAX_DEPTH = 100  # nesting of a value in the state; some JSON parsers reject deeper values


class Answer:
    """The writer's side. One task enters it; any step of the turn may write. Methods that take text raise TypeError for any
    other type. Raises ValueError for `max_events` below 1.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        if not is_count(max_events, 1):
            raise argument_error(f"max_events={max_events!r:.80}: events to keep, an integer, 1 or more", max_events)
        self._max_events = max_events
        self._events: deque[AnswerEvent] = deque()
        self._n_events = 0
        self._merged = _MergedEvents()
        self._event_added = asyncio.Event()
        self._state: dict[str, Json] = {}
        self._texts: list[str] = []
        self._missing: dict[str, None] = {}
        self._pending: dict[str, None] = {}
        self.is_open = False  # for writing
        self.final_id = 0  # of the final event; 0 before it

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def state(self) -> dict[str, Json]:
        """The state after all events. A later change replaces the dict and does not modify it."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether no event can follow, late patches included."""
        return self.final_id > 0 and not self._pending

    def write_prefix(self, text: str) -> None:
        """Write a beginning that needs no model."""
        self._write_text(PrefixEvent, text)

    def write(self, text: str) -> None:
        """Write a piece of the answer. Empty text adds no event."""
        self._write_text(DeltaEvent, text)

    def report_progress(self, stage: str, status: str) -> None:
        """Write a progress event, which is no part of the answer."""
        self._emit(ProgressEvent(_check_text(stage, "report_progress", "stage"),
                                 _check_text(status, "report_progress", "status")))

    def cite(self, source: str, start: int | None = None, end: int | None = None) -> None:
        """Cite the source of the characters `start` to `end` of the text, or of all of it. Raises ValueError for a wrong
        range.
        """
        is_range = all(at is None or (type(at) is int and at >= 0) for at in (start, end))
        if not is_range or (start is not None and end is not None and end < start):
            raise ValueError(f"a.cite(source, start, end): start={start!r:.80}, end={end!r:.80}: character offsets of the "
                             "text, 0 or more, and start is not after end")
        self._emit(CitationEvent(_check_text(source, "cite", "source"), start, end))

    def mark_degraded(self, part: str, reason: str) -> None:
        """Report that the answer lacks this part, or has a substitute for it."""
        event = DegradedEvent(_check_text(part, "mark_degraded", "part"), _check_text(reason, "mark_degraded", "reason"))
        self._emit(event)
        self._missing[event.part] = None

    def put(self, name: str, value: Any) -> None:
        """Set a field of the state; readers get a patch. Raises ValueError if the value is not JSON, or nested deeper
        than MAX_DEPTH.
        """
        self._check_open()
        self._put(_check_text(name, "put", "name"), _state_value(value))

    def put_later(self, name: str, late_step: StepRun) -> None:
        """Set a field of the state to `{"status": "pending"}`, and when the step is done to `{"status": "ok", "value": ...,
        "elapsed_ms": ...}`, or to the status timeout, failed, skipped or cancelled. Raises ValueError if the field is
        pending.
        """
        self._check_open()
        name = _check_text(name, "put_later", "name")
        if not isinstance(late_step, StepRun):
            raise TypeError(f"{late_step!r:.80} is not a late step: write a.put_later({name!r}, found.late[{name!r}]), with "
                            "the result of b.gather(..., late=afterwards)")
        if name in self._pending:
            raise ValueError(f"{name!r} is already pending: each late step needs its own name")
        if late_step.is_done:
            self._put_result(name, late_step)
            return
        self._pending[name] = self._missing[name] = None
        self._put(name, {"status": "pending"})
        late_step.done_future().add_done_callback(lambda _: self._put_result(name, late_step))

    def read(self, after: int = 0, *, late: bool = False) -> "AnswerReader":
        """Iterate over the events after the id `after`, as they are written, up to the final one; with `late`, also over the
        patches after it.

        Raises ValueError if there is no such id yet.
        """
        if type(after) is not int:
            raise TypeError(f"after={after!r:.80}: the id of an event, as in a.read(after=parse_last_event_id(header))")
        if not 0 <= after <= self._n_events:
            raise ValueError(f"Last-Event-ID: there is no event {after} yet; this turn is at {self._n_events}")
        return AnswerReader(self, after, late=late)

    async def wait_settled(self) -> None:
        """Wait until no event can follow. Call it inside the budget of the late steps, whose deadline ends them."""
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
                outcome = "ok"
            case OutOfTime() | StepTimeout():
                outcome = "timeout"
            case asyncio.CancelledError():
                scope = current_scope.get()
                outcome = "timeout" if scope is not None and scope.is_cut_off else "cancelled"
            case _:
                outcome = "failed"
        self.final_id = self._n_events + 1
        detail = type(error).__name__ if outcome == "failed" else ""
        self._emit(FinalEvent(outcome, detail, tuple(self._missing), tuple(self._pending)))
        self.is_open = False

    def event_after(self, event_id: int) -> AnswerEvent | None:
        """The next event after that id; None if there is none yet."""
        n_merged = self._merged.n
        if event_id < n_merged:
            return AnswerEvent(n_merged, self._merged.snapshot())
        return self._events[event_id - n_merged] if event_id < self._n_events else None

    async def wait_for_event(self) -> None:
        """Wait until the next event is added."""
        await self._event_added.wait()

    def _put_result(self, name: str, late_step: StepRun) -> None:
        fields: dict[str, Json] = {"status": late_step.outcome}
        if late_step.outcome == "ok":
            try:
                fields["value"] = _state_value(late_step.result())
            except ValueError:
                fields = {"status": "failed", "detail": "its result cannot be encoded as JSON"}
        fields["elapsed_ms"] = round(late_step.spent_s * 1e3)
        self._pending.pop(name, None)
        if not self.final_id and fields["status"] == "ok":
            self._missing.pop(name, None)
        self._put(name, fields)

    def _put(self, name: str, value: Json) -> None:
        new = {**self._state, name: value}
        operations = patch.diff(self._state, new)
        self._state = new
        if operations:
            self._append(PatchEvent(operations))

    def _write_text(self, kind: type[PrefixEvent | DeltaEvent], text: str) -> None:
        if type(text) is not str or not text.isascii():
            text = _check_text(text, "write" if kind is DeltaEvent else "write_prefix", "text")
        if text:
            self._emit(kind(text))
            self._texts.append(text)

    def _emit(self, event: EventPayload) -> None:
        self._check_open()
        self._append(event)

    def _check_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("this answer is not open: write inside `async with Answer() as a:`, and pass results that "
                               'arrive after it to a.put_later("weather", found.late["weather"])')

    def _append(self, event: EventPayload) -> None:
        self._n_events += 1
        self._events.append(AnswerEvent(self._n_events, event))
        if len(self._events) > self._max_events and not self.final_id:
            self._merged.add(self._events.popleft())
        self._event_added.set()
        self._event_added.clear()

    def __repr__(self) -> str:
        return f"<Answer: {self._n_events} events, {'final' if self.final_id else 'open'}, {len(self._pending)} pending>"


class AnswerReader:
    """An async iterator over the events of an answer. Abandoning it does not affect the answer."""

    def __init__(self, answer: Answer, last_id: int, *, late: bool) -> None:
        self._answer = answer
        self._late = late
        self.last_id = last_id  # of the last event returned

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
        """Whether this reader got all its events."""
        answer = self._answer
        if answer.final_id and self.last_id >= answer.final_id and not self._late:
            return True
        return answer.is_over and answer.event_after(self.last_id) is None

    @property
    def is_ready(self) -> bool:
        """Whether the next event, or the end, is available without waiting."""
        return self.is_over or self._answer.event_after(self.last_id) is not None

    def next_ready(self) -> AnswerEvent | None:
        """The next event if there is one already; else None."""
        event = self._answer.event_after(self.last_id) if not self.is_over else None
        if event is not None:
            self.last_id = event.id
        return event


class _MergedEvents:
    """The older events, merged into one snapshot."""

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
    """The text with a question mark for each lone surrogate, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _check_text(text: str, method: str, argument: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a.{method}: its {argument} must be text, not {type(text).__name__}: other values go into "
                        "a.put(name, value)")
    return replace_surrogates(text)


def _state_value(value: Any) -> Json:
    """The value as JSON. Raises ValueError if it is not JSON, or nested deeper than MAX_DEPTH."""
    plain = to_json_value(value)
    level = [plain]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level if isinstance(parent, dict | list)
                 for child in (parent.values() if isinstance(parent, dict) else parent) if isinstance(child, dict | list)]
        if not level:
            return plain
    raise ValueError(f"a {type(value).__name__} that is nested more than {MAX_DEPTH} deep")
