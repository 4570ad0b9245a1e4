"""A stream whose last event carries the gateway's report: where the head left before there was anything to report in it, or
the answer is not what was asked for. All other streams never come here: their upstream's bytes go on as they are.
"""

from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Chunk
from stayfast.pipeline.stages.relay import Reply
from stayfast.wire.stream_report import add_report

MAX_HELD_BYTES = 16 * 1024 * 1024  # a terminal event of responses repeats the whole answer


class ReportedStream:
    """Holds back what follows the finish reason until the end is there. One task reads it."""

    __slots__ = ("_api", "_failure", "_held", "_n_held_bytes", "_reply", "_sight")

    def __init__(self, reply: Reply, api: Api) -> None:
        self._reply = reply
        self._api = api
        self._sight = reply.sight
        self._held: list[bytes] = []
        self._n_held_bytes = 0
        self._failure: StayfastError | None = None

    async def next(self) -> Chunk | None:
        """As `Reply.next`. An answer that breaks off after its finish reason is given as far as it came, first."""
        if self._failure is not None:
            raise self._failure
        while True:
            try:
                chunk = await self._reply.next()
            except StayfastError as failed:
                if not self._held:
                    raise
                self._failure = failed
                return Chunk(self._release())
            if chunk is None:
                return Chunk(add_report(self._api, self._release(), self._reply.report())) if self._held else None
            if self._sight.finish_reason is None:
                return chunk
            before = self._release() if chunk.n_content or self._n_held_bytes > MAX_HELD_BYTES else b""
            if chunk.data:
                self._held.append(chunk.data)
                self._n_held_bytes += len(chunk.data)
            if before:
                return Chunk(before)

    def _release(self) -> bytes:
        held, self._held, self._n_held_bytes = b"".join(self._held), [], 0
        return held

    def __repr__(self) -> str:
        return f"<ReportedStream of {self._reply!r}: {self._n_held_bytes} bytes held>"
