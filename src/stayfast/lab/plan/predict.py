"""Predicts a day with each change, from several resamples of the log, and decides which changes are worth their effort.

For each seed the log is resampled (requests, attempts), the upstreams are fitted to the resample, and the day is replayed
with and without each change, with the same luck for the same requests. So

    prediction  = mean over seeds of the quantile with the change, on a log scale
    interval    = 95 % for the quantile of one such day: t * s * sqrt(1 + 1 / seeds), s: from the spread over seeds, from
                  the error of the unchanged replay against the log, and from MODEL_ERROR
    effect      = mean over seeds of (with / without); it exists if its 95 % interval excludes none, and matters from
                  LEAST_GAIN on

The replay of the unchanged day is compared with the log first. If it does not reproduce the log, nothing is predicted.
Source: paired bootstrap with common random numbers (Law, "Simulation Modeling and Analysis", 5th ed., 11.2).
When wrong: days differ by more than chance (a launch, a provider's new model); a resample knows only this log's days.
"""

from collections.abc import Callable, Sequence
from math import exp, hypot, inf, isinf, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from stayfast.lab.harness.intervals import block_interval, student_t
from stayfast.lab.plan.changes import EFFORT_DAYS, GROUPS, Change
from stayfast.lab.plan.replay import ReplayResult, TrafficScenario, run_replay
from stayfast.lab.plan.traffic import ASSUMED_OUTPUT
from stayfast.lab.plan.workload import HITS, TrafficModel
from stayfast.observe.traffic_rows import TrafficLine
from stayfast.policy.slo import Latency

LEAST_GAIN = 0.05  # of a quantile or of the cost
ROOM = 0.7  # of the promise: below it, the promise is kept with room
WITHIN, WITHIN_P99 = 0.15, 0.3  # of the observed quantiles, for a replay that reproduces the log
MODEL_ERROR = 0.03  # of a changed quantile, however well the unchanged day is reproduced
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
METRICS = tuple(f"{what}_{name}" for what in ("first", "e2e") for name in QUANTILES)
_FAILED_S = 1e6  # stands for a quantile among failed requests
_LEAST_S = 1e-6
DO, NOTHING, QUESTION = "worth it", "do nothing", "what if"


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


class Reproduction(msgspec.Struct, frozen=True):
    """One quantile of the log, and of its replay."""

    metric: str
    observed: Estimate
    replayed: Estimate
    is_reproduced: bool


class Prediction(msgspec.Struct, frozen=True):
    """A day with one change. quantiles, effects (with over without): by METRICS. Costs: None without prices."""

    name: str
    title: str
    group: str
    effort: str
    effort_days: float
    source: str
    value: float
    quantiles: dict[str, Estimate]
    effects: dict[str, Estimate]
    good_ratio: Estimate
    good_change: float
    failed_ratio: float
    usd_per_day: float | None
    usd_change: float | None
    gain: float  # largest share by which a p95, a p99 or the cost falls, of those that are beyond chance
    verdict: str
    why: str


class PlanResult(msgspec.Struct, frozen=True):
    """All predictions for one route. predictions: empty if the log is not reproduced."""

    route: str
    n_requests: int
    span_s: float
    requests_per_day: float
    n_replayed: int
    n_seeds: int
    promise_s: float
    promise_ratio: float
    has_room: bool
    good_ratio: float
    replayed_good_ratio: float
    usd_per_day: float | None
    upstreams: list[str]
    baseline: list[Reproduction]
    predictions: list[Prediction]
    left_out: dict[str, str]
    notes: list[str]

    @property
    def is_reproduced(self) -> bool:
        return all(one.is_reproduced for one in self.baseline)


class DayRuns:
    """The unchanged day and its changed versions, for each seed."""

    def __init__(self, model: TrafficModel, n_seeds: int, seed: int, report: Callable[[str], None]) -> None:
        self._model = model
        self._report = report
        self._seeds = [seed + 1000 * number for number in range(n_seeds)]
        self._drawn: list[TrafficScenario] = model.draw_days(n_seeds, seed)
        self.base: list[ReplayResult] = []

    def run_base(self) -> None:
        for number, (drawn, seed) in enumerate(zip(self._drawn, self._seeds, strict=True), 1):
            self._report(f"replaying the log, {number} of {len(self._seeds)}")
            self.base.append(run_replay(drawn, seed))

    def run_change(self, change: Change, value: float) -> list[ReplayResult]:
        self._report(change.describe(value))
        days = zip(self._drawn, self._seeds, self.base, strict=True)
        return [base if (changed := change.apply(self._model, drawn, value)) == drawn else run_replay(changed, seed)
                for drawn, seed, base in days]


def observe_rows(rows: Sequence[TrafficLine]) -> ReplayResult:
    """What the clients of a log saw, in the form of a replay."""
    first_s = [inf if row.status >= 400 else row.ttft_s if row.is_stream and row.ttft_s is not None else row.e2e_s
               for row in rows]
    e2e_s = [inf if row.status >= 400 else row.e2e_s for row in rows]
    span_s = max(1.0, rows[-1].arrived_at - rows[0].arrived_at)
    return ReplayResult(tuple(first_s), tuple(e2e_s), sum(row.cost_usd or 0.0 for row in rows),
                        sum(row.n_attempts for row in rows), sum(row.cache in HITS for row in rows), span_s)


def quantile_of_run(run: ReplayResult, metric: str) -> float:
    """A quantile by its name in METRICS, at most _FAILED_S."""
    what, _, name = metric.rpartition("_")
    return min(_FAILED_S, max(_LEAST_S, run.quantile_s(what, QUANTILES[name])))


def estimate(logs: Sequence[float], *, is_day: bool, like: Sequence[float] = (), bias: float = 0.0) -> Estimate:
    """The mean of logarithms with its interval, as values. is_day: the interval is that of one day, not of the mean. like:
    values with about the same spread, as a few seeds alone estimate it badly. bias: the known error of the model, as a
    logarithm; it widens the interval.
    """
    middle, n = fmean(logs), len(logs)
    spreads = [stdev(values) for values in (logs, like) if len(values) > 1]
    spread = sqrt(fmean(one**2 for one in spreads) + bias**2) if spreads else 0.0
    half = student_t(sum(n - 1 for _ in spreads)) * spread * (sqrt(1 + 1 / n) if is_day else sqrt(1 / n)) if n > 1 else 0.0
    return Estimate(exp(middle), exp(middle - half), exp(middle + half))


def reproduce(seen: ReplayResult, base: Sequence[ReplayResult]) -> list[Reproduction]:
    """Compare the replay of the unchanged day with the log: near it, or within what the log itself bounds."""
    found = []
    for metric in METRICS:
        what, _, name = metric.rpartition("_")
        value = quantile_of_run(seen, metric)
        samples = [min(_FAILED_S, one) for one in (seen.first_s if what == "first" else seen.e2e_s)]
        low, high = block_interval(samples, QUANTILES[name])
        replayed = estimate([log(quantile_of_run(run, metric)) for run in base], is_day=True)
        within = WITHIN_P99 if name == "p99" else WITHIN
        is_near = abs(replayed.value / value - 1) <= within or low <= replayed.value <= high
        found.append(Reproduction(metric, Estimate(value, low, high), replayed, is_near))
    return found


class UnchangedDay(NamedTuple):
    """What a change is compared with. seen: the log; base: its replays. has_room: the promise is kept with room."""

    seen: ReplayResult
    base: Sequence[ReplayResult]
    promise: Latency
    has_room: bool
    is_priced: bool


def predict_change(change: Change, value: float, runs: Sequence[ReplayResult], day: UnchangedDay) -> Prediction:
    """The day with one change, and whether it is worth its effort."""
    seen, base, promise, has_room, is_priced = day
    quantiles, effects = {}, {}
    for metric in METRICS:
        changed = [log(quantile_of_run(run, metric)) for run in runs]
        unchanged = [log(quantile_of_run(run, metric)) for run in base]
        bias = log(quantile_of_run(seen, metric)) - fmean(unchanged)
        quantiles[metric] = estimate(changed, is_day=True, like=unchanged, bias=hypot(bias, MODEL_ERROR))
        effects[metric] = estimate([one - other for one, other in zip(changed, unchanged, strict=True)], is_day=False)
    usd, usd_effect = None, None
    if is_priced:
        usd = fmean(run.usd_per_day for run in runs)
        usd_effect = estimate([log(max(1e-9, run.usd_per_day) / max(1e-9, other.usd_per_day))
                               for run, other in zip(runs, base, strict=True)], is_day=False)
    good = [run.good_share(promise.under_s) for run in runs]
    was_good = [run.good_share(promise.under_s) for run in base]
    gain, why = _best_gain(effects, usd_effect)
    loss, at_cost = _worst_loss(effects)
    verdict = QUESTION if change.is_question else DO if gain >= LEAST_GAIN and gain > loss else NOTHING
    if verdict == NOTHING:
        why = (at_cost if loss >= LEAST_GAIN else "no effect beyond chance" if gain == 0
               else f"{why}: less than {LEAST_GAIN:.0%}")
    elif verdict == QUESTION:
        why = at_cost if loss >= LEAST_GAIN else "no effect beyond chance"
    elif verdict == DO and has_room and not _saves(usd_effect):
        verdict, why = NOTHING, "the promise is kept with room"
    return Prediction(
        change.name, change.describe(value), change.group, change.effort, EFFORT_DAYS[change.effort], change.source, value,
        quantiles, effects, _linear(good), fmean(good) - fmean(was_good), fmean(run.failed_share for run in runs), usd,
        None if usd_effect is None else usd_effect.value - 1, gain, verdict, why)


def _linear(values: Sequence[float]) -> Estimate:
    half = student_t(len(values) - 1) * stdev(values) * sqrt(1 + 1 / len(values)) if len(values) > 1 else 0.0
    middle = fmean(values)
    return Estimate(middle, max(0.0, middle - half), min(1.0, middle + half))


def _saves(usd: Estimate | None) -> bool:
    return usd is not None and usd.high < 1 and 1 - usd.value >= LEAST_GAIN


def _worst_loss(effects: dict[str, Estimate]) -> tuple[float, str]:
    """The largest increase of a quantile beyond chance; 0 if there is none."""
    losses = [(effect.value - 1, name) for name, effect in _name_effects(effects).items() if effect.low > 1]
    worst, name = max(losses, default=(0.0, ""))
    return worst, f"{name} +{worst:.0%}" if name else ""


def _name_effects(effects: dict[str, Estimate]) -> dict[str, Estimate]:
    return {f"{'first token' if metric.startswith('first') else 'whole answer'} {metric[-3:]}": effect
            for metric, effect in effects.items()}


def _best_gain(effects: dict[str, Estimate], usd: Estimate | None) -> tuple[float, str]:
    """The largest gain that is beyond chance, and its description; 0 if there is none."""
    named = _name_effects(effects)
    if usd is not None:
        named["cost"] = usd
    gains = [(1 - effect.value, name) for name, effect in named.items() if effect.high < 1 and not isinf(effect.value)]
    best, name = max(gains, default=(0.0, ""))
    return (best, f"{name} -{best:.0%}") if best > 0.0005 else (0.0, "")


def plan_route(model: TrafficModel, candidates: Sequence[tuple[Change, float]], left: Sequence[tuple[Change, str]], *,
               n_seeds: int = 6, seed: int = 1, promise: Latency | None = None,
               report: Callable[[str], None] = lambda step: None) -> PlanResult:
    """Replay the log, and predict each change if the replay reproduces it."""
    promise = promise or model.scenario.route.slo.ttft or Latency()
    seen, is_priced = observe_rows(model.traffic.rows), bool(model.scenario.prices)
    days = DayRuns(model, n_seeds, seed, report)
    days.run_base()
    baseline = reproduce(seen, days.base)
    good_ratio = seen.good_share(promise.under_s)
    has_room = good_ratio >= promise.share and seen.quantile_s("first", promise.share) <= ROOM * promise.under_s
    predictions = []
    left_out = {change.name: why for change, why in left}
    if model.unclear_load:
        why = f"the log does not show whether your load slows {', '.join(model.unclear_load)} down"
        left_out |= {change.name: why for change, _ in candidates if change.is_load}
        candidates = [(change, value) for change, value in candidates if not change.is_load]
    if all(one.is_reproduced for one in baseline):
        day = UnchangedDay(seen, days.base, promise, has_room, is_priced)
        predictions = [predict_change(change, value, days.run_change(change, value), day) for change, value in candidates]
    predictions.sort(key=lambda one: (GROUPS.index(one.group), -one.gain / one.effort_days))
    traffic = model.traffic
    return PlanResult(
        traffic.route, len(traffic.rows), traffic.span_s, traffic.per_day, len(model.scenario.calls), n_seeds,
        promise.under_s, promise.share, has_room, good_ratio,
        fmean(run.good_share(promise.under_s) for run in days.base),
        fmean(run.usd_per_day for run in days.base) if is_priced else None,
        [describe_fit(model, name) for name in model.scenario.fits], baseline, predictions,
        left_out, model_notes(model))


def describe_fit(model: TrafficModel, name: str) -> str:
    """An upstream's model in words."""
    fit = model.scenario.fits[name]
    if fit.engine is not None:
        engine = fit.engine
        alone, more = engine.decode_step_s * 1e3, engine.decode_step_per_sequence_s * 1e3
        return (f"{name}: slows down with your load. Prefill {engine.prefill_tokens_per_s:,.0f} tokens/s, "
                f"{alone:.3g} ms a token alone, +{more:.2g} ms for each running answer")
    each = fit.per_token * 1e3 * (1 if fit.is_additive else fit.first_wait_s(0.5, 0))
    per_token = f"+{each * 1e3:,.0f} ms per 1000 prompt tokens" if fit.per_token else "no effect of the prompt's length"
    load = "an effect of your load is unclear" if fit.is_load_unclear else "no effect of your load"
    return (f"{name}: {load}, up to {fit.most_in_flight} at a time. First token "
            f"{fit.first_wait_s(0.5, 0):.2g} s, {per_token}, {fit.pace_s(0.5, 150) * 1e3:.3g} ms a token")


def model_notes(model: TrafficModel) -> list[str]:
    """What the log does not show."""
    notes = []
    if model.traffic.n_all > len(model.traffic.rows):
        notes.append(f"{model.traffic.n_all - len(model.traffic.rows)} requests of other routes are not replayed.")
    if not model.traffic.has_lengths:
        notes.append(f"Most answers have no token counts, so each counts as {ASSUMED_OUTPUT} tokens, and costs are guesses. "
                     "upstreams.*.request_usage: true asks providers for the counts of streams.")
    if model.repeated_ratio is not None:
        notes.append(f"{model.repeated_ratio:.1%} of the requests repeat an earlier body; answers may be reused if their "
                     "temperature is low (routes.*.cache.max_temperature).")
    if not model.scenario.prices:
        notes.append("No prices: set upstreams.*.prices to see costs.")
    if len(model.traffic.rows) < 1000:
        notes.append(f"{len(model.traffic.rows)} requests are few: intervals are wide, p99 rests on "
                     f"{max(1, len(model.traffic.rows) // 100)} of them.")
    return notes
