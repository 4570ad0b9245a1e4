"""What a batch of an encoder costs, learned from finished ones, and whether there is time for one at all.

Problem: to predict a batch, before it starts, on a machine whose speed is unknown and changes. Rule: a line through the
recent batches, by least squares in which each batch counts FORGET times as much as the next one.

    seconds = a + b * padded tokens,  a >= 0, b >= 0        padded tokens = texts * longest

A batch that takes longer than OVERRUN times its prediction is learned as OVERRUN times: one broken text does not change the
line by much, and a machine that became slower is learned within some batches.
Encoding is worth starting if the p95 of the last N_RECENT times fits into the time left; if not, one in RETRY_EVERY is
started anyway, to notice when it is fast again.
Source: linear cost of dynamic batching (Crankshaw et al., "Clipper", NSDI 2017); the clipping is ours.
When wrong: attention grows with the square of the length, so the line is too low for the longest texts of a model with a
long context; OVERRUN leaves room for that. Before MIN_BATCHES batches nothing is predicted.
"""

from typing import Final

N_RECENT: Final = 64
RETRY_EVERY: Final = 8
MIN_BATCHES: Final = 8
OVERRUN: Final = 3.0
FORGET: Final = 0.97
_P95: Final = 0.95


class BatchCost:
    """The line of one encoder. Changed only by its owner."""

    __slots__ = ("_n", "_sums", "n_batches", "per_batch_s", "per_token_s")

    def __init__(self) -> None:
        self.n_batches = 0
        self.per_batch_s = 0.0  # a
        self.per_token_s = 0.0  # b
        self._n = 0.0
        self._sums = (0.0, 0.0, 0.0, 0.0)  # of x, y, x², xy

    def predict_s(self, n_padded: int) -> float | None:
        """Seconds of a batch of so many padded tokens; None before MIN_BATCHES."""
        return self.per_batch_s + self.per_token_s * n_padded if self.n_batches >= MIN_BATCHES else None

    @property
    def tokens_worth_a_batch(self) -> float:
        """Padded tokens that cost as much as starting a batch; 0 before MIN_BATCHES."""
        if self.n_batches < MIN_BATCHES or self.per_token_s <= 0:
            return 0.0
        return self.per_batch_s / self.per_token_s

    def add_batch(self, n_padded: int, seconds: float) -> None:
        predicted_s = self.predict_s(n_padded)
        y = min(seconds, OVERRUN * predicted_s) if predicted_s else seconds
        x = float(n_padded)
        sum_x, sum_y, sum_xx, sum_xy = self._sums
        sum_x, sum_y = FORGET * sum_x + x, FORGET * sum_y + y
        sum_xx, sum_xy = FORGET * sum_xx + x * x, FORGET * sum_xy + x * y
        self._n = n = FORGET * self._n + 1.0
        self._sums = (sum_x, sum_y, sum_xx, sum_xy)
        self.n_batches += 1
        spread = sum_xx - sum_x * sum_x / n
        slope = (sum_xy - sum_x * sum_y / n) / spread if spread > 1e-6 * sum_xx else sum_y / max(sum_x, 1.0)
        slope = min(max(slope, 0.0), sum_y / max(sum_x, 1.0))  # a >= 0
        self.per_token_s, self.per_batch_s = slope, max(0.0, (sum_y - slope * sum_x) / n)


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
