"""The events of a turn in AG-UI's words (docs.ag-ui.com), for front ends that speak them.

    AG-UI                                           here
    RUN_STARTED, STATE_SNAPSHOT of nothing          `began()`
    TEXT_MESSAGE_START, _CONTENT, _END              prefix and delta
    STATE_DELTA                                     patch
    STATE_SNAPSHOT and MESSAGES_SNAPSHOT            snapshot
    CUSTOM, named stayfast.progress and so on       progress, citation, degraded, final
    RUN_FINISHED                                    `ended()`, after the late patches: nothing may follow it
    RUN_ERROR                                       a final that is not ok; no patch can follow it there
"""

from typing import Any

import msgspec

from stayfast.turns.events import AnswerEvent, DeltaEvent, EventPayload, FinalEvent, PatchEvent, PrefixEvent, SnapshotEvent

Json = dict[str, Any]
_ERRORS = {"timeout": "The time for this turn was over.", "cancelled": "The turn was cancelled."}


class AgUiEncoder:
    """One run for one reader. Give it each event in turn; what comes back are objects to be sent as JSON."""

    def __init__(self, thread_id: str, run_id: str) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._message_id = f"{run_id}-1"
        self._n_messages = 1
        self._is_writing = False
        self._is_over = False

    def start(self) -> list[Json]:
        """What comes first."""
        return [{"type": "RUN_STARTED", **self._run}, {"type": "STATE_SNAPSHOT", "snapshot": {}}]

    def encode(self, event: AnswerEvent) -> list[Json]:
        """One event in theirs; none after an error."""
        if self._is_over:
            return []
        match event.payload:
            case PrefixEvent(text) | DeltaEvent(text):
                return [*self._start_events(), {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message_id,
                                                "delta": text}]
            case PatchEvent(operations):
                return [{"type": "STATE_DELTA", "delta": operations}]
            case SnapshotEvent() as snapshot:
                return self._encode_snapshot(snapshot)
            case FinalEvent() as final:
                return [*self._end_text(), *self._encode_final(final)]
            case told:
                return [_custom_event(told)]

    def finish(self) -> list[Json]:
        """What comes last, when the reader is done."""
        if self._is_over:
            return []
        self._is_over = True
        return [*self._end_text(), {"type": "RUN_FINISHED", **self._run}]

    def _start_events(self) -> list[Json]:
        if self._is_writing:
            return []
        self._is_writing = True
        return [{"type": "TEXT_MESSAGE_START", "messageId": self._message_id, "role": "assistant"}]

    def _end_text(self) -> list[Json]:
        if not self._is_writing:
            return []
        self._is_writing = False
        return [{"type": "TEXT_MESSAGE_END", "messageId": self._message_id}]

    def _encode_snapshot(self, snapshot: SnapshotEvent) -> list[Json]:
        """What was written is a message of its own; what follows goes into the next one."""
        message = {"id": self._message_id, "role": "assistant", "content": snapshot.text}
        events = [*self._end_text(), {"type": "MESSAGES_SNAPSHOT", "messages": [message]},
                {"type": "STATE_SNAPSHOT", "snapshot": snapshot.state},
                *(_custom_event(event) for event in snapshot.citations),
                  *(_custom_event(told) for told in snapshot.degraded)]
        self._n_messages += 1
        self._message_id = f"{self._run['runId']}-{self._n_messages}"
        return events

    def _encode_final(self, final: FinalEvent) -> list[Json]:
        if final.outcome == "ok":
            return [_custom_event(final)]
        self._is_over = True
        message = _ERRORS.get(final.outcome, "The turn failed.")
        return [_custom_event(final), {"type": "RUN_ERROR", "message": message, "code": final.detail or final.outcome}]


def _custom_event(event: EventPayload) -> Json:
    return {"type": "CUSTOM", "name": f"stayfast.{event.name}", "value": msgspec.to_builtins(event)}
