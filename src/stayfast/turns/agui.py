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

from stayfast.turns.events import Delta, Event, Final, Patch, Prefix, Snapshot, Told

Json = dict[str, Any]
_ERRORS = {"timeout": "The time for this turn was over.", "cancelled": "The turn was cancelled."}


class AgUi:
    """One run for one reader. Give it each event in turn; what comes back are objects to be sent as JSON."""

    def __init__(self, thread_id: str, run_id: str) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._message_id = f"{run_id}-1"
        self._n_messages = 1
        self._is_writing = False
        self._is_over = False

    def began(self) -> list[Json]:
        """What comes first."""
        return [{"type": "RUN_STARTED", **self._run}, {"type": "STATE_SNAPSHOT", "snapshot": {}}]

    def of(self, event: Event) -> list[Json]:
        """One event in theirs; none after an error."""
        if self._is_over:
            return []
        match event.told:
            case Prefix(text) | Delta(text):
                return [*self._start_events(), {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message_id,
                                                "delta": text}]
            case Patch(operations):
                return [{"type": "STATE_DELTA", "delta": operations}]
            case Snapshot() as snapshot:
                return self._whole(snapshot)
            case Final() as final:
                return [*self._written(), *self._final(final)]
            case told:
                return [_custom(told)]

    def ended(self) -> list[Json]:
        """What comes last, when the reader is done."""
        if self._is_over:
            return []
        self._is_over = True
        return [*self._written(), {"type": "RUN_FINISHED", **self._run}]

    def _start_events(self) -> list[Json]:
        if self._is_writing:
            return []
        self._is_writing = True
        return [{"type": "TEXT_MESSAGE_START", "messageId": self._message_id, "role": "assistant"}]

    def _written(self) -> list[Json]:
        if not self._is_writing:
            return []
        self._is_writing = False
        return [{"type": "TEXT_MESSAGE_END", "messageId": self._message_id}]

    def _whole(self, snapshot: Snapshot) -> list[Json]:
        """What was written is a message of its own; what follows goes into the next one."""
        message = {"id": self._message_id, "role": "assistant", "content": snapshot.text}
        events = [*self._written(), {"type": "MESSAGES_SNAPSHOT", "messages": [message]},
                {"type": "STATE_SNAPSHOT", "snapshot": snapshot.state},
                *(_custom(event) for event in snapshot.citations), *(_custom(told) for told in snapshot.degraded)]
        self._n_messages += 1
        self._message_id = f"{self._run['runId']}-{self._n_messages}"
        return events

    def _final(self, final: Final) -> list[Json]:
        if final.how == "ok":
            return [_custom(final)]
        self._is_over = True
        message = _ERRORS.get(final.how, "The turn failed.")
        return [_custom(final), {"type": "RUN_ERROR", "message": message, "code": final.detail or final.how}]


def _custom(event: Told) -> Json:
    return {"type": "CUSTOM", "name": f"stayfast.{event.name}", "value": msgspec.to_builtins(event)}
