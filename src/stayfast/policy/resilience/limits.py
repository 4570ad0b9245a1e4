"""Adaptive concurrency limit of one upstream.

Problem: requests beyond an engine's capacity wait there, where they cannot be reordered or shed; a constant limit fits one
model on one day. Rule (`gradient`): once a second, from at least 30 calls in the order of their start
(policy/resilience/baselines.py), with `ratio` the time to first token that two of three calls exceed, relative to its
baseline, `dropped` the share of refused and failed calls, and `peak` the highest concurrency:

    dropped >= 95 %     limit = min(limit, 2 peak, knee) / 2
    dropped >= 5 %      limit = min(limit, 2 peak) * (1 - dropped / 2),     of at least 10
    ratio > 1.5         limit = (1 - 0.2) b + 0.2 (b g + 4),    b = min(limit, 2 peak),    g = max(0.5, 1.5 / ratio)
    else, peak >= limit / 2:    limit = min(1.1 limit + 4, knee); limit + max(1, 2 %) if no more calls than usual exceed 1.5

Two of three, because a queue delays all calls and a long tail only some. "Than usual" is the mean share of the last 100
windows plus 5 %: a slightly too small batch delays few calls, and the limit must stop growing there. The knee is the peak of
the last window before trouble. The limit stays within `min` and `max`, and starts at `max`.

During a brown-out, calls are slow at any load, and a lower limit would turn late answers into none. So if calls that began
at a concurrency without recent trouble are slow, too, nothing is cut until times are normal; cuts that do not reduce the
slowness by a fifth within 10 s are reverted. In an outage the limit stays low. `aimd` is the plain rule on seconds: p95
under `p95_low_s` +5, over `p95_high_s` -10, from 10 to 200 by default. `fixed` is `max`.
Only first tokens and dropped calls are evidence; a client that left, a bad request or a lost race changes nothing.
Source: Netflix concurrency-limits (Gradient2: 1.5, 0.2, 4, 600), Envoy's gradient controller (a quantile of the window),
DCTCP (cuts in proportion to the refused share). The growth by a tenth, the third and the brown-out rule are ours.
When wrong: below 30 calls a second (it waits for more); an engine that loses half its capacity looks like a brown-out until
calls fail; several gateways before one upstream each learn their own limit; the limit counts requests, not their work.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds

Mode = Literal["gradient", "aimd", "fixed", "off"]

WINDOW_S = 1.0
N_LEAST = 30
N_LEAST_DROPPED = 10
N_WITH_FEW = 5
QUICKER_SHARE = 1 / 3
TOLERANCE = 1.5
SLOWER_BY = 0.05  # share of calls
N_WINDOWS = 100
SMOOTHING = 0.2
HEADROOM = 4
GROWTH = 1.1
CAREFUL_GROWTH = 1.02
KNOWN_GOOD_FADES = 0.95  # per window
SLOWEST = 3.0  # larger ratios are only known to be at least that
DROPPED_SHARE = 0.05
OUTAGE_SHARE = 0.95
CUT_HELPS_WITHIN_S = 10.0
CUT_HELPS_BELOW = 0.8  # of the ratio at the first cut
AIMD_UP, AIMD_DOWN, AIMD_MOST = 5, 10, 200
LEAST = 10
MOST = 10_000  # far above what a worker has in flight
MAX_SAMPLES = 1000  # per window


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """How many requests may run at one upstream at a time, and how many may wait for a place."""

    mode: Annotated[Mode, SettingDoc(
        "gradient: by the usual first-token time. aimd: by `p95_low_s` and `p95_high_s`. fixed: `max`. off: unlimited."
    )] = "gradient"
    min: Annotated[int | None, SettingDoc("Lowest limit. null: 10, or `max` if less.", minimum=1, maximum=100_000)] = None
    max: Annotated[int | None, SettingDoc(
        "First and highest limit. null: 10000 (aimd: 200).", minimum=1, maximum=100_000)] = None
    max_waiting: Annotated[int, SettingDoc(
        "Most queued requests; beyond it the lowest priority gets 503.", minimum=0, maximum=100_000)] = 100
    p95_low_s: Annotated[float, SettingDoc(
        "aimd: raise by 5 while p95 of the first token is lower.", more_than=0, maximum=3600)] = 0.5
    p95_high_s: Annotated[float, SettingDoc("aimd: lower by 10 while it is higher.", more_than=0, maximum=3600)] = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.mode == "fixed" and self.max is None:
            raise ValueError("mode: fixed needs `max`, the number of requests that may run at a time")
        if self.floor > self.ceiling:
            raise ValueError(f"min must be at most max ({self.ceiling}), not {self.floor}")
        if self.p95_low_s > self.p95_high_s:
            raise ValueError(f"p95_low_s must be at most p95_high_s ({self.p95_high_s:g}), not {self.p95_low_s:g}")

    @property
    def ceiling(self) -> int:
        return self.max if self.max is not None else AIMD_MOST if self.mode == "aimd" else MOST

    @property
    def floor(self) -> int:
        if self.mode == "fixed":
            return self.ceiling
        return self.min if self.min is not None else min(LEAST, self.ceiling)


class AdaptiveLimit:
    """The limit of one upstream. Pure state; changed only by its owner. Instants are seconds and never go back."""

    __slots__ = ("_config", "_cut", "_is_foreign", "_knee", "_n", "_n_dropped", "_n_good_peak", "_n_known_good", "_n_peak",
                 "_n_windows", "_samples", "_usual_slow", "_window_at", "value", "why")

    def __init__(self, config: LimitConfig) -> None:
        self._config = config
        self.value = float("inf") if config.mode == "off" else float(config.ceiling)
        self.why = "nothing learned yet"  # the reason of the last change
        self._window_at: float | None = None
        self._samples: list[tuple[float, int]] = []
        self._n = self._n_dropped = 0
        self._n_peak = 0
        self._cut: tuple[str, float, float, float] | None = None  # the first cut: trouble, instant, limit and level before
        self._knee = float("inf")
        self._n_good_peak = 0  # of the last window without trouble
        self._n_known_good = 0.0  # highest concurrency of a quick call in windows without trouble, fading
        self._is_foreign = False  # the trouble is not caused by our load
        self._usual_slow = 0.0  # share of calls over TOLERANCE in windows without trouble
        self._n_windows = 0

    @property
    def mode(self) -> str:
        return self._config.mode

    @property
    def is_off(self) -> bool:
        return self._config.mode == "off"

    @property
    def is_adaptive(self) -> bool:
        return self._config.mode in ("gradient", "aimd")

    @property
    def uses_seconds(self) -> bool:
        """Whether `add_samples` needs seconds instead of ratios."""
        return self._config.mode == "aimd"

    def has_room(self, n_in_flight: int) -> bool:
        return n_in_flight < self.value

    def add_samples(self, samples: Sequence[tuple[float, int]], n: int, n_dropped: int, n_peak: int, at: float) -> None:
        """Add a batch of `n` classified calls, `n_dropped` of them refused or failed by the upstream. `samples`: times to
        first token, as ratios to the baseline (or seconds; infinite: at least slow), with their concurrency. `n_peak`:
        the highest concurrency.
        """
        self._samples += samples[:MAX_SAMPLES - len(self._samples)]
        self._n += n
        self._n_dropped += n_dropped
        self._n_peak = max(self._n_peak, n_peak)
        if self._window_at is None:
            self._window_at = at
        elif at - self._window_at >= WINDOW_S and (self._n >= N_LEAST or self._n_dropped >= N_LEAST_DROPPED):
            self._close_window(at)
            self._window_at = at
            self._samples.clear()
            self._n = self._n_dropped = self._n_peak = 0

    def adopt_value(self, value: float) -> None:
        if value != self.value:
            self._set(value, "another worker learned it")

    def rescale(self, factor: float, why: str) -> None:
        """Other gateways use the upstream, too: multiply what was learned (policy/fleet/fleet_size.py)."""
        if self.is_adaptive:
            self._knee *= factor
            self._set(self.value * factor, why)

    def _close_window(self, now: float) -> None:
        dropped = self._n_dropped / self._n
        base = min(self.value, 2.0 * self._n_peak)
        why = f"{dropped:.0%} refused or failed"
        if dropped >= OUTAGE_SHARE:
            self._mark_knee()
            self._cut, self._is_foreign = None, False
            self._set(min(base, self._knee) / 2, why)
        elif dropped >= DROPPED_SHARE and self._n_dropped >= N_LEAST_DROPPED:
            if self._may_cut("dropped", dropped, now, why):
                self._set(base * (1 - dropped / 2), why)
        elif len(self._samples) < N_LEAST:
            return
        elif self._config.mode == "aimd":
            seconds = sorted(seconds for seconds, _ in self._samples)
            self._by_seconds(seconds[int(0.95 * (len(seconds) - 1))], base)
        else:
            ratios = sorted(ratio for ratio, _ in self._samples)
            slow = 1 - bisect_right(ratios, TOLERANCE) / len(ratios)
            self._by_ratio(ratios[int(QUICKER_SHARE * len(ratios))], slow, base, now)

    def _by_seconds(self, p95_s: float, base: float) -> None:
        if p95_s > self._config.p95_high_s:
            self._set(base - AIMD_DOWN, f"p95 {p95_s:.3g} s")
            return
        self._note_good()
        if p95_s < self._config.p95_low_s and 2 * self._n_peak >= self.value:
            self._set(self.value + AIMD_UP, f"p95 {p95_s:.3g} s")

    def _by_ratio(self, ratio: float, slow: float, base: float, now: float) -> None:
        if ratio <= TOLERANCE:
            self._note_good()
            n_quick_concurrent = max([n_concurrent for ratio, n_concurrent in self._samples if ratio <= TOLERANCE],
                                     default=0)
            self._n_known_good = max(float(n_quick_concurrent), self._n_known_good * KNOWN_GOOD_FADES)
            self._n_windows += 1
            self._usual_slow += (slow - self._usual_slow) / min(self._n_windows, N_WINDOWS)
            if 2 * self._n_peak >= self.value:
                self._grow(is_usual=slow <= self._usual_slow + SLOWER_BY)
            return
        why = f"two of three answers take {min(ratio, SLOWEST):.1f} times as long as usual, or longer"
        if self._cut is None and self._is_as_slow_with_few():
            self._is_foreign = True
        if self._may_cut("slow", ratio, now, why):
            gradient = max(0.5, TOLERANCE / ratio)
            self._set((1 - SMOOTHING) * base + SMOOTHING * (base * gradient + HEADROOM), why)

    def _grow(self, *, is_usual: bool) -> None:
        grown = min(self.value * GROWTH + HEADROOM, self._knee)
        if is_usual:
            grown = max(grown, self.value + 1, self.value * CAREFUL_GROWTH)
        if grown > self.value:
            self._set(grown, "answers come as usual")

    def _is_as_slow_with_few(self) -> bool:
        """Whether calls that began at a concurrency without recent trouble are slow, too."""
        with_few = [ratio for ratio, n_concurrent in self._samples if n_concurrent <= self._n_known_good]
        n_slow = sum(1 for ratio in with_few if ratio > TOLERANCE)
        return len(with_few) >= N_WITH_FEW and n_slow >= (1 - QUICKER_SHARE) * len(with_few)

    def _may_cut(self, trouble: str, level: float, now: float, why: str) -> bool:
        """Whether a lower limit is expected to help. Reverts cuts that did not."""
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
        self.value = min(float(self._config.ceiling), max(float(self._config.floor), value))
        self.why = why

    def __repr__(self) -> str:
        if self._config.mode == "off":
            return "<AdaptiveLimit off>"
        return (f"<AdaptiveLimit {self._config.mode} {self.value:.0f} of {self._config.floor} to {self._config.ceiling}: "
                f"{self.why}>")
