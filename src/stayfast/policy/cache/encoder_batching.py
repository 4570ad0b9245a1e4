"""Which texts go through an encoder together, and whether there is time for one at all.

Problem: an encoder does several texts at once for less than one after another, but waiting for company costs more than it
saves, padding makes every text as dear as the longest, and a long batch is in the way of all who come meanwhile. Rule:

    nobody waits for company      a free encoder begins at once; a batch is what came while the last one ran
    equal length together         the oldest, and of those who wait as many of exactly its length as
    and not too many              n * tokens <= max_batch_tokens, so that no batch takes long
    late: one by one              whose wait is over `late_s` goes alone, the oldest first

So the delay is bounded by what runs already, and with a free encoder it is nothing. Whether a text is worth beginning is
told by the p95 of the last N_RECENT waits, each from its coming to its vector; where that is more than there is time for,
one in RETRY_EVERY is begun all the same: what is never tried is never known to be quick again.
Source: batches as they form in engines (Yu et al., "Orca", OSDI 2022), without their padding.
When wrong: texts of many lengths find no company; then it is first come, first served.
"""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

N_RECENT = 64
RETRY_EVERY = 32
_P95 = 0.95


class PendingText(Struct, eq=False):
    n_tokens: int
    queued_at: float


W = TypeVar("W", bound=PendingText)


def batch_of(waiting: Iterable[W], now: float, max_batch_tokens: int, late_s: float) -> list[W]:
    """Who goes next, of those who wait, oldest first; nobody of nobody."""
    batch: list[W] = []
    n_most = 0
    for one in waiting:
        if not batch:
            batch.append(one)
            n_most = max_batch_tokens // max(one.n_tokens, 1)
            if n_most < 2 or now - one.queued_at > late_s:
                break
        elif one.n_tokens == batch[0].n_tokens:
            batch.append(one)
            if len(batch) >= n_most:
                break
    return batch


class EncodingPace:
    """How long one text takes lately. Changed only by its owner."""

    __slots__ = ("_at", "_n_skipped", "_recent_s", "_usual_s")

    def __init__(self) -> None:
        self._recent_s: list[float] = []
        self._at = 0
        self._n_skipped = 0
        self._usual_s: float | None = None  # None: to be worked out

    def took(self, seconds: float) -> None:
        if len(self._recent_s) < N_RECENT:
            self._recent_s.append(seconds)
        else:
            self._recent_s[self._at] = seconds
            self._at = (self._at + 1) % N_RECENT
        self._usual_s = None

    @property
    def usual_s(self) -> float | None:
        """The p95 of the last ones; None before the first."""
        if self._usual_s is None and self._recent_s:
            ordered = sorted(self._recent_s)
            self._usual_s = ordered[min(int(_P95 * len(ordered)), len(ordered) - 1)]
        return self._usual_s

    def fits(self, left_s: float) -> bool:
        """Whether one is worth beginning with so much time."""
        usual_s = self.usual_s
        if usual_s is None or usual_s <= left_s:
            return True
        self._n_skipped += 1
        return self._n_skipped % RETRY_EVERY == 0
