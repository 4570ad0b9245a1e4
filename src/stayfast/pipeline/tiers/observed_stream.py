"""A stream whose whole content is collected while the client reads it."""

from collections.abc import Callable

from stayfast.core.types import AnswerSummary, Chunk
from stayfast.upstreams.base import AnswerStream

MAX_ANSWER_BYTES = 262_144


class ObservedStream:
    """An `AnswerStream` that passes everything on. `on_answer` is called once, if the answer came to its end and has at most
    `max_bytes`.
    """

    __slots__ = ("_max_bytes", "_n_bytes", "_on_answer", "_parts", "_stream")

    def __init__(self, stream: AnswerStream, first_chunk: Chunk, on_answer: Callable[[bytes, AnswerSummary], None],
                 max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._stream = stream
        self._parts = [first_chunk.data]
        self._n_bytes = len(first_chunk.data)
        self._max_bytes = max_bytes
        self._on_answer: Callable[[bytes, AnswerSummary], None] | None = on_answer

    @property
    def summary(self) -> AnswerSummary:
        return self._stream.summary

    async def next(self) -> Chunk | None:
        chunk = await self._stream.next()
        if chunk is not None:
            self._n_bytes += len(chunk.data)
            if self._n_bytes <= self._max_bytes:
                self._parts.append(chunk.data)
            else:
                self._parts.clear()
        else:
            self._finish()
        return chunk

    def _finish(self) -> None:
        on_answer, self._on_answer = self._on_answer, None
        summary = self._stream.summary
        if on_answer is not None and self._n_bytes <= self._max_bytes and summary.is_complete and not (
                summary.is_cut or summary.is_degraded):
            on_answer(b"".join(self._parts), summary)

    def cut(self) -> Chunk | None:
        return self._stream.cut()

    def close(self) -> None:
        self._on_answer = None
        self._stream.close()
