"""One frame a second for all viewers of one worker. A slow viewer skips frames: it gets the newest when it is ready."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed
from stayfast.wire.sse import encode_comment

MAX_VIEWERS = 64
HEARTBEAT_S = 5.0
_KEEP_ALIVE = encode_comment("keep-alive")


class EncodedFrame(msgspec.Struct, frozen=True):
    """A frame as JSON, and its number."""

    n: int
    data: bytes


class LiveFeed:
    """Fetches frames while there are viewers. For one event loop."""

    def __init__(self, fetch: Callable[[], Awaitable[EncodedFrame | None]], clock: Clock, *, delay_s: float = 0.0) -> None:
        """fetch: the newest frame; None: there is none now. It must not raise. delay_s: after each whole second, when to
        fetch.
        """
        self._fetch = fetch
        self._clock = clock
        self._delay_s = delay_s
        self._frame: EncodedFrame | None = None
        self._event = b""
        self._changed = asyncio.Event()  # replaced with each frame
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.n_viewers = 0

    def watch(self, last_n: int | None = None) -> AsyncGenerator[bytes]:
        """The frames as server-sent events, until `close`. last_n: the viewer has this one. Raises Shed (429) if there are
        too many viewers.
        """
        if self.n_viewers >= MAX_VIEWERS:
            raise Shed(f"This worker already sends frames to {MAX_VIEWERS} viewers. Close some of them, or read "
                       "/admin/snapshot.", status=429, code="too_many_viewers", retry_after_s=HEARTBEAT_S)
        return self._watch(last_n)

    def close(self) -> None:
        """End all views, as at a drain."""
        self._is_closed = True
        self._changed.set()

    async def _watch(self, last_n: int | None) -> AsyncGenerator[bytes]:
        self.n_viewers += 1
        try:
            if self._task is None:
                self._frame = None  # of an earlier view
                self._task = asyncio.get_running_loop().create_task(self._run())
            yield _KEEP_ALIVE  # the head goes out at once
            while not self._is_closed:
                frame, changed = self._frame, self._changed
                if frame is not None and frame.n != last_n:
                    last_n = frame.n
                    yield self._event
                    continue
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield _KEEP_ALIVE
        finally:
            self.n_viewers -= 1
            if not self.n_viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while True:
            frame = await self._fetch()
            if frame is not None and (self._frame is None or frame.n != self._frame.n):
                self._frame, self._event = frame, b"event: frame\nid: %d\ndata: %b\n\n" % (frame.n, frame.data)
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            now = self._clock.now()
            await asyncio.sleep((now - self._delay_s) // 1.0 + 1.0 + self._delay_s - now)

    def __repr__(self) -> str:
        return f"<LiveFeed: {self.n_viewers} viewers>"
