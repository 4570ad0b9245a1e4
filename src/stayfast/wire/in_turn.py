"""Puts the calls of an answer one after the other, for clients whose protocol has one open block at a time."""

from typing import Final

import msgspec

from stayfast.core.types import Usage
from stayfast.wire.dialect import Delta, Finish, Json, NotTranslatable, StreamEncoder, ToolBegin, ToolDelta

MAX_WAITING: Final = 4 * 1024 * 1024  # characters: a call that never ends must not grow memory
_OF_A_DELTA: Final = 100  # what one takes beside its text

_ANY: Final = msgspec.json.Decoder()


class InTurn:
    """A writer in front of one that cannot say interleaved calls. One task owns it. While the arguments of the running call
    are no whole JSON, what comes of other calls waits; at the end everything has its turn. A stream whose calls follow one
    another, as nearly all do, waits for nothing.
    """

    __slots__ = ("_arguments", "_n_waiting", "_ordinal", "_waiting", "_writer")

    def __init__(self, writer: StreamEncoder) -> None:
        self._writer = writer
        self._ordinal = -1  # of the running call; -1: none
        self._arguments: list[str] = []  # of the running call
        self._waiting: list[Delta] = []
        self._n_waiting = 0  # characters, about

    def events(self, delta: Delta) -> list[Json]:
        if isinstance(delta, Finish):
            return [*self._release(is_last=True), *self._writer.events(delta)]
        if isinstance(delta, ToolDelta) and delta.ordinal == self._ordinal:
            events = self._write_delta(delta)
            return [*events, *self._release()] if self._waiting else events
        if self._waiting or (isinstance(delta, ToolBegin) and not self._is_free()):
            text = delta.arguments if isinstance(delta, ToolDelta) else getattr(delta, "text", "")
            self._n_waiting += len(text) + _OF_A_DELTA
            if self._n_waiting > MAX_WAITING:
                raise NotTranslatable("calls that interleave without end")
            self._waiting.append(delta)
            return []
        return self._write_delta(delta)

    def end(self, usage: Usage | None) -> list[Json]:
        return [*self._release(is_last=True), *self._writer.end(usage)]

    def _write_delta(self, delta: Delta) -> list[Json]:
        if isinstance(delta, ToolBegin):
            self._ordinal = delta.ordinal
            self._arguments = []
        elif isinstance(delta, ToolDelta):
            if delta.ordinal != self._ordinal and not delta.arguments.strip():
                return []  # white space after a call that has had its turn
            self._arguments.append(delta.arguments)
        else:
            self._ordinal = -1  # its block ends here
        return self._writer.events(delta)

    def _release(self, *, is_last: bool = False) -> list[Json]:
        events: list[Json] = []
        while self._waiting and (is_last or self._is_free()):
            first = self._waiting[0]
            turn = [first]
            if isinstance(first, ToolBegin):
                turn += [one for one in self._waiting if isinstance(one, ToolDelta) and one.ordinal == first.ordinal]
            written = set(map(id, turn))
            self._waiting = [one for one in self._waiting if id(one) not in written]
            for delta in turn:
                events += self._write_delta(delta)
        if not self._waiting:
            self._n_waiting = 0
        return events

    def _is_free(self) -> bool:
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
