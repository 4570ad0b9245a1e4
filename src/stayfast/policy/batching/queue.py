"""The queue of an encoder: which waiting texts form the next batch, and which requests are refused.

Problem: an encoder processes several texts faster together. But a timer that fills batches delays every text; in a batch of
different lengths each text costs as much as the longest; one text that breaks or hangs the encoder takes its whole batch
along; and a queue without a bound only moves time-outs into the encoder. Rule:

    no timer        an idle encoder starts at once; a batch is what arrived while the last one ran
    order           the text with the earliest `urgent_at` leads the next batch
    buckets         others of its bucket (<= 16, 32, 64, ... tokens) join, in the same order, while
                      padded = texts * longest <= max_batch_tokens                 (the leader alone may exceed it)
                      (padded - tokens) / padded <= MAX_WASTE
                      added padding * b <= a          what it adds costs less than a batch of its own (`cost`)
    urgent_at       min(deadline - predicted, queued_at + max(patience, STRETCH * predicted)), where `predicted` is the cost
                    of all texts of the request: a large request waits in proportion to its cost, and a text without a
                    deadline has a finite place in the order
    expired         texts whose deadline has passed are dropped before they run
    overrun         a batch of several that fails, or takes OVERRUN times its prediction, is split: each text runs alone
    bound           waiting + running tokens <= max_waiting_tokens, else refused, with the time until there is room
                      (waiting + running + new + promised - max_waiting_tokens) / measured tokens a second
                    promised: tokens of those who were refused and are expected back before; without them, all clients of a
                    burst would come back at the same time, and find no room again

No text starves: its `urgent_at` is finite and does not move, and texts that arrive later than that are behind it. A batch is
never empty while a text waits, also if that text exceeds the budget (an encoder that waits for room instead waits for ever).
Source: batches as they form in engines (Yu et al., "Orca", OSDI 2022); order by earliest deadline (Liu and Layland, 1973).
When wrong: one encoder thread still runs a long text to its end, so a short one behind it waits for that. If all texts are
late, the order by deadline is a bad one; the bound and expiry keep the queue short.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

from stayfast.policy.batching.cost import OVERRUN, BatchCost

BUCKETS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # longest text of each; another one for longer texts
MAX_WASTE: Final = 0.25
STRETCH: Final = 4.0
MIN_OVERRUN_S: Final = 0.25  # a batch is never split sooner: a busy machine stops a thread for so long
FIRST_OVERRUN_S: Final = 10.0  # before anything is predicted
MIN_RETRY_S, MAX_RETRY_S = 0.05, 60.0
_MAX_SKIPPED: Final = 64  # texts of a bucket that do not fit a batch, before it starts without looking further


class PendingText(Struct, eq=False):
    """One text. Instants on one clock."""

    n_tokens: int
    queued_at: float
    deadline_at: float = inf
    n_request_tokens: int = 0  # of all texts of its request; 0: only its own
    runs_alone: bool = False


W = TypeVar("W", bound=PendingText)


class TextBatch(NamedTuple, Generic[W]):
    """Texts that run together. overrun_s: after which a batch of several is split."""

    texts: list[W]
    n_padded: int
    overrun_s: float

    @property
    def n_tokens(self) -> int:
        return sum(text.n_tokens for text in self.texts)


class QueueLimits(NamedTuple):
    """Of one encoder. can_pad: it accepts texts of different lengths in one batch."""

    max_batch_tokens: int
    max_waiting_tokens: int
    patience_s: float
    can_pad: bool = True


class QueueFull(NamedTuple):
    """Why a request is refused. retry_after_s: None: it can never be accepted, as it alone exceeds the bound."""

    retry_after_s: float | None


class BatchQueue(Generic[W]):
    """The texts that wait for one encoder. Changed only by its owner."""

    __slots__ = ("_heaps", "_n_queued", "_promised", "_promised_at", "_rate", "_waiting", "cost", "limits",
                 "n_running_tokens", "n_waiting_tokens")

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.cost = BatchCost()
        self.n_waiting_tokens = 0
        self.n_running_tokens = 0
        self._promised = 0.0  # tokens that are expected back, at `_promised_at`
        self._promised_at = 0.0
        self._rate = 0.0  # tokens a second, without padding; 0: not measured yet
        self._waiting: dict[W, None] = {}
        self._heaps: list[list[tuple[float, int, W]]] = [[] for _ in range(len(BUCKETS) + 2)]  # the last one: run alone
        self._n_queued = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens_per_s(self) -> float:
        return self._rate

    def refuse(self, lengths: Iterable[int], now: float) -> QueueFull | None:
        """Whether texts of these numbers of tokens are refused; None: they may be added."""
        n_new, bound = sum(lengths), self.limits.max_waiting_tokens
        if n_new > bound:
            return QueueFull(None)
        n_over = self.n_waiting_tokens + self.n_running_tokens + n_new - bound
        if n_over <= 0:
            return None
        if not self._rate:
            return QueueFull(1.0)
        self._promised = max(0.0, self._promised - self._rate * (now - self._promised_at))
        self._promised_at = now
        retry_after_s = min(max(MIN_RETRY_S, (n_over + self._promised) / self._rate), MAX_RETRY_S)
        self._promised += n_new
        return QueueFull(retry_after_s)

    def add(self, text: W) -> None:
        self._waiting[text] = None
        self.n_waiting_tokens += text.n_tokens
        self._n_queued += 1
        heappush(self._heaps[-1 if text.runs_alone else _bucket_of(text.n_tokens)],
                 (self._urgent_at(text), self._n_queued, text))

    def discard(self, text: W) -> None:
        """Remove a text that still waits."""
        if text in self._waiting:
            del self._waiting[text]
            self.n_waiting_tokens -= text.n_tokens

    def drop_expired(self, now: float) -> list[W]:
        """Remove and return the texts whose deadline has passed."""
        expired = [text for text in self._waiting if text.deadline_at <= now]
        for text in expired:
            self.discard(text)
        return expired

    def take_batch(self) -> TextBatch[W] | None:
        """The next batch, which counts as running; None if nothing waits."""
        heap = min((heap for heap in self._heaps if self._first(heap) is not None), key=lambda heap: heap[0], default=None)
        if heap is None:
            return None
        texts = self._fill_batch(heap)
        for text in texts:
            self.discard(text)
        n_padded = len(texts) * max(text.n_tokens for text in texts)
        predicted_s = self.cost.predict_s(n_padded)
        overrun_s = max(MIN_OVERRUN_S, OVERRUN * predicted_s) if predicted_s is not None else FIRST_OVERRUN_S
        batch = TextBatch(texts, n_padded, overrun_s)
        self.n_running_tokens += batch.n_tokens
        return batch

    def finish(self, batch: TextBatch[W], seconds: float) -> None:
        """A batch has ended, or was abandoned, after so long."""
        self.n_running_tokens -= batch.n_tokens
        self.cost.add_batch(batch.n_padded, seconds)
        if seconds > 0:
            rate = batch.n_tokens / seconds
            self._rate += (rate - self._rate) * (0.1 if self._rate else 1.0)

    def split(self, texts: Sequence[W]) -> None:
        """Queue texts of a broken batch again, each to run alone. They keep their place in the order."""
        for text in texts:
            text.runs_alone = True
            self.add(text)

    def _urgent_at(self, text: W) -> float:
        n_tokens = max(text.n_tokens, text.n_request_tokens)
        predicted_s = self.cost.predict_s(n_tokens) or 0.0
        return min(text.deadline_at - predicted_s, text.queued_at + max(self.limits.patience_s, STRETCH * predicted_s))

    def _first(self, heap: list[tuple[float, int, W]]) -> W | None:
        while heap and heap[0][2] not in self._waiting:
            heappop(heap)
        return heap[0][2] if heap else None

    def _fill_batch(self, heap: list[tuple[float, int, W]]) -> list[W]:
        """Take the first text of a heap and those that fit to it."""
        leader = heappop(heap)[2]
        texts, skipped = [leader], list[tuple[float, int, W]]()
        n_tokens = n_longest = leader.n_tokens
        max_padding = self.cost.tokens_worth_a_batch
        while not leader.runs_alone and n_longest * (len(texts) + 1) <= self.limits.max_batch_tokens and (
                text := self._first(heap)) is not None and len(skipped) < _MAX_SKIPPED:
            entry = heappop(heap)
            longest, n = max(n_longest, text.n_tokens), len(texts) + 1
            padding = longest * n - n_tokens - text.n_tokens
            added = padding - (n_longest * len(texts) - n_tokens)
            fits = longest * n <= self.limits.max_batch_tokens and padding <= MAX_WASTE * longest * n and (
                added == 0 if not self.limits.can_pad else added <= max_padding)
            if fits:
                texts.append(text)
                n_tokens, n_longest = n_tokens + text.n_tokens, longest
            else:
                skipped.append(entry)
        for entry in skipped:
            heappush(heap, entry)
        return texts


def _bucket_of(n_tokens: int) -> int:
    return next((number for number, longest in enumerate(BUCKETS) if n_tokens <= longest), len(BUCKETS))
