"""The events of a job's stream on their way into the store.

Tokens come by the hundred a second, and a commit takes milliseconds. So events are appended in groups: those of PAUSE_S, or
of MAX_GROUP. The number of an event counts over all claims of its job, its epoch is the claim. A claim that finds events of
an earlier one first appends a `reset`, except in a Responses stream, whose `response.created` has that meaning.
"""

import asyncio

from stayfast.core.clock import Rng
from stayfast.core.jobs import ClaimedJob, Door, JobEvent
from stayfast.core.types import Api
from stayfast.jobs.service import job_topic
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.wire import sse
from stayfast.wire.jobs.collected_answer import StreamedAnswer, encode_reset, is_end_marker, renumber_event

PAUSE_S = 0.05
MAX_GROUP = 32
MAX_PENDING = 512  # events; beyond it the upstream is not read further
RETRY_S, RETRY_CAP_S = 0.1, 5.0


class ClaimSuperseded(Exception):
    """The claim is no longer this worker's."""


class StreamLog:
    """Stores the events of one claim. One task calls `add` and `end`; `run` is another."""

    __slots__ = ("_answer", "_api", "_epoch", "_has_work", "_is_ended", "_is_stored", "_job_id", "_last", "_n", "_pending",
                 "_rng", "_room", "_splitter", "_store")

    def __init__(self, store: JobStore, claimed: ClaimedJob, next_n: int, rng: Rng) -> None:
        """next_n: the number of the first event, after those of earlier claims."""
        job = claimed.job
        self._store = store
        self._job_id = job.id
        self._api = job.api
        self._epoch = job.token
        self._is_stored = job.is_stream
        self._n = next_n
        self._rng = rng
        self._answer = StreamedAnswer(job.api)
        self._splitter = sse.EventSplitter()
        self._pending: list[JobEvent] = []
        self._last: bytes | None = None  # the event that ends the protocol's stream, until the stream has ended
        self._is_ended = False
        self._has_work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        had_events = next_n or (job.door is Door.STREAM and job.token > 1)  # its client has some that were never stored
        if had_events and job.is_stream and job.api is not Api.RESPONSES:
            self._append(encode_reset(job.token))

    async def add(self, data: bytes) -> None:
        """The next bytes of the stream. Waits while too many events are not stored yet."""
        for event_data, name in sse.parse_events(self._splitter, data):
            self._answer.add_event(event_data)
            if not self._is_stored:
                continue
            if self._last is not None:  # it was not the last one
                self._append(self._last)
                self._last = None
            own = renumber_event(event_data, self._n) if self._api is Api.RESPONSES else event_data
            encoded = sse.encode_event(own, name.decode() or None)
            if is_end_marker(self._api, event_data, name):
                self._last = encoded
            else:
                self._append(encoded)
        if len(self._pending) > MAX_PENDING:
            self._room.clear()
            await self._room.wait()

    def end(self, error_event: bytes | None = None) -> None:
        """The stream is over: its last event follows, or `error_event` in its place."""
        last = error_event if error_event is not None else self._last or b""
        self._last = None
        self._append(last, is_last=True)
        self._is_ended = True
        self._has_work.set()

    def build_body(self) -> bytes | None:
        """The whole answer; None if the events do not form one."""
        return self._answer.build_body()

    async def run(self) -> None:
        """Append events until the last one is stored. Raises ClaimSuperseded."""
        while not self._is_ended or self._pending:
            if not self._pending:
                self._has_work.clear()
                await self._has_work.wait()
            if not self._is_ended and len(self._pending) < MAX_GROUP:
                await asyncio.sleep(PAUSE_S)
            await self._store_pending()

    def _append(self, data: bytes, *, is_last: bool = False) -> None:
        if not self._is_stored:
            return
        self._pending.append(JobEvent(self._n, self._epoch, data, is_last))
        self._n += 1
        self._has_work.set()

    async def _store_pending(self) -> None:
        events, n_failures = self._pending, 0
        self._pending = []
        while True:
            try:
                is_ours = await self._store.append_events(self._job_id, self._epoch, events)
                await self._store.notify(job_topic(self._job_id))
                break
            except StoreUnavailable:
                n_failures += 1
                await asyncio.sleep(backoff_s(n_failures, RETRY_S, RETRY_CAP_S, self._rng, jitter=0.5))
        self._room.set()
        if not is_ours:
            raise ClaimSuperseded(self._job_id)


async def read_stored_stream(store: JobStore, job_id: str) -> tuple[int, list[JobEvent]]:
    """What earlier claims stored: the number of the next event, and the events of the latest claim if its stream is whole,
    else none. Raises StoreUnavailable.
    """
    after_n, latest = -1, list[JobEvent]()
    while True:
        page = await store.read_events(job_id, after_n)
        if not page.events:
            break
        for event in page.events:
            if latest and event.epoch != latest[0].epoch:
                latest = []
            latest.append(event)
        after_n = page.events[-1].n
    return after_n + 1, latest if latest and latest[-1].is_last else []
