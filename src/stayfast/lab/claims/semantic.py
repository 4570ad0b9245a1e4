"""The semantic cache keeps `max_error` in the kinds of traffic of which production consists.

A bank's customers (BANKING77: 10,003 questions, 77 similar intents) visit a help desk (`workloads.faq_desk`) in virtual
time, through the whole pipeline. The cache starts empty. No two answers have the same words, and answers are compared by the
simulated model, which errs in 2 % of its verdicts. There are eleven kinds of traffic (`workloads.faq_streams`), each with
several seeds, whose hits are summed. A window is a number of hits in a row, also across seeds.

The eligibility is that of a help desk: questions with "my" are admitted, and answers about "today" hold for an hour.

When wrong: the questions are a bank's, and their topics are intents. `stayfast cache eval` takes your own questions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, NeedsData, Sense, ratio
from stayfast.lab.workloads.faq_desk import JUDGE_ERROR, FaqOutcomes, VisitResult
from stayfast.lab.workloads.faq_streams import PAIR_SECOND, STREAMS, TRAINING, UNTESTED_END, VICTIM
from stayfast.lab.workloads.faq_traffic import CLASSES, HELP_DESK, PAIRS, FaqTraffic, make_route, read_questions
from stayfast.stores.embedder import EmbedderConfig

__all__ = ("CLASSES", "HELP_DESK", "PAIRS", "SemanticClaim", "read_questions")

# by max_error, of the second half of the steady questions
MIN_ANSWERED: Final[Mapping[float, float]] = {0.01: 0.1, 0.02: 0.35, 0.05: 0.5}
WINDOW: Final = 2000  # hits
MIN_EXPECTED: Final = 10.0  # wrong hits that max_error allows; kinds of traffic with fewer have a goal only all together
MAX_PAIRS: Final = 0.02  # of the second questions of opposite pairs, at PAIRS_ERROR
PAIRS_ERROR: Final = 0.01
USUAL_THRESHOLD: Final = 0.92


@dataclass(frozen=True, slots=True)
class SemanticClaim:
    """n of an extent: seeds. names: kinds of traffic. min_answered: by max_error; a quick run has the last one only."""

    full: Extent = Extent(3)
    quick: Extent = Extent(1)
    names: Sequence[str] = tuple(STREAMS)
    min_answered: Mapping[float, float] = field(default_factory=lambda: MIN_ANSWERED)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)

    name = "semantic"
    statement = ("In eleven kinds of traffic at most max_error of the semantic cache's answers are wrong, in total and of "
                 f"any {WINDOW:,} in a row, while with 1, 2 and 5 % it answers at least 10, 35 and 50 % of a bank's "
                 "questions after the first 5,000, each in words of its own. No client gets an answer that an attacker has "
                 f"shaped. With 1 % it answers at most {MAX_PAIRS:.0%} of the opposites of known questions. While its "
                 "answers cannot be tested it gives none.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        if conditions.data is None:
            raise NeedsData(f"needs --data DIR, a folder with {CLASSES} (source: docs/proofs.md)")
        return await asyncio.to_thread(self._measure, conditions)

    def _measure(self, conditions: Conditions) -> ClaimResult:
        assert conditions.data is not None
        traffic = FaqTraffic(conditions.data, is_quick=conditions.is_quick, embedder=self.embedder)
        seeds = range(conditions.seed, conditions.seed + conditions.choose(self.full, self.quick).n)
        bounds = list(self.min_answered.items())
        figures: list[Figure] = []
        for max_error, least in conditions.choose(bounds, bounds[-1:]):
            runs = {}
            for name in self.names:
                conditions.report_progress(f"{name}, at most {max_error:.0%} wrong, {len(seeds)} seeds")
                runs[name] = _Runs([traffic.run_scenario(name, max_error, seed) for seed in seeds])
            figures += _bound_figures(runs, max_error, least)
        for name in conditions.choose(self.names, ()):
            conditions.report_progress(f"{name}, with a fixed threshold")
            route = make_route(max(self.min_answered), threshold=USUAL_THRESHOLD)
            run = _Runs([traffic.run_scenario(name, max(self.min_answered), conditions.seed, route)])
            at = f"fixed threshold {USUAL_THRESHOLD:g}, {name}"
            figures += [run.share_figure(f"{at}: wrong", run.hits), *_special_figures(at, name, run)]
        data = traffic.data
        notes = (f"{data.n:,} questions about {len(data.topics)} topics, {len(data.strays):,} without an equal.",
                 f"{len(seeds)} seeds. {JUDGE_ERROR:.0%} of the verdicts on answers are wrong.",
                 f"The embedder is {traffic.vectors.id}.")
        return ClaimResult(tuple(figures), notes)


class _Runs:
    """The runs of one kind of traffic, one for each seed."""

    def __init__(self, outcomes: Sequence[FaqOutcomes]) -> None:
        self.results: list[VisitResult] = [one for each in outcomes for one in each.results]
        self.second_halves = [one for each in outcomes for one in each.results[len(each.results) // 2:]]
        self.hits = [one for one in self.results if one.is_hit]
        self.hits_after = [one for one in self.hits if one.visit.phase != TRAINING]
        self.n_verdicts = sum(each.n_verdicts for each in outcomes)
        self.n_extra = sum(each.n_answers for each in outcomes) - sum(
            one.kind == "miss" for one in self.results)  # answers for audits

    def phase(self, phase: str) -> list[VisitResult]:
        return [one for one in self.results if one.visit.phase == phase]

    @staticmethod
    def share_figure(name: str, hits: Sequence[VisitResult], goal: float | None = None) -> Figure:
        """The share of wrong ones of these hits."""
        return _share_figure(f"{name} of {len(hits):,} hits", sum(one.is_wrong for one in hits), len(hits), goal)

    def worst_window(self) -> float:
        """The largest share of wrong hits among WINDOW hits in a row; 0 if there are fewer."""
        sums = [0, *accumulate(one.is_wrong for one in self.hits)]
        return max((sums[end] - sums[end - WINDOW] for end in range(WINDOW, len(sums))), default=0) / WINDOW


def _bound_figures(runs: Mapping[str, _Runs], max_error: float, least: float) -> list[Figure]:
    """The figures of all kinds of traffic at one max_error."""
    at = f"{max_error:.0%}"
    figures = []
    if len(runs) > 1:
        every = [hit for run in runs.values() for hit in run.hits]
        figures.append(_Runs.share_figure(f"{at}, all kinds together: wrong", every, max_error))
    for name, run in runs.items():
        goal = max_error if len(run.hits) * max_error >= MIN_EXPECTED else None
        figures.append(run.share_figure(f"{at}, {name}: wrong", run.hits, goal))
        if 0 < len(run.hits_after) < len(run.hits):
            figures.append(run.share_figure(f"{at}, {name}: wrong after training,", run.hits_after))
    if any(len(run.hits) >= WINDOW for run in runs.values()):
        worst = max(runs, key=lambda name: runs[name].worst_window())
        figures.append(Figure.exact(f"{at}: wrong of the worst {WINDOW:,} hits in a row ({worst})",
                                    runs[worst].worst_window() * 100, "%", max_error * 100))
    for name, run in runs.items():
        figures += _special_figures(f"{at}, {name}", name, run, (max_error, least))
    return figures


def _special_figures(at: str, name: str, run: _Runs, bound: tuple[float, float] | None = None) -> list[Figure]:
    """The figures that only one kind of traffic has. bound: max_error, and the least share of steady questions that are
    answered; None: no goals.
    """
    max_error, least = bound or (None, None)
    no_count = None if bound is None else 0.0
    if name == "steady":
        return [_answered_figure(f"{at}: answered in all", run.results),
                _answered_figure(f"{at}: answered in the second half", run.second_halves, least, Sense.AT_LEAST),
                Figure.exact(f"{at}: verdicts for each question", ratio(run.n_verdicts, len(run.results)), ""),
                Figure.percent(f"{at}: questions whose answer was made for an audit", ratio(run.n_extra, len(run.results)))]
    if seconds := run.phase(PAIR_SECOND):
        return [_answered_figure(f"{at}: opposites of known questions answered", seconds,
                                 MAX_PAIRS if max_error is not None and max_error <= PAIRS_ERROR else None)]
    if victims := run.phase(VICTIM):
        n_poisoned = sum(one.topic is not None and one.topic.demand != "" for one in victims)
        return [Figure.count(f"{at}: of {len(victims)} customers, with an attacker's answer", n_poisoned, no_count)]
    if untested := run.phase(UNTESTED_END):
        return [Figure.count(f"{at}: answered in the second half of the time without tests", sum(
            one.is_hit for one in untested), no_count)]
    return []


def _answered_figure(name: str, results: Sequence[VisitResult], goal: float | None = None,
                     sense: Sense = Sense.AT_MOST) -> Figure:
    return _share_figure(name, sum(one.is_hit for one in results), len(results), goal, sense)


def _share_figure(name: str, n: int, n_all: int, goal: float | None = None, sense: Sense = Sense.AT_MOST) -> Figure:
    """The share of n, with its interval. A share of nothing is 0."""
    if not n_all:
        return Figure.exact(name, 0.0, "%", None if goal is None else goal * 100, sense)
    return Figure.share(name, n, n_all, goal, sense)
