"""Evidence sends questions to a small tier: as many right answers, for less; and none where it has no skill.

Two real tiers label a bank's questions (`lab.tiers.labellers`), behind a gateway in virtual time (`lab.tiers.desk`). The
large one costs ten times as much. All costs are counted: the small tier's answer before an escalation, comparisons off the
path, and audits.

    cascade    the small tier answers, and its answer's log-probability is checked; off until proven
    learned    a small tier that has learned two thirds of the intents; the nearest compared questions decide
    no skill   the same two modes, with a small tier that guesses, and is as sure of its guesses as of right answers

When wrong: intents are short answers that can be compared exactly; a judge of long answers errs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from random import Random
from typing import Final

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, NeedsData, Sense
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.tiers.deadline import DEADLINE_S, DeadlineTiers, measure_deadline_tiers
from stayfast.lab.tiers.desk import PRICE_RATIO, SMALL, run_desk
from stayfast.lab.tiers.labellers import CLASSES, BankQuestions, LabelledAnswer, TierAnswers, fit_tiers, narrow_small
from stayfast.lab.tiers.outcomes import TierOutcome, cost_figure, difference_figures
from stayfast.policy.tiers.enough import EXACT, ChecksConfig, EnoughConfig

MAX_COST: Final = 0.6  # of the large tier alone
SLACK: Final = 0.01  # of right answers, that count as equal
MAX_EXPLORATION: Final = 1.06  # cost where the small tier has no skill
ACCEPTED: Final = 0.99
N_TRAIN: Final = 5000
N_KNOWN: Final = 50  # of 77 intents, in `learned`
LEARNED_AT_LEAST: Final = 0.9
SHARE: Final = 0.5  # of the questions compared before the proof: the small tier's price makes it cheap


@dataclass(frozen=True, slots=True)
class TiersClaim:
    """n of an extent: seeds."""

    full: Extent = Extent(3)
    quick: Extent = Extent(1)

    name = "tiers"
    statement = (f"On a bank's questions, a cascade of two real tiers gets as many right as the large tier alone, within "
                 f"{SLACK * 100:g} point, for at most {MAX_COST:.0%} of its cost, and more than a random choice of the same "
                 f"cost (95 % interval). By learning alone it costs less, too. With a small tier that guesses, the large "
                 f"one answers all, for at most {MAX_EXPLORATION - 1:.0%} more. A deadline that only the small tier meets: "
                 "0 time-outs.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        if conditions.data is None:
            raise NeedsData(f"needs --data DIR, a folder with {CLASSES} (source: docs/proofs.md)")
        conditions.report_progress("a deadline that only the small tier meets")
        deadline = await measure_deadline_tiers(conditions.seed)
        found = await asyncio.to_thread(self._measure, conditions)
        return ClaimResult((*found.figures, *_deadline_figures(deadline)), found.notes)

    def _measure(self, conditions: Conditions) -> ClaimResult:
        assert conditions.data is not None
        conditions.report_progress("vectors of the questions")
        bank = BankQuestions(conditions.data)
        seeds = range(conditions.seed, conditions.seed + conditions.choose(self.full, self.quick).n)
        cascades, learned, guesses = [], [], []
        for seed in seeds:
            conditions.report_progress(f"seed {seed}")
            full = fit_tiers(bank, N_TRAIN, seed, accepted=ACCEPTED)
            part = narrow_small(bank, full, N_TRAIN, seed, n_known=N_KNOWN)
            cascades.append(_run(bank, full, cascade_config(full.min_p), seed))
            learned.append(_run(bank, part, learned_config(), seed))
            guessing = full._replace(small=_guess(full, len(bank.intents), seed))
            guesses += [_run(bank, guessing, cascade_config(full.min_p), seed), _run(bank, guessing, learned_config(), seed)]
        return ClaimResult((*_cascade_figures(cascades, conditions.seed), *_learned_figures(learned, conditions.seed),
                            *_guess_figures(guesses)), (
            f"{len(seeds)} seeds, each with {N_TRAIN:,} questions to fit both tiers and {len(full.questions):,} others.",
            f"The large tier costs {PRICE_RATIO:g} times as much as the small one. All costs are counted."))


def cascade_config(min_p: float) -> EnoughConfig:
    """min_p: probability from which the small tier's answers are accepted."""

    return EnoughConfig(mode="cascade", compare=EXACT, share=SHARE, checks=ChecksConfig(min_logprob=log(min_p)))


def learned_config() -> EnoughConfig:
    """The nearest compared questions decide; no check of an answer does."""
    return EnoughConfig(mode="learned", compare=EXACT, share=SHARE, at_least=LEARNED_AT_LEAST)


def _run(bank: BankQuestions, tiers: TierAnswers, enough: EnoughConfig, seed: int) -> TierOutcome:
    return TierOutcome(tiers, run_virtual(run_desk, tiers, bank.intents, enough, seed))


def _guess(tiers: TierAnswers, n_intents: int, seed: int) -> list[LabelledAnswer]:
    """Random intents, with the probabilities of the real answers."""
    rng = Random(seed)
    return [LabelledAnswer(rng.randrange(n_intents), answer.p) for answer in tiers.small]


def _cascade_figures(outcomes: Sequence[TierOutcome], seed: int) -> list[Figure]:
    return [*_tier_figures("cascade", outcomes),
            cost_figure("cascade: cost, of the large tier alone", outcomes, MAX_COST),
            *difference_figures("cascade", outcomes, least=-SLACK, seed=seed)]


def _learned_figures(outcomes: Sequence[TierOutcome], seed: int) -> list[Figure]:
    pairs = [outcome.n_small_equal for outcome in outcomes]
    return [*_tier_figures("learned", outcomes),
            Figure.share("learned: answers of the small tier that were the large one's", sum(n for n, _ in pairs),
                         sum(n for _, n in pairs), LEARNED_AT_LEAST, Sense.AT_LEAST),
            cost_figure("learned: cost, of the large tier alone", outcomes, 1.0),
            *difference_figures("learned", outcomes, least=-SLACK, seed=seed)]


def _guess_figures(outcomes: Sequence[TierOutcome]) -> list[Figure]:
    n_given = sum(answer.tier == SMALL for outcome in outcomes for answer in outcome.run.answers)
    return [Figure.count("no skill: questions answered by the small tier", n_given),
            cost_figure("no skill: cost, of the large tier alone", outcomes, MAX_EXPLORATION)]


def _deadline_figures(found: DeadlineTiers) -> list[Figure]:
    at = f"deadline of {DEADLINE_S:g} s that only the small tier meets, {found.n} requests"
    return [Figure.count(f"{at}: time-outs", found.n_time_outs),
            Figure.count(f"{at}: time-outs of the large model alone", found.n_time_outs_without, None)]


def _tier_figures(name: str, outcomes: Sequence[TierOutcome]) -> list[Figure]:
    """For comparison: the skill of both tiers, and how much the small one answered."""
    n = len(outcomes)
    return [Figure.exact(f"{name}: right answers of the small tier alone", 100 / n * sum(
                outcome.tiers.share_right(outcome.tiers.small) for outcome in outcomes), "%"),
            Figure.exact(f"{name}: right answers of the large tier alone", 100 / n * sum(
                outcome.tiers.share_right(outcome.tiers.large) for outcome in outcomes), "%"),
            Figure.exact(f"{name}: answered by the small tier", 100 / n * sum(
                outcome.run.share_of(SMALL) for outcome in outcomes), "%"),
            Figure.exact(f"{name}: cost of comparisons and audits, of the large tier alone", 100 * sum(
                outcome.run.exploration_usd for outcome in outcomes) / sum(outcome.large_usd for outcome in outcomes), "%")]
