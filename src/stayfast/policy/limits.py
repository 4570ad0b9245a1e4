"""How many requests may run at one upstream at a time, learned from how it takes them.

Problem: beyond what an engine can run, every further request only waits there, where nobody can reorder or shed it; a
constant is right for one model on one day. Rule (`gradient`): once a second, of at least 10 outcomes, with `ratio` the
median of the times to the first token as ratios to what is usual for such a prompt (policy/usual.py), `failed` the share of
refusals and failures, `peak` the most that ran at once:

    failed >= 95 %      limit = min(limit, 2 peak, knee) / 2
    failed >= 5 %       limit = min(limit, 2 peak) * (1 - failed / 2)
    ratio > 1.5         limit = (1 - 0.2) b + 0.2 (b g + 4),    b = min(limit, 2 peak),    g = max(0.5, 1.5 / ratio)
    ratio <= 1.2, peak >= limit / 2:    limit = 1.1 limit + 4 below the knee, limit + max(1, 2 %) above it

Unused room is no evidence that there is more. The knee is where trouble was last met: the peak of the last good window.
It is always within `least` and `most`, starting at `most`: nobody is held up before there is evidence. A brown-out is slow
whatever we send, and there a lower limit would only turn late answers into none: cuts that after 10 s have not made the
trouble a fifth less are taken back, and no other is made until all is as usual again. Only in an outage, when nothing comes
through, the limit stays low: it costs nothing then, and is what meets the storm after it.
`aimd` is the plain rule on seconds: p95 under `good_s` +5, over `bad_s` -10; failures as above. `fixed` is `most`.

What teaches: success with its time, dropped (a refusal such as 429, a failure). What is ignored (a client that left, a bad
request, a lost race) moves nothing, however much of it there is.
Source: Netflix concurrency-limits (Gradient2: 1.5, 0.2, 4, 600), Envoy's gradient controller (median of the window), DCTCP
(cut in proportion to the share that was refused). The growth by a tenth and the cut that is taken back are ours.
When wrong: fewer than 10 outcomes a second (it waits for more); several gateways before one upstream each learn a limit of
their own; a limit counts requests, not the work in them.
"""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["gradient", "aimd", "fixed", "off"]

WINDOW_S = 1.0
N_LEAST = 10
TOLERANCE = 1.5
GROWS_BELOW = 1.2
SMOOTHING = 0.2
HEADROOM = 4
GROWTH = 1.1
CAREFUL_GROWTH = 1.02
FAILED_SHARE = 0.05
OUTAGE_SHARE = 0.95
CUT_HELPS_WITHIN_S = 10.0
CUT_HELPS_BELOW = 0.8  # of the ratio at the first cut
AIMD_UP, AIMD_DOWN = 5, 10
MAX_SAMPLES = 1000  # of a window


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """Requests that may run at one upstream at a time, and how many may wait for a place."""

    mode: Mode = "off"  # in a pause the slow answers come last, and gradient and aimd take them for congestion
    least: int = 10
    most: int = 1000
    max_waiting: int = 100
    good_s: float = 0.5  # aimd: p95 of the time to the first token
    bad_s: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in ("gradient", "aimd", "fixed", "off"):
            raise ValueError(f"mode must be gradient, aimd, fixed or off, not {self.mode!r}")
        if not 1 <= self.least <= self.most <= 100_000:
            raise ValueError(f"1 <= least <= most <= 100000 must hold, not least={self.least}, most={self.most}")
        if not 0 <= self.max_waiting <= 100_000:
            raise ValueError(f"max_waiting must be from 0 to 100000, not {self.max_waiting}")
        if not 0 < self.good_s <= self.bad_s <= 3600:
            raise ValueError(f"0 < good_s <= bad_s <= 3600 must hold, not good_s={self.good_s}, bad_s={self.bad_s}")


class Limit:
    """The limit of one upstream. Pure state; changed only by its owner. Instants are seconds and never go backwards."""

    __slots__ = ("_config", "_cut", "_is_foreign", "_knee", "_n_failed", "_n_good_peak", "_n_peak", "_samples",
                 "_window_at", "value", "why")

    def __init__(self, config: LimitConfig) -> None:
        self._config = config
        self.value = float("inf") if config.mode == "off" else float(config.most)
        self.why = "nothing learned yet"  # of the last change
        self._window_at: float | None = None
        self._samples: list[float] = []
        self._n_failed = 0
        self._n_peak = 0
        self._cut: tuple[str, float, float, float] | None = None  # of the first: what for, when, limit and level before it
        self._knee = float("inf")
        self._n_good_peak = 0  # of the last window without trouble
        self._is_foreign = False  # cuts did not help: the slowness is not of our making

    @property
    def learns(self) -> bool:
        """Whether outcomes mean anything to it."""
        return self._config.mode in ("gradient", "aimd")

    @property
    def learns_seconds(self) -> bool:
        """Whether `succeeded` wants seconds, not ratios."""
        return self._config.mode == "aimd"

    def has_room(self, n_in_flight: int) -> bool:
        """Whether one more may run."""
        return n_in_flight < self.value

    def succeeded(self, sample: float, n_in_flight: int, now: float) -> None:
        """A first token came: a ratio to what is usual, or seconds. `n_in_flight` counts it."""
        if len(self._samples) < MAX_SAMPLES:
            self._samples.append(sample)
        self._turn(n_in_flight, now)

    def dropped(self, n_in_flight: int, now: float) -> None:
        """An attempt was refused or failed by the upstream's fault."""
        self._n_failed += 1
        self._turn(n_in_flight, now)

    def _turn(self, n_in_flight: int, now: float) -> None:
        self._n_peak = max(self._n_peak, n_in_flight)
        if self._window_at is None:
            self._window_at = now
        elif now - self._window_at >= WINDOW_S and len(self._samples) + self._n_failed >= N_LEAST:
            self._learn(now)
            self._window_at = now
            self._samples.clear()
            self._n_failed = self._n_peak = 0

    def _learn(self, now: float) -> None:
        samples = sorted(self._samples)
        failed = self._n_failed / (len(samples) + self._n_failed)
        base = min(self.value, 2.0 * self._n_peak)
        why = f"{failed:.0%} refused or failed"
        if failed >= OUTAGE_SHARE:
            self._mark_knee()
            self._cut, self._is_foreign = None, False
            self._set(min(base, self._knee) / 2, why)
        elif failed >= FAILED_SHARE:
            if self._may_cut("failed", failed, now, why):
                self._set(base * (1 - failed / 2), why)
        elif self._config.mode == "aimd":
            self._by_seconds(samples[int(0.95 * (len(samples) - 1))], base)
        else:
            self._by_ratio(samples[len(samples) // 2], base, now)

    def _by_seconds(self, p95_s: float, base: float) -> None:
        if p95_s > self._config.bad_s:
            self._set(base - AIMD_DOWN, f"p95 {p95_s:.3g} s")
            return
        self._note_good()
        if p95_s < self._config.good_s and 2 * self._n_peak >= self.value:
            self._set(self.value + AIMD_UP, f"p95 {p95_s:.3g} s")

    def _by_ratio(self, ratio: float, base: float, now: float) -> None:
        if ratio <= TOLERANCE:
            self._note_good()
            if ratio <= GROWS_BELOW and 2 * self._n_peak >= self.value:
                fast, careful = self.value * GROWTH + HEADROOM, max(self.value + 1, self.value * CAREFUL_GROWTH)
                self._set(max(careful, min(fast, self._knee)), "answers come as usual")
            return
        why = f"answers take {ratio:.1f} times as long as usual"
        if self._may_cut("slow", ratio, now, why):
            gradient = max(0.5, TOLERANCE / ratio)
            self._set((1 - SMOOTHING) * base + SMOOTHING * (base * gradient + HEADROOM), why)

    def _may_cut(self, trouble: str, level: float, now: float, why: str) -> bool:
        """Whether a lower limit can be expected to help; takes back those that have not."""
        if self._is_foreign:
            return False
        if self._cut is None:
            self._mark_knee()
            self._cut = (trouble, now, self.value, level)
        of, began_at, limit_before, level_before = self._cut
        if of != trouble:
            self._cut = (trouble, now, limit_before, level)
        elif now - began_at >= CUT_HELPS_WITHIN_S and level > CUT_HELPS_BELOW * level_before:
            self._is_foreign = True
            self._set(limit_before, f"{why}, whatever is sent")
            return False
        return True

    def _note_good(self) -> None:
        self._cut, self._is_foreign, self._n_good_peak = None, False, self._n_peak

    def _mark_knee(self) -> None:
        if self._n_good_peak:
            self._knee, self._n_good_peak = float(self._n_good_peak), 0

    def _set(self, value: float, why: str) -> None:
        self.value = min(float(self._config.most), max(float(self._config.least), value))
        self.why = why

    def __repr__(self) -> str:
        if self._config.mode == "off":
            return "<Limit off>"
        return f"<Limit {self._config.mode} {self.value:.0f} of {self._config.least} to {self._config.most}: {self.why}>"
