"""A log in a shared store through which processes exchange what they have learned.

    write    records are queued and appended in the background, POLL_S later, at most MAX_BATCH in a round trip. At most
             MAX_QUEUED_BYTES are queued; further records are dropped. The store keeps about the last `most` records of a
             name
    read     all new records every POLL_S, one in each turn of the loop; at the start all records. A process also reads its
             own records, so that all processes see the same order
    failure  retried after twice the time, POLL_MAX_S at most; queued records stay queued

No request waits for a record of another process. When wrong: two processes that learn the same thing within POLL_S both
append it. A record whose round trip failed may be appended twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from stayfast.core.clock import Clock
from stayfast.core.events import Sink, StoreCallDone
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import StoreBackend, StoreUnavailable

POLL_S: Final = 1.0
POLL_MAX_S: Final = 15.0
MAX_BATCH: Final = 128
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
_KEY_BYTES: Final = 8

OnRecord = Callable[[int, bytes, bool], None]


class Journal:
    """The log of one name, in one process: a `pipeline.cache.semantic_index.LabelLog` that others read. One loop's."""

    __slots__ = ("_after", "_backend", "_clock", "_closing", "_most", "_n_queued_bytes", "_name", "_queue", "_sink",
                 "_store", "_task", "_worker_id")

    def __init__(self, store: str, backend: StoreBackend, name: str, most: int, worker_id: bytes, *, clock: Clock,
                 sink: Sink) -> None:
        """worker_id: unique to this process, also over restarts."""
        self._store = store
        self._backend = backend
        self._name = name
        self._most = most
        self._worker_id = worker_id
        self._clock = clock
        self._sink = sink
        self._after = ""  # the position of the last record read
        self._queue: deque[bytes] = deque()
        self._n_queued_bytes = 0  # without heads
        self._closing: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, and its queue was written or dropped."""
        return self._task is not None and self._task.done()

    def start(self, on_record: OnRecord) -> None:
        """Run until `close`. on_record: takes key, body and whether the record is this process's own; raises ValueError for
        a body it cannot read.
        """
        loop = asyncio.get_running_loop()
        self._closing = loop.create_future()
        self._task = loop.create_task(self._run(self._closing, on_record))
        self._task.add_done_callback(_report_crash)

    def put(self, key: int, body: bytes) -> None:
        """Queue a record. key: -2**63 to 2**63 - 1."""
        if self._n_queued_bytes + len(body) > MAX_QUEUED_BYTES or (self._closing is not None and self._closing.done()):
            self._report("append_log", "full", self._clock.now())
            return
        self._n_queued_bytes += len(body)
        self._queue.append(self._worker_id + key.to_bytes(_KEY_BYTES, "big", signed=True) + body)

    def delete(self, key: int) -> None:
        """Does nothing: records stay, and each process deletes by its own rules."""

    def close(self) -> None:
        """Write the queue once, if the store is available, and end."""
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    async def aclose(self, within_s: float) -> None:
        """Close it, and wait for its end."""
        self.close()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=within_s)
            self._task.cancel()

    async def _run(self, closing: "asyncio.Future[None]", on_record: OnRecord) -> None:
        n_failed = 0  # in a row
        while True:
            is_last = closing.done()
            is_well = await self._try("append_log", self._append_queue())
            if is_last:
                return
            # read even after a failed write: a full server can be read
            is_well = await self._try("read_log", self._read_new(on_record)) and is_well
            n_failed = 0 if is_well else n_failed + 1
            await asyncio.wait((closing,), timeout=backoff_s(n_failed + 1, POLL_S, POLL_MAX_S))

    async def _try(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        began_at = self._clock.now()
        try:
            await work
        except StoreUnavailable:
            self._report(what, "unavailable", began_at)
            return False
        return True

    async def _append_queue(self) -> None:
        while self._queue:
            began_at = self._clock.now()
            batch = [self._queue[n] for n in range(min(MAX_BATCH, len(self._queue)))]
            await self._backend.append_log(self._name, batch, self._most)
            for record in batch:
                self._queue.popleft()
                self._n_queued_bytes -= len(record) - len(self._worker_id) - _KEY_BYTES
                self._report("append_log", "stored", began_at)

    async def _read_new(self, on_record: OnRecord) -> None:
        n_found = MAX_BATCH
        while n_found == MAX_BATCH:
            began_at = self._clock.now()
            found = await self._backend.read_log(self._name, self._after, MAX_BATCH)
            n_found = len(found)
            for position, record in found:
                self._after = position
                is_own = record.startswith(self._worker_id)
                result = self._handle_record(record, on_record, is_own=is_own)
                if not is_own:
                    self._report("read_log", result, began_at)
                await asyncio.sleep(0)  # a record may take a millisecond; requests run in between

    def _handle_record(self, record: bytes, on_record: OnRecord, *, is_own: bool) -> str:
        """Returns the result for metrics."""
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
        return f"<Journal {self._name} in {self._store}: {len(self._queue)} queued, after {self._after or 'nothing'}>"


def _report_crash(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a journal's task failed", "exception": error, "task": task})
