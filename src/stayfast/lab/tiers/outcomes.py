"""What a choice of tiers was worth: accuracy and cost, against the large tier alone and a random choice of the same cost.

    non-inferior   right answers of the gateway minus right answers of the large tier, on the same questions
    shuffle        a router that sends a random share s of the questions to the large tier, and the others to the small one,
                   with s chosen so that it costs as much. Its expected result on each question is
                       s right(large) + (1 - s) right(small),    s = (cost - cost of small alone) / (large - small alone)
                   so that a gain over it is no effect of money

Intervals: bootstrap over questions (2,000 resamples), 95 %, two-sided; the runs of several seeds ask some questions twice,
so a question with all its results is one unit. Source: Efron (1979); the shuffle is the control of LiteLLM's benchmark of
routers.
"""

from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from stayfast.lab.harness.claim import Figure, Sense
from stayfast.lab.tiers.desk import LARGE, N_TOKENS, PRICES, SMALL, DeskRun
from stayfast.lab.tiers.labellers import TierAnswers

N_RESAMPLES = 2000


class TierOutcome(NamedTuple):
    """One run, and what both tiers alone would have answered."""

    tiers: TierAnswers
    run: DeskRun

    @property
    def large_usd(self) -> float:
        """The cost of the large tier alone."""
        return _cost_usd(LARGE, len(self.run.answers))

    @property
    def share_large(self) -> float:
        """The share of a random choice that costs as much; at most 1."""
        small = _cost_usd(SMALL, len(self.run.answers))
        return min(1.0, max(0.0, (self.run.total_usd - small) / (self.large_usd - small)))

    def differences(self) -> list[tuple[str, float, float]]:
        """For each question: the gateway's answer minus the large tier's, and minus that of the shuffle."""
        share, found = self.share_large, []
        for question, small, large, answer in zip(self.tiers.questions, self.tiers.small, self.tiers.large, self.run.answers,
                                                  strict=True):
            right, large_right = answer.intent == question.intent, large.intent == question.intent
            by_chance = share * large_right + (1.0 - share) * (small.intent == question.intent)
            found.append((question.text, float(right) - large_right, right - by_chance))
        return found

    @property
    def n_small_equal(self) -> tuple[int, int]:
        """Answers of the small tier to clients that were the large tier's, and all of them."""
        given = [answer.intent == large.intent for answer, large in zip(self.run.answers, self.tiers.large, strict=True)
                 if answer.tier == SMALL]
        return sum(given), len(given)


def _cost_usd(tier: str, n: int) -> float:
    return PRICES[tier] * (N_TOKENS + 1) * n / 1e6


def cost_figure(name: str, outcomes: Sequence[TierOutcome], goal: float | None, sense: Sense = Sense.AT_MOST) -> Figure:
    """The cost of all runs as a share of the large tier alone."""
    share = sum(one.run.total_usd for one in outcomes) / sum(one.large_usd for one in outcomes)
    return Figure.exact(name, share * 100, "%", None if goal is None else goal * 100, sense)


def difference_figures(name: str, outcomes: Sequence[TierOutcome], *, least: float, seed: int) -> list[Figure]:
    """More right answers than the large tier alone, at least `least`; and than the shuffle, at least none."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for outcome in outcomes:
        for text, to_large, to_shuffle in outcome.differences():
            rows[text].append((to_large, to_shuffle))
    figures = []
    for column, (what, goal) in enumerate((("more right than the large tier alone", least), (
            "more right than a random choice of the same cost", 0.0))):
        units = [(sum(pair[column] for pair in pairs), len(pairs)) for pairs in rows.values()]
        mean, low, high = _bootstrap(units, seed)
        figures.append(Figure(f"{name}: {what}", mean * 100, "points", goal * 100, Sense.AT_LEAST, low * 100, high * 100))
    return figures


def _bootstrap(units: Sequence[tuple[float, int]], seed: int) -> tuple[float, float, float]:
    """Mean and its interval. units: the sum of a question's results, and how many there are."""
    numpy = import_module("numpy")
    sums, counts = numpy.array([unit[0] for unit in units]), numpy.array([unit[1] for unit in units])
    rng = numpy.random.default_rng(seed)
    drawn = [float(sums[rows].sum() / counts[rows].sum())
             for rows in (rng.integers(0, len(units), len(units)) for _ in range(N_RESAMPLES))]
    low, high = numpy.quantile(drawn, [0.025, 0.975]).tolist()
    return float(sums.sum() / counts.sum()), low, high
