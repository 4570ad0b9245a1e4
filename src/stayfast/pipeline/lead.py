"""What comes of an attempt before its client has anything: until here it can still be swapped."""

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Chunk
from stayfast.pipeline.attempt import Attempt
from stayfast.pipeline.watch import Watch
from stayfast.upstreams.base import Stream

MAX_HELD_BACK_BYTES = 8 * 1024 * 1024  # responses repeats the instructions twice before any content; nobody says more


async def until_content(attempt: Attempt, stream: Stream) -> Chunk:
    """Hold back what comes before the first content (a role, a ping), so that the attempt can still be swapped."""
    held_back: list[bytes] = []
    n_bytes = 0
    while (chunk := await stream.next()) is not None:
        if chunk.n_content:
            attempt.first_content()
            if held_back:
                return Chunk(b"".join((*held_back, chunk.data)), chunk.n_content)
            return chunk
        if chunk.data:
            held_back.append(chunk.data)
            n_bytes += len(chunk.data)
            if n_bytes > MAX_HELD_BACK_BYTES:
                raise UpstreamFailed(attempt.name, Fault.MALFORMED, f"upstream {attempt.name} sent no content in the "
                                     f"first {n_bytes} bytes of its answer")
    attempt.first_content()  # a whole answer without content (a stop at once) is an answer
    return Chunk(b"".join(held_back), 0)


async def until_whole(attempt: Attempt, stream: Stream, watch: Watch, idle_s: float, clock: Clock) -> Chunk:
    """The whole answer: as long as the client has nothing of it, the attempt can still be swapped."""
    has_begun = False
    while (chunk := await stream.next()) is not None and not chunk.data:
        if chunk.n_content or has_begun:
            now = clock.now()
            if attempt.is_incremental:
                watch.arm("idle_s", idle_s, now)
            if not has_begun:
                has_begun = True
                attempt.first_content()
            elif chunk.n_content:
                attempt.cadence.content(now)
    if not has_begun:
        attempt.first_content()
    return chunk if chunk is not None else Chunk(b"")
