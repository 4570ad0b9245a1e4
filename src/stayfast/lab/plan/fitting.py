"""Fits an upstream's speed to the attempts that a log shows.

Problem: the true parameters of a provider are hidden; a log shows waits of a mixture of prompts at a mixture of loads.
Rule for an upstream whose waits do not depend on our load (a hosted API), with residuals that do not depend on the prompt:

    first token = e * (1 + k * uncached tokens)      each answer's e is drawn from the residuals of the log
    or          = e + b * uncached tokens            the one whose residuals' spread depends less on the prompt

k (or b) is the value at which the rank correlation of the residuals with the prompt's length is 0, so that a heavy tail does
not pull it. Attempts that were cancelled for a faster one count as "at least as long" (product-limit estimate). The seconds
per output token are drawn from those of the log. An upstream that slows down with our load is fitted in `engine_fit`.
Source: Theil (1950), Sen (1968) for slopes by rank statistics; Kaplan and Meier (1958).
When wrong: waits that depend on time (bad minutes) are drawn independently; so queues behind a bad minute are too short.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from random import Random
from statistics import median

from stayfast.lab.simulated import EngineModel
from stayfast.observe.traffic_rows import TrafficLine, TrialRow

LEAST_STREAMED = 60  # first tokens that were seen; with fewer, whole answers are split into first wait and pace
N_PACES = 5
LEAST_OUTPUT = 8  # tokens of an answer whose pace is used
_N_PAIRS = 4000
_N_STEPS = 24
_FAILED = 500
_TOO_MANY = 429
_TIMED_OUT = 504


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One attempt at an upstream. is_cut: cancelled before its first token. ttft_s: None for whole answers and failures."""

    at: float  # of its start, seconds since the epoch
    n_uncached: int
    n_output: int
    took_s: float
    ttft_s: float | None
    tpot_s: float | None
    is_stream: bool
    is_cut: bool = False
    fault: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True)
class UpstreamFit:
    """The model of one upstream. `first_s` is a sorted sample from which waits are drawn; `paces` are sorted samples of
    seconds per token for answers up to so many tokens, as short answers have another pace than long ones.

    engine: None: load has no effect on it. fail_share, hang_share: of attempts; `fail_after_s`, `fail_status`: of those that
    fail; a hanging attempt brings nothing until a time-out ends it.
    """

    name: str
    n_seen: int
    first_s: tuple[float, ...]
    per_token: float  # k, or b in seconds
    is_additive: bool
    paces: tuple[tuple[int, tuple[float, ...]], ...]
    engine: EngineModel | None = None
    fail_share: float = 0.0
    fail_after_s: float = 0.1
    fail_status: int = 503
    hang_share: float = 0.0
    most_in_flight: int = 0  # as observed
    error: float = 0.0  # median relative error of the model of the first token
    is_load_unclear: bool = False  # the log hints at an effect of load, but does not show it

    def first_wait_s(self, luck: float, n_uncached: int) -> float:
        """The wait for the first token at the quantile `luck` (0 to 1), without the waits inside an engine."""
        base_s = quantile_of(self.first_s, luck)
        if self.engine is not None:
            return base_s
        return base_s + self.per_token * n_uncached if self.is_additive else base_s * (1 + self.per_token * n_uncached)

    def speed_up(self, factor: float) -> "UpstreamFit":
        """The same, `factor` times as fast in all its parts."""
        engine = self.engine
        if engine is not None:
            engine = replace(engine, prefill_tokens_per_s=engine.prefill_tokens_per_s * factor,
                             decode_step_s=engine.decode_step_s / factor,
                             decode_step_per_sequence_s=engine.decode_step_per_sequence_s / factor)
        return replace(self, first_s=tuple(wait_s / factor for wait_s in self.first_s), engine=engine,
                       per_token=self.per_token / factor if self.is_additive else self.per_token,
                       paces=self._paces_over(factor))

    def speed_up_decode(self, factor: float) -> "UpstreamFit":
        """The same with `factor` times the output tokens per second."""
        engine = self.engine
        if engine is not None:
            engine = replace(engine, decode_step_s=engine.decode_step_s / factor,
                             decode_step_per_sequence_s=engine.decode_step_per_sequence_s / factor)
        return replace(self, engine=engine, paces=self._paces_over(factor))

    def pace_s(self, luck: float, n_output: int) -> float:
        """Seconds per token of an answer of this length, at the quantile `luck`; 0 if unknown."""
        found = next((samples for most, samples in self.paces if n_output <= most), None)
        return quantile_of(found if found is not None else self.paces[-1][1] if self.paces else (), luck)

    def _paces_over(self, factor: float) -> tuple[tuple[int, tuple[float, ...]], ...]:
        return tuple((most, tuple(pace_s / factor for pace_s in samples)) for most, samples in self.paces)


def quantile_of(ordered: Sequence[float], q: float) -> float:
    """The quantile q of sorted samples, interpolated; 0 without samples."""
    if not ordered:
        return 0.0
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def calls_at(rows: Sequence[TrafficLine], upstream: str) -> list[SeenCall]:
    """The attempts of these requests at one upstream."""
    calls = []
    for row in rows:
        n_uncached, n_output = max(0, (row.n_input or 0) - row.n_cached), row.n_output or 0
        if not row.trials:
            if row.upstream == upstream and row.n_attempts:
                calls.append(_only_call(row, n_uncached, n_output))
            continue
        calls.extend(_one_of_several(row, trial, n_uncached, n_output) for trial in row.trials if trial.upstream == upstream)
    return calls


def _only_call(row: TrafficLine, n_uncached: int, n_output: int) -> SeenCall:
    has_failed = row.status >= _FAILED or row.status == _TOO_MANY
    ttft_s = max(1e-6, row.ttft_s - row.own_s) if row.ttft_s is not None and row.is_stream else None
    is_cut = row.status == 499 and ttft_s is None
    fault = "" if not has_failed else "timeout" if row.status == _TIMED_OUT else f"status {row.status}"
    return SeenCall(row.arrived_at + row.own_s, n_uncached, n_output, row.e2e_s - row.own_s, ttft_s, row.tpot_s,
                    row.is_stream, is_cut, fault, row.status if has_failed else None)


def _one_of_several(row: TrafficLine, trial: TrialRow, n_uncached: int, n_output: int) -> SeenCall:
    # the log has no start of later attempts: only their durations matter here
    has_answered = trial.upstream == row.upstream and not trial.is_lost and not trial.fault
    ttft_s = trial.ttft_s if row.is_stream else None
    is_cut = trial.is_lost and trial.ttft_s is None and not trial.fault
    return SeenCall(row.arrived_at + row.own_s, n_uncached, n_output if has_answered else 0, trial.took_s, ttft_s,
                    row.tpot_s if has_answered else None, row.is_stream, is_cut, trial.fault, trial.status)


def fit_upstream(name: str, calls: Sequence[SeenCall], like: UpstreamFit | None = None) -> UpstreamFit:
    """Fit a model without effects of load. like: the form of its slope is taken over; None: a slope that chance explains is
    0, and the form is chosen.
    """
    good = [call for call in calls if not call.fault]
    streamed = [call for call in good if call.ttft_s is not None]
    paces = _group_paces([(call.n_output, call.tpot_s) for call in good if call.tpot_s and call.n_output >= LEAST_OUTPUT])
    if len(streamed) >= LEAST_STREAMED and paces:
        samples = [(call.n_uncached, call.ttft_s or 0.0) for call in streamed]
        cut_s = [(call.n_uncached, call.took_s) for call in good if call.is_cut and call.is_stream]
    else:
        samples, paces = _split_whole_answers([call for call in good if not call.is_cut and call.n_output])
        cut_s = []
    if like is None:
        slope, is_additive = fit_slope(samples)
    else:
        is_additive = like.is_additive
        slope = slope_of_form(samples, is_additive=is_additive) if like.per_token else 0.0
    first_s = residuals(samples, cut_s, slope, is_additive=is_additive)
    middle_s = quantile_of(first_s, 0.5)
    failed = [call for call in calls if call.fault and call.fault != "timeout"]
    n_hung = sum(call.fault == "timeout" for call in calls)
    statuses = sorted(call.status for call in failed if call.status is not None)
    error = median(abs(_residual(n, wait_s, slope, is_additive=is_additive) / middle_s - 1) for n, wait_s in samples
                   ) if samples and middle_s else 0.0
    n_calls = max(1, len(calls))
    return UpstreamFit(
        name, len(samples), tuple(first_s), slope, is_additive, paces,
        fail_share=len(failed) / n_calls, fail_after_s=median(call.took_s for call in failed) if failed else 0.1,
        fail_status=statuses[len(statuses) // 2] if statuses else 503, hang_share=n_hung / n_calls, error=error)


def _group_paces(seen: Sequence[tuple[int, float]]) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """The paces of N_PACES equally frequent lengths of answers; fewer if there are few."""
    ordered = sorted(seen)
    n_groups = max(1, min(N_PACES, len(ordered) // LEAST_STREAMED))
    parts = [ordered[len(ordered) * part // n_groups:len(ordered) * (part + 1) // n_groups] for part in range(n_groups)]
    return tuple((part[-1][0], tuple(sorted(pace_s for _, pace_s in part))) for part in parts if part)


Paces = tuple[tuple[int, tuple[float, ...]], ...]


def _split_whole_answers(calls: Sequence[SeenCall]) -> tuple[list[tuple[int, float]], Paces]:
    """First waits and paces from whole answers: took = first + pace * (output - 1), the pace by the median of slopes."""
    rng, slopes = Random(1), []
    for _ in range(_N_PAIRS if len(calls) > 1 else 0):
        one, other = rng.choice(calls), rng.choice(calls)
        if one.n_output != other.n_output:
            slopes.append((one.took_s - other.took_s) / (one.n_output - other.n_output))
    pace_s = max(0.0, median(slopes)) if slopes else 0.0
    samples = [(call.n_uncached, max(0.05 * call.took_s, call.took_s - pace_s * (call.n_output - 1))) for call in calls]
    return samples, ((1, (pace_s,)),) if calls else ()


def slope_of_form(samples: Sequence[tuple[int, float]], *, is_additive: bool) -> float:
    """The effect of a prompt token on the wait, in this form; never negative."""
    return _zero_correlation([float(one) for one, _ in samples], [wait_s for _, wait_s in samples], is_additive=is_additive)


def fit_slope(samples: Sequence[tuple[int, float]]) -> tuple[float, bool]:
    """The effect of a prompt token on the wait, and whether it is added (seconds) or multiplied (share)."""
    n = len(samples)
    if n < 3 or len({tokens for tokens, _ in samples}) < 3:
        return 0.0, False
    tokens = [float(one) for one, _ in samples]
    waits_s = [wait_s for _, wait_s in samples]
    if rank_correlation(tokens, waits_s) <= 2 / sqrt(n):
        return 0.0, False
    slopes = {is_additive: _zero_correlation(tokens, waits_s, is_additive=is_additive) for is_additive in (False, True)}
    spread = {}
    for is_additive, slope in slopes.items():
        left = [_residual(one, wait_s, slope, is_additive=is_additive) for one, wait_s in zip(tokens, waits_s, strict=True)]
        middle = median(left)
        spread[is_additive] = abs(rank_correlation(tokens, [abs(one - middle) for one in left]))
    is_additive = spread[True] < spread[False]
    return slopes[is_additive], is_additive


def _zero_correlation(tokens: Sequence[float], waits_s: Sequence[float], *, is_additive: bool) -> float:
    """The slope at which the residuals have no rank correlation with the tokens, by bisection."""
    low, high = 0.0, (max(waits_s) if is_additive else 1.0) / max(1.0, median(tokens))
    for _ in range(_N_STEPS):
        middle = (low + high) / 2
        left = [_residual(one, wait_s, middle, is_additive=is_additive) for one, wait_s in zip(tokens, waits_s, strict=True)]
        if rank_correlation(tokens, left) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _residual(n_tokens: float, wait_s: float, slope: float, *, is_additive: bool) -> float:
    return wait_s - slope * n_tokens if is_additive else wait_s / (1 + slope * n_tokens)


def residuals(samples: Sequence[tuple[int, float]], cut: Sequence[tuple[int, float]], slope: float, *,
              is_additive: bool) -> list[float]:
    """Sorted waits without the prompt's part, never negative. Cancelled waits give their weight to the longer ones."""
    ended = sorted(max(0.0, _residual(n, wait_s, slope, is_additive=is_additive)) for n, wait_s in samples)
    if not cut or not ended:
        return ended
    limits = sorted(max(0.0, _residual(n, wait_s, slope, is_additive=is_additive)) for n, wait_s in cut)
    return _redistribute(ended, limits)


def _redistribute(ended: Sequence[float], limits: Sequence[float]) -> list[float]:
    """The product-limit estimate as equally likely samples. Beyond the longest seen wait, half of it is added again and
    again: the tail is longer than what was seen, and how long is unknown.
    """
    n = len(ended) + len(limits)
    beyond, steps = 1.0, []
    for number, wait_s in enumerate(ended):
        at_risk = len(ended) - number + len(limits) - bisect_left(limits, wait_s)
        beyond *= 1 - 1 / max(1, at_risk)
        steps.append((1 - beyond, wait_s))
    drawn, at = [], 0
    for rank in range(n):
        share = (rank + 0.5) / n
        while at < len(steps) and steps[at][0] < share:
            at += 1
        drawn.append(steps[at][1] if at < len(steps) else max(ended[-1], limits[-1]) * 1.5)
    return drawn


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Spearman's correlation, -1 to 1; 0 if one of the two does not vary."""
    ranks_x, ranks_y = _ranks(xs), _ranks(ys)
    n = len(ranks_x)
    middle = (n - 1) / 2
    cov = sum((x - middle) * (y - middle) for x, y in zip(ranks_x, ranks_y, strict=True))
    spread_x = sum((x - middle) ** 2 for x in ranks_x)
    spread_y = sum((y - middle) ** 2 for y in ranks_y)
    return cov / sqrt(spread_x * spread_y) if spread_x and spread_y else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for row in order[at:end + 1]:
            ranks[row] = (at + end) / 2
        at = end + 1
    return ranks
