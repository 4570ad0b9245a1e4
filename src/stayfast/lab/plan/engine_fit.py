"""Fits an engine that slows down with our load: one prefill at a time, and a batch that shares the decoding speed.

Problem: at twice the load, waits of such an upstream grow far more than twofold, and a bootstrap of observed waits would not
show it. Rule, the model of `lab.simulated.engine` in reverse:

    prefill starts  = max(arrival + base, end of the prefill before)        first come, first served
    first token     = prefill starts + uncached tokens / V
    s per token     = (step + per_sequence * mean number of running answers) / (1 - u * (1 - share))

u is the part of an answer's time in which another prompt was in prefill. V minimises the median relative error of the first
tokens over a grid, `share` the squared error of the paces, `step` and `per_sequence` are least squares.
The upstream is taken for an engine if this explains the first tokens clearly better than waits without load do, or if the
pace clearly depends on the number of running answers. With signs of that, but no clear ones, the fit has no engine and is
marked, so that changes that rest on the effect of load are not predicted.
Source: iteration-level scheduling (Orca, OSDI 2022); as in `lab.simulated.engine`.
When wrong: a memory limit that was never reached in the log is not seen; other customers' load is part of `base`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import log
from statistics import fmean, median
from typing import NamedTuple

from stayfast.lab.plan.fitting import LEAST_OUTPUT, LEAST_STREAMED, SeenCall, UpstreamFit, quantile_of, rank_correlation
from stayfast.lab.simulated import EngineModel

_SPEEDS = tuple(500.0 * 1.25**n for n in range(30))  # tokens per second: 500 to 320,000
_FINE = tuple(0.85 + 0.03 * n for n in range(11))
_SHARES = tuple(0.1 * n for n in range(1, 11))
CLEARLY = 0.8  # of the error of a model without load
HINTED = 0.88  # of that error
_PACE_CORRELATION, _HINTED_CORRELATION = 0.4, 0.15
_PACE_RANGE, _HINTED_RANGE = 1.05, 1.03  # slowest over quickest tenth, predicted
_KV_TOKENS = 1_000_000_000
_MOST_RUNNING = 100_000
_MIDDLE_OUTPUT = 150  # tokens


class BusyTime:
    """The integral of a number of overlapping intervals over time."""

    __slots__ = ("_at", "_counts", "_sums")

    def __init__(self, intervals: Sequence[tuple[float, float]]) -> None:
        events = sorted([(begin, 1) for begin, end in intervals if end > begin]
                        + [(end, -1) for begin, end in intervals if end > begin])
        self._at = [at for at, _ in events]
        self._counts = list(accumulate(step for _, step in events))
        pieces = [count * (later - at) for count, at, later in zip(self._counts, self._at, self._at[1:], strict=False)]
        self._sums = [0.0, *accumulate(pieces)]

    def until(self, instant: float) -> float:
        """The integral up to an instant."""
        number = bisect_right(self._at, instant) - 1
        return 0.0 if number < 0 else self._sums[number] + self._counts[number] * (instant - self._at[number])

    def mean(self, begin: float, end: float) -> float:
        """The mean number over a time that is not empty."""
        return (self.until(end) - self.until(begin)) / (end - begin)

    @property
    def most(self) -> int:
        return max(self._counts, default=0)


class _Pace(NamedTuple):
    tpot_s: float
    n_running: float
    prefill_share: float


def fit_with_load(name: str, calls: Sequence[SeenCall], plain: UpstreamFit) -> UpstreamFit:
    """The same upstream with an engine, if the log shows that load slows it down; else `plain` with its peak of calls."""
    in_order = sorted(calls, key=lambda call: call.at)
    most = BusyTime([(call.at, call.at + call.took_s) for call in in_order]).most
    plain = replace(plain, most_in_flight=most)
    streamed = [call for call in in_order if call.ttft_s is not None]
    if len(streamed) < LEAST_STREAMED or not plain.paces:
        return plain
    pace_s = plain.pace_s(0.5, _MIDDLE_OUTPUT)
    speed, base_s, error = _fit_prefill(in_order)
    paces = _collect_paces(in_order, speed, pace_s)
    step_s, per_sequence_s, share = _fit_pace(paces, pace_s)
    pace_range, correlation = _pace_dependence(paces, step_s, per_sequence_s)
    if not (error < CLEARLY * plain.error or (pace_range >= _PACE_RANGE and correlation >= _PACE_CORRELATION)):
        has_hint = pace_range >= _HINTED_RANGE and correlation >= _HINTED_CORRELATION
        return replace(plain, is_load_unclear=has_hint or error < HINTED * plain.error)
    model = EngineModel(prefill_tokens_per_s=speed, decode_step_s=max(1e-6, step_s), kv_tokens=_KV_TOKENS,
                        decode_step_per_sequence_s=max(0.0, per_sequence_s), decode_share=share, max_running=_MOST_RUNNING)
    waits = _first_tokens(in_order, speed, base_s)
    bases_s = sorted(max(0.0, call.ttft_s - (wait_s - base_s)) for call, wait_s in zip(in_order, waits, strict=True)
                     if call.ttft_s is not None)
    return replace(plain, first_s=tuple(bases_s), per_token=0.0, engine=model, error=error)


def _first_tokens(calls: Sequence[SeenCall], speed: float, base_s: float) -> list[float]:
    """The predicted first wait of each call, in order of their start."""
    free_at, waits = -1e18, []
    for call in calls:
        free_at = max(call.at + base_s, free_at) + call.n_uncached / speed
        waits.append(free_at - call.at)
    return waits


def _fit_prefill(calls: Sequence[SeenCall]) -> tuple[float, float, float]:
    """Prompt tokens per second, the base wait, and the median relative error."""
    best = min(_try_speed(calls, speed) for speed in _SPEEDS)
    best = min(_try_speed(calls, best[1] * factor) for factor in _FINE)
    error, speed, base_s = best
    return speed, base_s, error


def _try_speed(calls: Sequence[SeenCall], speed: float) -> tuple[float, float, float]:
    base_s = 0.0
    for _ in range(2):
        waits = _first_tokens(calls, speed, base_s)
        base_s = max(0.0, base_s + median(call.ttft_s - wait_s for call, wait_s in zip(calls, waits, strict=True)
                                          if call.ttft_s is not None))
    waits = _first_tokens(calls, speed, base_s)
    error = median(abs(log(max(1e-6, wait_s) / max(1e-6, call.ttft_s))) for call, wait_s in zip(calls, waits, strict=True)
                   if call.ttft_s is not None)
    return error, speed, base_s


def _collect_paces(calls: Sequence[SeenCall], speed: float, pace_s: float) -> list[_Pace]:
    spans = []
    for call in calls:
        ends_at = call.at + call.took_s
        first_at = call.at + call.ttft_s if call.ttft_s is not None else ends_at - pace_s * max(0, call.n_output - 1)
        spans.append((first_at, ends_at))
    running = BusyTime(spans)
    prefilling = BusyTime([(first_at - call.n_uncached / speed, first_at)
                           for call, (first_at, _) in zip(calls, spans, strict=True)])
    return [_Pace(call.tpot_s, running.mean(begin, end), min(1.0, prefilling.mean(begin, end)))
            for call, (begin, end) in zip(calls, spans, strict=True)
            if call.tpot_s and call.n_output >= LEAST_OUTPUT and end > begin]


def _fit_pace(paces: Sequence[_Pace], pace_s: float) -> tuple[float, float, float]:
    """Seconds per token alone, the increase per running answer, and the share of the rate that a prefill leaves."""
    best = (float("inf"), pace_s, 0.0, 1.0)
    for share in _SHARES if len(paces) >= LEAST_STREAMED else ():
        corrected = [pace.tpot_s * (1 - pace.prefill_share * (1 - share)) for pace in paces]
        step_s, slope_s = _line([pace.n_running for pace in paces], corrected)
        if slope_s < 0:
            step_s, slope_s = fmean(corrected), 0.0
        squared = fmean(((step_s + slope_s * pace.n_running) / (1 - pace.prefill_share * (1 - share)) - pace.tpot_s) ** 2
                        for pace in paces)
        best = min(best, (squared, step_s, slope_s, share))
    return best[1:]


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope by least squares."""
    x, y = fmean(xs), fmean(ys)
    spread = sum((one - x) ** 2 for one in xs)
    slope = sum((one - x) * (other - y) for one, other in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return y - slope * x, slope


def _pace_dependence(paces: Sequence[_Pace], step_s: float, per_sequence_s: float) -> tuple[float, float]:
    """How much slower the pace is when many answers run than when few do, and its rank correlation with their number."""
    if len(paces) < LEAST_STREAMED or step_s <= 0:
        return 1.0, 0.0
    running = [pace.n_running for pace in paces]
    ordered = sorted(running)
    low, high = quantile_of(ordered, 0.1), quantile_of(ordered, 0.9)
    return ((step_s + per_sequence_s * high) / (step_s + per_sequence_s * low),
            rank_correlation(running, [pace.tpot_s for pace in paces]))
