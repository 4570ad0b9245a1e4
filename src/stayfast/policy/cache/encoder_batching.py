"""Batching of texts for an encoder, and whether there is time to encode at all.

Problem: an encoder processes several texts faster together. But waiting to fill a batch costs more than it saves, padding
makes each text as slow as the longest, and a long batch delays later texts. Rule:

    no waiting to fill a batch    a free encoder starts at once; a batch is what arrived during the last one
    equal lengths together        the oldest text, and the waiting ones with exactly its number of tokens
    limited size                  n * tokens <= max_batch_tokens
    late texts alone              a text that waited more than `late_s` is encoded alone, oldest first

Encoding is worth starting if the p95 of the last N_RECENT times fits into the time left; if not, one in RETRY_EVERY is
started anyway, to notice when it is fast again.
Source: batches as they form in engines (Yu et al., "Orca", OSDI 2022), without padding.
When wrong: texts of many different lengths are encoded one by one.
"""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

N_RECENT = 64
RETRY_EVERY = 8
_P95 = 0.95


class PendingText(Struct, eq=False):
    n_tokens: int
    queued_at: float


W = TypeVar("W", bound=PendingText)


def select_batch(waiting: Iterable[W], now: float, max_batch_tokens: int, late_s: float) -> list[W]:
    """The next batch, from the waiting texts, oldest first; empty if none waits."""
    batch: list[W] = []
    n_most = 0
    for text in waiting:
        if not batch:
            batch.append(text)
            n_most = max_batch_tokens // max(text.n_tokens, 1)
            if n_most < 2 or now - text.queued_at > late_s:
                break
        elif text.n_tokens == batch[0].n_tokens:
            batch.append(text)
            if len(batch) >= n_most:
                break
    return batch


class EncodingPace:
    """Recent encoding times of single texts. Changed only by its owner."""

    __slots__ = ("_at", "_n_skipped", "_recent_s", "_usual_s")

    def __init__(self) -> None:
        self._recent_s: list[float] = []
        self._at = 0
        self._n_skipped = 0
        self._usual_s: float | None = None  # None: must be computed

    def add_sample(self, seconds: float) -> None:
        if len(self._recent_s) < N_RECENT:
            self._recent_s.append(seconds)
        else:
            self._recent_s[self._at] = seconds
            self._at = (self._at + 1) % N_RECENT
        self._usual_s = None

    @property
    def p95_s(self) -> float | None:
        """The p95 of the recent times; None before the first."""
        if self._usual_s is None and self._recent_s:
            ordered = sorted(self._recent_s)
            self._usual_s = ordered[min(int(_P95 * len(ordered)), len(ordered) - 1)]
        return self._usual_s

    def has_time(self, left_s: float) -> bool:
        usual_s = self.p95_s
        if usual_s is None or usual_s <= left_s:
            return True
        self._n_skipped += 1
        return self._n_skipped % RETRY_EVERY == 0
