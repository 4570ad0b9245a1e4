"""A plan made from log lines alone, against the changes made in a world whose parameters are hidden from it.

For each seed and kind (`harness.hidden_world`): one day of traffic goes through the gateway to a simulated provider. Only
the log lines and the gateway's own settings are passed on. The planner fits its model to them and predicts ten changes,
three of which have no effect in this world. Then each change is made in the world itself, on N_DAYS other days with other
requests and other luck, and their p95 is compared with the prediction. For comparison: one that always predicts no change.

When wrong: the worlds are of the simulator's family (a mixture of two lognormals, a fluid engine), as is the planner's
engine model; the waits of the hosted worlds are not: the planner draws them from the log and knows no family. Real
providers have bad minutes, which neither has.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense
from stayfast.lab.harness.hidden_world import PRICE, VALUES, HiddenWorld, draw_day, draw_world
from stayfast.lab.plan.changes import BY_NAME
from stayfast.lab.plan.predict import NOTHING, PlanResult, observe_rows, plan_route, quantile_of_run
from stayfast.lab.plan.replay import ReplayResult
from stayfast.lab.plan.traffic import pick_route, read_log
from stayfast.lab.plan.workload import KnownSettings, build_model
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.slo import Latency

WITHIN: Final = 0.15
LEAST_WITHIN, LEAST_EFFECTS, LEAST_COVERED, LEAST_NOTHING = 0.85, 0.85, 0.85, 1.0
MOST_REFUSED: Final = 2  # a world
N_REQUESTS, N_RESAMPLES = 1500, 5
MEDIAN_ERROR: Final = 8.0  # %
COMPARED: Final = ("first_p95", "e2e_p95")
N_DAYS: Final = 2
_UNREACHABLE: Final = Latency(0.001, 0.95)  # no verdict rests on a promise that is kept anyway


class ForecastCheck(NamedTuple):
    """One quantile after one change: predicted, measured in the world, and measured there without the change."""

    world: int
    change: str
    metric: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    unchanged_s: float

    @property
    def error(self) -> float:
        """Relative to the measured quantile."""
        return abs(self.predicted_s / self.measured_s - 1)

    @property
    def has_effect(self) -> bool:
        """Whether "no change" is off by more than WITHIN."""
        return abs(self.unchanged_s / self.measured_s - 1) > WITHIN

    @property
    def is_covered(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True, slots=True)
class WorldRun:
    """What was predicted and measured for one world. verdicts: of the changes without an effect; n_wrong: changes with an
    effect on a compared quantile of at least WITHIN that the plan calls nothing. n_refused: not predicted, with a reason.
    """

    comparisons: tuple[ForecastCheck, ...]
    verdicts: tuple[str, ...]
    n_missed: int
    is_reproduced: bool
    n_refused: int = 0


Planner = Callable[[HiddenWorld, list[bytes], int, int], PlanResult]


def plan_from_lines(world: HiddenWorld, lines: list[bytes], n_seeds: int, seed: int) -> PlanResult:
    """Plan all changes that this kind of world is asked about. Of `world`, only the gateway's settings are used."""
    known = KnownSettings(world.settings.route, world.settings.admission, {"provider": PRICE},
                          {"provider": LimitConfig(mode="off")})
    model = build_model(pick_route(read_log(lines)[0]), known)
    return plan_route(model, [(BY_NAME[name], VALUES[name]) for name in world.changes], [], n_seeds=n_seeds, seed=seed,
                      promise=_UNREACHABLE)


def measure_world(world: HiddenWorld, number: int, n_seeds: int, seed: int, planner: Planner = plan_from_lines) -> WorldRun:
    """Plan from one day, then make every change on other days."""
    lines = world.run(seed)
    result = planner(world, lines, n_seeds, seed)
    if not result.is_reproduced:
        return WorldRun((), (), 0, is_reproduced=False)
    unchanged = _run_days(world, None, seed)
    predicted = {one.name: one for one in result.predictions}
    comparisons, n_missed = [], 0
    for name in (name for name in world.changes if name in predicted):
        measured, expected = _run_days(world, name, seed), predicted[name]
        for metric in COMPARED:
            at = expected.quantiles[metric]
            comparisons.append(ForecastCheck(number, name, metric, at.value, at.low, at.high,
                                             quantile_of_run(measured, metric), quantile_of_run(unchanged, metric)))
        has_effect = any(quantile_of_run(measured, metric) < (1 - WITHIN) * quantile_of_run(unchanged, metric)
                         for metric in COMPARED)
        n_missed += has_effect and expected.verdict == NOTHING
    verdicts = tuple(predicted[name].verdict for name in world.off)
    return WorldRun(tuple(comparisons), verdicts, n_missed, is_reproduced=True,
                    n_refused=len(world.changes) - len(predicted))


def _run_days(world: HiddenWorld, change: str | None, seed: int) -> ReplayResult:
    """What the clients of N_DAYS other days saw, together."""
    days = []
    for number in range(1, N_DAYS + 1):
        day = draw_day(world, seed * 100 + number)
        changed = day if change is None else day.change(change, seed + number)
        days.append(observe_rows(read_log(changed.run(seed * 1000 + number))[0]))
    return ReplayResult(tuple(value for day in days for value in day.first_s),
                        tuple(value for day in days for value in day.e2e_s), sum(day.cost_usd for day in days),
                        sum(day.n_attempts for day in days), 0, sum(day.span_s for day in days))


class PlanClaim:
    """`stayfast prove plan`."""

    name = "plan"
    statement = (f"From {N_REQUESTS:,} log lines alone, `stayfast plan` predicts ten changes of hidden worlds: the p95 of "
                 f"at least {LEAST_WITHIN:.0%} of the changed days is within {WITHIN:.0%}, and so is that of at least "
                 f"{LEAST_EFFECTS:.0%} of those that the change alters by more; half of all are within {MEDIAN_ERROR:g} %. "
                 f"At least {LEAST_COVERED:.0%} of the 95 % intervals cover what is measured. For the three changes without "
                 "an effect it says: do nothing.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n_requests, n_seeds = N_REQUESTS, N_RESAMPLES
        worlds = conditions.choose(("hosted", "engine") * 2, ("hosted", "engine"))
        runs = []
        for number, kind in enumerate(worlds):
            seed = conditions.seed * 100 + number
            conditions.report_progress(f"world {number + 1} of {len(worlds)}: {kind}")
            world = draw_world(seed, kind, n_requests)
            runs.append(await asyncio.to_thread(measure_world, world, number, n_seeds, seed))
        return judge(runs)


def judge(runs: list[WorldRun]) -> ClaimResult:
    """The figures of all worlds. A world whose log was not reproduced gives none, and is counted."""
    every = tuple(one for run in runs for one in run.comparisons)
    if not every:
        return ClaimResult((), spoiled="no log was reproduced, so nothing was predicted")
    verdicts = [verdict for run in runs for verdict in run.verdicts]
    n_within = sum(one.error <= WITHIN for one in every)
    n_covered = sum(one.is_covered for one in every)
    effects = [one for one in every if one.has_effect]
    n_close = sum(one.error <= WITHIN for one in effects)
    worst = sorted(every, key=lambda one: -one.error)[:5]
    named = ", ".join(f"{one.change} {one.metric} {one.predicted_s:.2f} for {one.measured_s:.2f} s" for one in worst)
    return ClaimResult((
        Figure.exact(f"p95 within {WITHIN:.0%}, of {len(every)} predictions", 100 * n_within / len(every), "%",
                     100 * LEAST_WITHIN, Sense.AT_LEAST),
        Figure.exact(f"of them, {len(effects)} that the change alters by more than {WITHIN:.0%}: within {WITHIN:.0%}",
                     100 * n_close / max(1, len(effects)), "%", 100 * LEAST_EFFECTS, Sense.AT_LEAST),
        Figure.exact("median error of a p95", 100 * median(one.error for one in every), "%", MEDIAN_ERROR),
        Figure.exact(f"95 % intervals that cover, of {len(every)}", 100 * n_covered / len(every), "%", 100 * LEAST_COVERED,
                     Sense.AT_LEAST),
        Figure.exact(f"changes without an effect for which it says do nothing, of {len(verdicts)}",
                     100 * sum(verdict == NOTHING for verdict in verdicts) / len(verdicts), "%", 100 * LEAST_NOTHING,
                     Sense.AT_LEAST),
        Figure.count("changes that cut a p95 by 15 % or more, called nothing", sum(run.n_missed for run in runs)),
        Figure.count("logs that the replay does not reproduce", sum(not run.is_reproduced for run in runs)),
        Figure.count("changes not predicted, as the effect of load is unclear", sum(run.n_refused for run in runs),
                     MOST_REFUSED * len(runs)),
        Figure.exact(f"within {WITHIN:.0%} when always predicting no change (0 % where there is an effect)",
                     100 * (1 - len(effects) / len(every)), "%"),
    ), (f"Largest errors: {named}.",))
