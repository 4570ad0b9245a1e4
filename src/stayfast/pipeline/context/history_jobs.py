"""The summaries that are being made in the background, and those that could not be made.

At most `max_running` at a time, each span once, none while the gateway rejects requests. No request waits for one.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.context import Summary
from stayfast.pipeline.context.history_records import LinkedTurns, StoredSummary, read_summary, store_summary
from stayfast.pipeline.context.history_summarizer import ADOPTED, FAILED, REFUSED, HistorySummarizer
from stayfast.pipeline.context.token_counter import TokenCounter
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.policy.context.history import HistoryConfig, SentHistory, divide_span
from stayfast.policy.context.summary_merge import limit_summary, merge_summaries
from stayfast.stores.base import Store
from stayfast.wire.context.summary import render_summary

T = TypeVar("T")
MAX_CONVERSATIONS: Final = 10_000  # of which the last turn's summary, or a refused one, is remembered
MAX_PINS: Final = 256  # conversations whose pinned clauses are remembered
TOO_LONG, DELETED = "too_long", "deleted"  # results of a summary, besides those of the summarizer


class RecentItems(Generic[T]):
    """The values that were set last, by key."""

    __slots__ = ("_items", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: OrderedDict[bytes, T] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        return self._items.get(key)

    def set(self, key: bytes, value: T) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._most:
            self._items.popitem(last=False)

    def clear(self) -> None:
        self._items.clear()

    def __contains__(self, key: bytes) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)


class SummaryJob(msgspec.Struct, gc=False):
    """One summary in the making: of the turns of `span`, joined to the one before."""

    conversation: LinkedTurns
    span: tuple[int, int]
    known: StoredSummary | None
    is_deleted: bool = False


class HistoryState:
    """What one route's history has learned and counted. Survives a reload."""

    __slots__ = ("failed", "jobs", "n_saved_tokens", "pins", "requests", "rules", "summaries", "used")

    def __init__(self) -> None:
        self.jobs: dict[bytes, SummaryJob] = {}  # by the key of the summary
        self.failed: RecentItems[str] = RecentItems(MAX_CONVERSATIONS)  # keys of summaries that were not adopted: why
        self.used: RecentItems[SentHistory] = RecentItems(MAX_CONVERSATIONS)  # by the turns before the newest
        self.pins: RecentItems[tuple[str, ...]] = RecentItems(MAX_PINS)  # of turns that are left out
        self.requests: Counter[str] = Counter()  # with a long history: raw, summarized, trimmed
        self.summaries: Counter[str] = Counter()  # adopted, refused, failed, too_long, deleted
        self.rules: Counter[str] = Counter()  # that refused summaries broke
        self.n_saved_tokens = 0

    def list_tried(self, conversation: LinkedTurns) -> list[int]:
        """The numbers of turns whose summary is being made, or was not adopted."""
        if not self.jobs and not len(self.failed):
            return []
        return [after for after, link in enumerate(conversation.links) if link in self.jobs or link in self.failed]

    def find_used(self, conversation: LinkedTurns) -> SentHistory | None:
        """How an earlier request of this turn, or else of the one before, was sent."""
        links = conversation.links
        used = self.used.get(links[-2])
        return used if used is not None or len(links) < 3 else self.used.get(links[-3])

    def delete_running(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """Discard the summaries that are being made and match; None matches any. Returns how many. Pinned clauses are text
        of clients, too: all of them are discarded, since they are found again in the turns.
        """
        self.pins.clear()
        found = [job for job in self.jobs.values() if not job.is_deleted and route in (None, job.conversation.route)
                 and tenant in (None, job.conversation.tenant) and (tag is None or tag in job.conversation.tags)]
        for job in found:
            job.is_deleted = True
        return len(found)


class SummaryMaker:
    """Makes the summaries of one route's conversations, and stores them. Belongs to one loop."""

    __slots__ = ("_clock", "_config", "_counter", "_is_shedding", "_state", "_store", "_summarizer", "_tasks")

    def __init__(self, config: HistoryConfig, store: Store, counter: TokenCounter, summarizer: HistorySummarizer,
                 state: HistoryState, *, clock: Clock, is_shedding: Callable[[], bool]) -> None:
        """is_shedding: whether the gateway rejects requests now."""
        self._config = config
        self._store = store
        self._counter = counter
        self._summarizer = summarizer
        self._state = state
        self._clock = clock
        self._is_shedding = is_shedding
        self._tasks = BackgroundTasks()

    def start(self, job: SummaryJob) -> None:
        """Start it, unless there are too many, or the gateway rejects requests."""
        key, jobs = job.conversation.links[job.span[1]], self._state.jobs
        if key not in jobs and len(jobs) < self._config.max_running and not self._is_shedding():
            jobs[key] = job
            self._tasks.spawn(self._run(key, job))

    async def _run(self, key: bytes, job: SummaryJob) -> None:
        is_leading = False
        try:
            is_leading = await self._store.acquire_lead(key)
            if is_leading:
                await self._make_parts(job)
        except Exception:
            self._note_result(job, FAILED)
            raise
        finally:
            del self._state.jobs[key]
            if is_leading:
                self._store.release_lead(key)

    async def _make_parts(self, job: SummaryJob) -> None:
        """In parts of one allowance at most. A part that the checks refuse is made again as two halves, so that the turns
        before one that cannot be summarized are not left out with it.
        """
        turns, summary = job.conversation.turns, job.known.summary if job.known is not None else None
        parts = divide_span(job.conversation.sizes, *job.span, self._config.allowance_tokens)[::-1]
        while parts:
            first, after = parts.pop()
            made = await self._summarizer.summarize(turns.texts_of(first, after), (first + 1, after),
                                                    turns.digest_of(first, after))
            result, part = made.result, made.summary
            if part is not None:
                whole = merge_summaries(summary, part, turns.digest_of(0, after)) if summary is not None else part
                summary = limit_summary(whole, self._config.summary_tokens, self.count_tokens)
                result = TOO_LONG if summary is None else ADOPTED
            if job.is_deleted:
                result = DELETED
            if result == REFUSED:
                self._state.rules.update(made.rules)
                if after - first > 1:
                    middle = (first + after) // 2
                    parts += ((middle, after), (first, middle))
                    self._state.summaries[REFUSED] += 1
                    continue
            self._note_result(job, result)
            if result != ADOPTED or summary is None:
                return
            await self._put(job, after, summary)

    def _note_result(self, job: SummaryJob, result: str) -> None:
        self._state.summaries[result] += 1
        if result not in (ADOPTED, DELETED):
            self._state.failed.set(job.conversation.links[job.span[1]], result)

    async def _put(self, job: SummaryJob, after: int, summary: Summary) -> None:
        """Unless another process has stored one meanwhile: the same turns have the same summary."""
        conversation, now = job.conversation, self._clock.wall()
        key = conversation.links[after]
        if read_summary(await self._store.get(key), after, now) is None and not job.is_deleted:
            stored = StoredSummary(after, self.count_tokens(summary), summary)
            await self._store.put(key, store_summary(stored, conversation.route, conversation.tenant, conversation.tags,
                                                     now=now, ttl_s=self._config.ttl_s))

    def count_tokens(self, summary: Summary) -> int:
        return self._counter.count_text(render_summary(summary))

    def __repr__(self) -> str:
        return f"<SummaryMaker: {len(self._state.jobs)} in the making>"
