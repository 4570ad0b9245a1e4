"""The order of one engine's KV events: duplicates, gaps and restarts, by the numbers of its batches.

Problem: a publisher drops messages for a slow subscriber, and its numbers begin at 0 again after a restart. An index that
misses one removal believes in blocks that are gone. Rule, for a batch with the number n, where `next` is expected:

    n = next                      apply it
    n < next, not newer           a duplicate: it came in a replay, too
    n < next, newer               the engine restarted: the index begins again, from 0
    n > next                      a gap: replay from `next`; what a replay cannot fill means that the index begins again

Newer is a later time of the engine's own clock. After a new connection the last batch is replayed as well: if it is not the
same, the engine restarted meanwhile. Without a replay endpoint each connection begins an index that is not complete.
Source: the sequence numbers and the replay of vLLM's ZmqEventPublisher. When wrong: an engine that restarts behind a
proxy that holds the connection, and whose first messages are lost, may look like a gap of its predecessor, or like none.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from stayfast.core.kv_events import AllCleared, KvBatch, KvEvent
from stayfast.policy.routing.block_index import BlockIndex

HOUR_S: Final = 3600.0
MAX_GAPS: Final = 1000  # that are remembered
AT_ONCE: Final = 512  # blocks, and those of one event more: half a millisecond


class KvEventOrder:
    """Applies the batches of one publisher to its index. Pure state; changed only by its owner."""

    __slots__ = ("_gaps", "_last_ts", "_rest", "index", "n_events", "n_filled", "n_gaps", "n_malformed", "newest_at",
                 "next_number")

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.next_number: int | None = None  # None: no batch yet
        self._last_ts = 0.0
        self._gaps: deque[float] = deque(maxlen=MAX_GAPS)
        self._rest: deque[tuple[KvEvent, int]] = deque()  # events of the newest batch, and its rank
        self.n_events = self.n_filled = self.n_gaps = self.n_malformed = 0
        self.newest_at: float | None = None  # when the last batch was received

    def connect(self, *, has_replay: bool) -> int:
        """A connection was made. Returns the number from which to replay; without a replay, all before it is unknown."""
        if not has_replay:
            self._begin(None, is_complete=False)
        return 0 if self.next_number is None else max(0, self.next_number - 1)

    def disconnect(self) -> None:
        """Nothing is known until the next connection."""
        self.index.lose()

    def take_first(self, first: KvBatch | None) -> bool:
        """Compare the first batch of a replay after `connect`, which `take_replayed` takes next. first: None: the replay is
        empty. False: the engine restarted, and all is forgotten: replay from 0.
        """
        if self.next_number is None:
            if first is None:
                self._begin(0, is_complete=True)
        elif self.next_number > 0 and (first is None or (first.number, first.ts) != (self.next_number - 1, self._last_ts)):
            self._begin(None, is_complete=False)
            return False
        self.index.resume()
        return True

    def take(self, batch: KvBatch, now: float) -> bool:
        """A published batch. False: batches before it are missing; replay from `next_number` (None: 0), then `close_gap`."""
        if self.next_number is None:
            self._begin(batch.number, is_complete=batch.number == 0)
        elif batch.number < self.next_number:
            if batch.ts <= self._last_ts:
                return True
            self._begin(0, is_complete=True)
        if batch.number != self.next_number:
            return False
        self._apply(batch, now)
        return True

    def take_replayed(self, batch: KvBatch, now: float) -> None:
        """A replayed batch. Those that are known are skipped; before the first one, an unknown number is missing."""
        if self.next_number is not None and batch.number < self.next_number:
            return
        if not self.take(batch, now):
            self._skip_to(batch, now)

    def close_gap(self, batch: KvBatch, now: float) -> None:
        """The batch for which `take` returned False, after a replay, or without one."""
        if self.next_number is not None and batch.number <= self.next_number:
            self.n_filled += 1
        self.take_replayed(batch, now)

    def _skip_to(self, batch: KvBatch, now: float) -> None:
        """The batches before this one are lost: nothing before it is known."""
        self.n_gaps += 1
        self._gaps.append(now)
        self._begin(batch.number, is_complete=False)
        self._apply(batch, now)

    def apply_in_steps(self) -> Iterator[None]:
        """Apply the rest of the newest batch. To be exhausted before the next one."""
        while self._rest:
            self._apply_some()
            yield

    def _apply_some(self) -> None:
        n_blocks = 0
        while self._rest and n_blocks < AT_ONCE:
            event, rank = self._rest.popleft()
            self.index.apply_event(event, rank)
            n_blocks += 1 if isinstance(event, AllCleared) else 1 + len(event.hashes)

    def n_recent_gaps(self, now: float) -> int:
        """In the last hour."""
        while self._gaps and self._gaps[0] <= now - HOUR_S:
            self._gaps.popleft()
        return len(self._gaps)

    def _begin(self, number: int | None, *, is_complete: bool) -> None:
        self.next_number = number
        self._last_ts = 0.0
        self._rest.clear()
        self.index.begin(is_complete=is_complete)

    def _apply(self, batch: KvBatch, now: float) -> None:
        for _ in self.apply_in_steps():
            pass
        self._rest.extend((event, batch.rank) for event in batch.events)
        self._apply_some()
        self.next_number = batch.number + 1
        self._last_ts = batch.ts
        self.newest_at = now
        self.n_events += len(batch.events)
        self.n_malformed += batch.n_malformed

    def __repr__(self) -> str:
        return f"<KvEventOrder next {self.next_number}: {self.index!r}>"
