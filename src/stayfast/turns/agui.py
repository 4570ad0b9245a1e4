"""The events of a turn in the AG-UI protocol (docs.ag-ui.com).

    AG-UI                                           here
    RUN_STARTED, an empty STATE_SNAPSHOT            `start()`
    TEXT_MESSAGE_START, _CONTENT, _END              prefix and delta
    STATE_DELTA                                     patch
    STATE_SNAPSHOT and MESSAGES_SNAPSHOT            snapshot
    CUSTOM, named stayfast.progress and so on       progress, citation, degraded, final
    RUN_FINISHED                                    `finish()`, after the late patches: no event may follow it
    RUN_ERROR                                       a final event that is not ok; no patch may follow it
"""

from typing import Any

import msgspec

from stayfast.turns.events import AnswerEvent, DeltaEvent, EventPayload, FinalEvent, PatchEvent, PrefixEvent, SnapshotEvent

Json = dict[str, Any]
_ERRORS = {"timeout": "The time for this turn was over.", "cancelled": "The turn was cancelled."}


class AgUiEncoder:
    """One run for one reader. Each method returns the events to send, as JSON objects."""

    def __init__(self, thread_id: str, run_id: str) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._message_id = f"{run_id}-1"
        self._n_messages = 1
        self._is_writing = False
        self._is_over = False

    def start(self) -> list[Json]:
        return [{"type": "RUN_STARTED", **self._run}, {"type": "STATE_SNAPSHOT", "snapshot": {}}]

    def encode(self, event: AnswerEvent) -> list[Json]:
        """The AG-UI events of one event; none after an error."""
        if self._is_over:
            return []
        match event.payload:
            case PrefixEvent(text) | DeltaEvent(text):
                start = [] if self._is_writing else [{"type": "TEXT_MESSAGE_START", "messageId": self._message_id,
                                                      "role": "assistant"}]
                self._is_writing = True
                return [*start, {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message_id, "delta": text}]
            case PatchEvent(operations):
                return [{"type": "STATE_DELTA", "delta": operations}]
            case SnapshotEvent() as snapshot:
                return self._encode_snapshot(snapshot)
            case FinalEvent() as final:
                return [*self._end_text(), *self._encode_final(final)]
            case payload:
                return [_custom_event(payload)]

    def finish(self) -> list[Json]:
        """The last events, when the reader has ended."""
        if self._is_over:
            return []
        self._is_over = True
        return [*self._end_text(), {"type": "RUN_FINISHED", **self._run}]

    def _end_text(self) -> list[Json]:
        if not self._is_writing:
            return []
        self._is_writing = False
        return [{"type": "TEXT_MESSAGE_END", "messageId": self._message_id}]

    def _encode_snapshot(self, snapshot: SnapshotEvent) -> list[Json]:
        """The text so far is one message; text after the snapshot starts another."""
        message = {"id": self._message_id, "role": "assistant", "content": snapshot.text}
        events = [*self._end_text(), {"type": "MESSAGES_SNAPSHOT", "messages": [message]},
                  {"type": "STATE_SNAPSHOT", "snapshot": snapshot.state},
                  *map(_custom_event, snapshot.citations), *map(_custom_event, snapshot.degraded)]
        self._n_messages += 1
        self._message_id = f"{self._run['runId']}-{self._n_messages}"
        return events

    def _encode_final(self, final: FinalEvent) -> list[Json]:
        if final.outcome == "ok":
            return [_custom_event(final)]
        self._is_over = True
        message = _ERRORS.get(final.outcome, "The turn failed.")
        return [_custom_event(final), {"type": "RUN_ERROR", "message": message, "code": final.detail or final.outcome}]


def _custom_event(payload: EventPayload) -> Json:
    return {"type": "CUSTOM", "name": f"stayfast.{payload.name}", "value": msgspec.to_builtins(payload)}
