"""Orders the tool calls of an answer one after another, for dialects with one open block at a time."""

from typing import Final

import msgspec

from stayfast.core.types import Usage
from stayfast.wire.dialect import Delta, Finish, Json, NotTranslatable, StreamEncoder, ToolBegin, ToolDelta

MAX_WAITING_CHARS: Final = 4 * 1024 * 1024  # characters; bounds the memory of a call that never ends
_DELTA_OVERHEAD: Final = 100  # what one delta takes besides its text

_ANY: Final = msgspec.json.Decoder()


class ToolCallSequencer:
    """Wraps an encoder that cannot interleave calls. While the arguments of the open call are incomplete JSON, deltas of
    other calls wait; at the end all are released. Calls that follow one another, as nearly all do, never wait.
    """

    __slots__ = ("_arguments", "_encoder", "_n_waiting", "_ordinal", "_waiting")

    def __init__(self, encoder: StreamEncoder) -> None:
        self._encoder = encoder
        self._ordinal = -1  # of the open call; -1: none
        self._arguments: list[str] = []  # of the open call
        self._waiting: list[Delta] = []
        self._n_waiting = 0  # characters, approximately

    def encode_delta(self, delta: Delta) -> list[Json]:
        if isinstance(delta, Finish):
            return [*self._release(is_last=True), *self._encoder.encode_delta(delta)]
        if isinstance(delta, ToolDelta) and delta.ordinal == self._ordinal:
            events = self._encode_now(delta)
            return [*events, *self._release()] if self._waiting else events
        if self._waiting or (isinstance(delta, ToolBegin) and not self._is_call_complete()):
            text = delta.arguments if isinstance(delta, ToolDelta) else getattr(delta, "text", "")
            self._n_waiting += len(text) + _DELTA_OVERHEAD
            if self._n_waiting > MAX_WAITING_CHARS:
                raise NotTranslatable("interleaved calls that do not end")
            self._waiting.append(delta)
            return []
        return self._encode_now(delta)

    def encode_end(self, usage: Usage | None) -> list[Json]:
        return [*self._release(is_last=True), *self._encoder.encode_end(usage)]

    def _encode_now(self, delta: Delta) -> list[Json]:
        if isinstance(delta, ToolBegin):
            self._ordinal = delta.ordinal
            self._arguments = []
        elif isinstance(delta, ToolDelta):
            if delta.ordinal != self._ordinal and not delta.arguments.strip():
                return []  # white space after a call that has been closed
            self._arguments.append(delta.arguments)
        else:
            self._ordinal = -1  # any other delta closes the call's block
        return self._encoder.encode_delta(delta)

    def _release(self, *, is_last: bool = False) -> list[Json]:
        """Encode waiting deltas, one call after another, until a call is incomplete. `is_last`: encode all."""
        events: list[Json] = []
        while self._waiting and (is_last or self._is_call_complete()):
            first = self._waiting[0]
            released = [first]
            if isinstance(first, ToolBegin):
                released += [delta for delta in self._waiting
                             if isinstance(delta, ToolDelta) and delta.ordinal == first.ordinal]
            ids = set(map(id, released))
            self._waiting = [delta for delta in self._waiting if id(delta) not in ids]
            for delta in released:
                events += self._encode_now(delta)
        if not self._waiting:
            self._n_waiting = 0
        return events

    def _is_call_complete(self) -> bool:
        """Whether no call is open, or the arguments of the open call are complete JSON."""
        if self._ordinal < 0:
            return True
        text = "".join(self._arguments)
        if not text.rstrip().endswith("}"):
            return False
        try:
            _ANY.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True
