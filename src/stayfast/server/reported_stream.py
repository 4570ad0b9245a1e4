"""A stream whose last event carries the gateway's own report."""

from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Chunk
from stayfast.pipeline.stages.relay import Reply
from stayfast.wire.stream_report import add_report

MAX_HELD_BYTES = 16 * 1024 * 1024  # the terminal event of a response repeats the whole answer


class ReportedStream:
    """A stream whose last event carries the gateway's report: for an answer without a head, whose head was sent before there
    was anything to report, or which is degraded. Holds back what follows the finish reason until the end. One task reads it.
    """

    __slots__ = ("_api", "_failure", "_held", "_n_held_bytes", "_reply", "_sight")

    def __init__(self, reply: Reply, api: Api) -> None:
        self._reply = reply
        self._api = api
        self._sight = reply.summary
        self._held: list[bytes] = []
        self._n_held_bytes = 0
        self._failure: StayfastError | None = None

    async def next(self) -> Chunk | None:
        """As `StoreReply.next`. If the answer breaks off after its finish reason, what is held comes before the error."""
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
