"""What a run means for users, in sentences: the tail in words, and what a second attempt would make of it.

    p99 with a hedge after d = the least t with  S(t) * S(t - d) <= 1 %        d = p95: 5 % more calls

S(t) is the share of answers whose first token took longer than t. Source: Dean, Barroso, "The Tail at Scale" (CACM, 2013).
When wrong: second attempts are assumed independent of the first, so a target that is slow as a whole gains less.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import isfinite

from stayfast.core import units as amounts
from stayfast.lab.load.stats import ExactDistribution, MeasuredRun

ENOUGH = 200  # answers; with fewer, two requests decide the p99
MANY_FAILED = 0.01
STEADY, SPIKY = 2.0, 3.0  # p99 over p50
LEAST_GAIN = 0.2  # of p99, below which a hedge is not worth its calls
_HEDGED_AT = 0.95  # quantile after which the second attempt is sent
_RARE = 0.01


def explain_run(run: MeasuredRun) -> Iterator[str]:
    """Sentences, the most important first. None for an invalid run, whose figures are not the target's."""
    if not run.result.health.is_valid or not run.n_offered:
        return
    if run.error_share >= MANY_FAILED:
        yield f"{_one_in(run.error_share)} requests failed: mend that before the latency."
        return
    waits = run.distributions["ttft_sched"]
    if not waits.n or not isinstance(waits, ExactDistribution):
        return
    if waits.n < ENOUGH:
        yield f"{amounts.format_count(waits.n)} answers are too few for a p99: take at least {ENOUGH}, better 1,000."
        return
    p50_s, p99_s, factor = waits.quantile(0.5), waits.quantile(0.99), run.spike_factor()
    if not isfinite(factor):
        return
    times = f"p99 is {amounts.format_digits(factor)} times p50 ({_s(p99_s)} against {_s(p50_s)})"
    wait = f"one in fifty waits over {_s(waits.quantile(0.98))} for the first token"
    if factor < STEADY:
        yield f"{times}: steady; a typical wait is what nearly everybody gets."
        return
    yield f"{times}: {wait}."
    if factor >= SPIKY:
        yield from _of_hedging(run, waits, p99_s)


def hedged_p99_s(waits_s: Sequence[float], after_s: float) -> float:
    """The p99 of ascending `waits_s` with an independent second attempt `after_s` seconds after the first; to 1 ms."""
    def share_over(t_s: float) -> float:
        return 1.0 - bisect_right(waits_s, t_s) / len(waits_s)

    low_s, high_s = after_s, waits_s[-1]
    while high_s - low_s > 0.001:
        middle_s = (low_s + high_s) / 2
        if share_over(middle_s) * share_over(middle_s - after_s) <= _RARE:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s


def _of_hedging(run: MeasuredRun, waits: ExactDistribution, p99_s: float) -> Iterator[str]:
    if any(n > 1 for n in run.result.samples.ints["n_upstream_attempts"]):
        yield "The target already sends second attempts."
        return
    after_s = waits.quantile(_HEDGED_AT)
    hedged_s = hedged_p99_s(waits.values, after_s)
    if hedged_s <= (1 - LEAST_GAIN) * p99_s:
        yield (f"A second attempt after {_s(after_s)} (5 % more calls) would cut p99 to about {_s(hedged_s)}, if slow "
               "answers are slow by chance; Stayfast's routes do that by default.")
    else:
        yield f"A second attempt after {_s(after_s)} would not help much: it would leave p99 at about {_s(hedged_s)}."


def _one_in(share: float) -> str:
    n = round(1 / share)
    return "All" if n <= 1 and share > 0.995 else f"One in {n}" if n > 1 else f"{amounts.format_share(share)} of the"


def _s(value_s: float) -> str:
    return amounts.format_seconds(value_s)
