"""What the processes that share a store have learned, told to each other: records in the store, in order, read by all.

    told     what was put is appended in the background, SOON_S later, AT_A_TIME in a round trip. At most WAITING_BYTES wait;
             beyond that it is not told. The store keeps about the last `most` records of a name
    heard    every SOON_S what was appended since, one record a turn of the loop; at the beginning all that is there. Its own
             come as well, so that all see the same order
    gone     nobody waits for it: it is tried again after twice as long, LONGEST_S at most, and what waits goes on waiting

So no look-up ever waits for what others know: it is here, or it is not known yet. When wrong: what two processes learn
within SOON_S of each other, both learn by themselves. A record whose round trip broke off may be told twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from stayfast.core.clock import Clock
from stayfast.core.events import Sink, StoreCallDone
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import StoreBackend, StoreUnavailable

SOON_S: Final = 1.0
LONGEST_S: Final = 15.0
AT_A_TIME: Final = 128
WAITING_BYTES: Final = 4 * 1024 * 1024
_KEY_BYTES: Final = 8

OnRecord = Callable[[int, bytes, bool], None]


class Journal:
    """One name's, of one process: a `pipeline.cache.semantic_index.Log` that others read. One loop's."""

    __slots__ = ("_after", "_clock", "_door", "_most", "_n_bytes", "_name", "_over", "_sink", "_store", "_task", "_waiting",
                 "_worker_id")

    def __init__(self, store: str, door: StoreBackend, name: str, most: int, worker_id: bytes, *, clock: Clock,
                 sink: Sink) -> None:
        """who: nobody else's, nor this process's at another time."""
        self._store = store
        self._door = door
        self._name = name
        self._most = most
        self._worker_id = worker_id
        self._clock = clock
        self._sink = sink
        self._after = ""  # the place of the last record that was heard
        self._waiting: deque[bytes] = deque()
        self._n_bytes = 0  # of what waits
        self._over: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is closed, and what was put is told or lost."""
        return self._task is not None and self._task.done()

    def begin(self, on_record: OnRecord) -> None:
        """Go on until `close`. hear: takes key and body of what was put, and whether here; ValueError where it cannot."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._task = loop.create_task(self._run(self._over, on_record))
        self._task.add_done_callback(_report)

    def put(self, key: int, body: bytes) -> None:
        """Tell it. Keys are from -2**63 to 2**63 - 1, and mean something to whoever hears them only."""
        if self._n_bytes + len(body) > WAITING_BYTES or (self._over is not None and self._over.done()):
            self._report("append_log", "full", self._clock.now())
            return
        self._n_bytes += len(body)
        self._waiting.append(self._worker_id + key.to_bytes(_KEY_BYTES, "big", signed=True) + body)

    def delete(self, key: int) -> None:
        """What was told is told: each process forgets by itself."""

    def close(self) -> None:
        """Tell what waits, if the store can be asked at once, and end."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def ended(self, within_s: float) -> None:
        """Close it, and wait for that."""
        self.close()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=within_s)
            self._task.cancel()

    async def _run(self, over: "asyncio.Future[None]", on_record: OnRecord) -> None:
        n_failed = 0  # in a row
        while True:
            is_last = over.done()
            is_well = await self._tried("append_log", self._publish())
            if is_last:
                return
            # a full server tells, and is not to be told
            is_well = await self._tried("read_log", self._listen(on_record)) and is_well
            n_failed = 0 if is_well else n_failed + 1
            await asyncio.wait((over,), timeout=backoff_s(n_failed + 1, SOON_S, LONGEST_S))

    async def _tried(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        began_at = self._clock.now()
        try:
            await work
        except StoreUnavailable:
            self._report(what, "unavailable", began_at)
            return False
        return True

    async def _publish(self) -> None:
        while self._waiting:
            began_at = self._clock.now()
            some = [self._waiting[n] for n in range(min(AT_A_TIME, len(self._waiting)))]
            await self._door.append_log(self._name, some, self._most)
            for record in some:
                self._waiting.popleft()
                self._n_bytes -= len(record) - len(self._worker_id) - _KEY_BYTES
                self._report("append_log", "stored", began_at)

    async def _listen(self, on_record: OnRecord) -> None:
        n_found = AT_A_TIME
        while n_found == AT_A_TIME:
            began_at = self._clock.now()
            found = await self._door.read_log(self._name, self._after, AT_A_TIME)
            n_found = len(found)
            for place, record in found:
                self._after = place
                is_own = record.startswith(self._worker_id)
                result = self._handle_record(record, on_record, is_own=is_own)
                if not is_own:
                    self._report("read_log", result, began_at)
                await asyncio.sleep(0)  # a record may take a millisecond, and requests wait for none

    def _handle_record(self, record: bytes, on_record: OnRecord, *, is_own: bool) -> str:
        """What to count."""
        head = len(self._worker_id) + _KEY_BYTES
        if len(record) < head:
            return "unreadable"
        try:
            on_record(int.from_bytes(record[len(self._worker_id):head], "big", signed=True), record[head:], is_own)
        except ValueError:
            return "unreadable"
        return "read"

    def _report(self, what: str, result: str, began_at: float) -> None:
        self._sink.emit(StoreCallDone(self._store, what, result, self._clock.now() - began_at))

    def __repr__(self) -> str:
        return f"<Journal {self._name} in {self._store}: {len(self._waiting)} wait, after {self._after or 'nothing'}>"


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a journal ended", "exception": error, "task": task})
