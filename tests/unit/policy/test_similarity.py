"""policy.cache.similarity: which questions may share answers, and which hits are served."""

from collections.abc import Sequence
from math import log, log1p

import pytest

from stayfast.policy.cache.answer_clusters import DECAY, PRIOR_N, PRIOR_WRONG, AnswerVotes, Neighbour
from stayfast.policy.cache.calibration import CalibrateConfig, Calibrator
from stayfast.policy.cache.english import ENGLISH
from stayfast.policy.cache.lexical import parse_wording
from stayfast.policy.cache.similarity import (
    LEAST_COSINE,
    N_FEATURES,
    FixedThreshold,
    compute_features,
    judge_question,
    reject_new_words,
)

ASKED = parse_wording("how do I export a table")
LIKE = "how can I export one table"


def neighbours(*given: tuple[float, int], text: str = LIKE) -> list[Neighbour]:
    """Of (cosine, answer)."""
    return [Neighbour(cosine, answer, key, parse_wording(text)) for key, (cosine, answer) in enumerate(given)]


def heard(answer: int, *texts: str) -> AnswerVotes:
    """An answer with these phrasings."""
    votes = AnswerVotes(fillers=ENGLISH.fillers)
    for key, text in enumerate(texts):
        votes.add(key, answer, parse_wording(text))
    return votes


def test_features_match_their_definitions() -> None:
    """Each by its formula."""
    near = neighbours((0.9, 1), (0.8, 1), (0.7, 2), (0.6, 1), (0.5, 3), (0.4, 1))
    near = [one._replace(spread=0.7) for one in near]
    votes = heard(1, "how can I print one table", "where can I print")
    votes.record_judgement(1, is_right=False, was_given=False)
    cos1, margin, vote5, mean3, vote10, shared, new, size, beyond, wrong = found = compute_features(
        ASKED, near[0], near, votes)
    assert len(found) == N_FEATURES
    assert (cos1, vote5, vote10) == (0.9, 3 / 5, 4 / 10)
    assert (margin, mean3, beyond) == pytest.approx((0.2, 0.8, 0.2))
    assert shared == pytest.approx(4 / 8)  # how, i, export, table; do, a, can, one
    assert new == pytest.approx(log1p(3 / 1) / (log1p(3 / 1) + log1p(3 / 2)))  # "export" is new, "table" is not
    assert size == pytest.approx(log(3))
    assert wrong == pytest.approx((PRIOR_WRONG * DECAY + 1) / (PRIOR_N * DECAY + 1))


def test_features_scope_with_few_phrasings_has_few_votes() -> None:
    """One phrasing, even of the same words, is one vote of ten."""
    near = neighbours((1.0, 1))
    found = compute_features(ASKED, near[0], near, heard(1, LIKE))
    assert (found[2], found[3], found[4]) == pytest.approx((1 / 5, 1 / 3, 1 / 10))


def test_judge_unconfirmed_answer_is_not_served() -> None:
    """By a rule that was learned; a fixed threshold needs no confirmation. The label does not count for the threshold."""
    votes, near = heard(1, LIKE), neighbours((0.99, 1))
    rule = Calibrator(CalibrateConfig(), N_FEATURES)
    judged = judge_question(ASKED, near, votes, rule)
    assert (judged.why, judged.is_servable) == ("unconfirmed", False)
    assert judge_question(ASKED, near, votes, FixedThreshold(0.9)).why == ""
    votes.confirm(1)
    judged = judge_question(ASKED, near, votes, rule)
    assert (judged.why, judged.is_servable) == ("shadow", True)


@pytest.mark.parametrize(("given", "margin"), [
    ([(0.9, 1)], 0.0),  # nothing is known of others
    ([(0.9, 1)] * 9, 0.0),
    ([(0.9, 1)] * 9 + [(0.5, 1)], 0.4),  # an other one is no nearer than the tenth
    ([(0.9, 1)] * 9 + [(0.5, 1), (0.49, 2)], 0.4),  # ten count
    ([(0.9, 1), (0.85, 2)], 0.05),
])
def test_features_margin_without_other_answers(given: Sequence[tuple[float, int]], margin: float) -> None:
    """It is never taken for larger than is known."""
    near = neighbours(*given)
    assert compute_features(ASKED, near[0], near, AnswerVotes())[1] == pytest.approx(margin)


def test_fixed_threshold_serves_from_its_cosine() -> None:
    """By the cosine of the nearest."""
    votes = AnswerVotes()
    assert judge_question(ASKED, neighbours((0.93, 1)), votes, FixedThreshold(0.92)).why == ""
    judged = judge_question(ASKED, neighbours((0.91, 1)), votes, FixedThreshold(0.92))
    assert (judged.why, judged.p, len(judged.features)) == ("unlike", 0.91, N_FEATURES)
    assert judge_question(ASKED, [], votes, FixedThreshold(0.92)).why == "no_neighbour"


def test_judge_differing_words_skip_to_next_neighbour() -> None:
    """The nearest neighbour that the rules do not tell apart represents the question; if there is none, no label is made."""
    near = [*neighbours((0.99, 1), text="how do I import a table"), *neighbours((0.95, 2))]
    judged = judge_question(ASKED, near, AnswerVotes(), FixedThreshold(0.92))
    assert judged.nearest == near[1]
    assert judged.why == ""
    assert judged.features[1] == pytest.approx(-0.04)  # the other answer is nearer
    alone = judge_question(ASKED, near[:1], AnswerVotes(), FixedThreshold(0.92))
    assert (alone.why, alone.features) == ("opposites", ())


def test_judge_answer_on_probation_is_not_served() -> None:
    """It is still judged, so that the probation can end."""
    votes = AnswerVotes()
    votes.add(0, 1, ASKED)
    votes.record_judgement(1, is_right=False, was_given=True)
    judged = judge_question(ASKED, neighbours((0.99, 1)), votes, FixedThreshold(0.92))
    assert judged.why == "probation"
    assert judged.features


class Sure:
    """A rule that takes all."""

    needs_confirmation = False

    def probability(self, features: Sequence[float]) -> float:
        """Certain."""
        return 1.0

    def reject_reason(self, p: float) -> str:
        """Nothing."""
        return ""


@pytest.mark.parametrize(("cosine", "phrasings", "why"), [
    (0.79, ("How can I track an order?",), "new_word"),
    (0.8, ("How can I track an order?",), ""),  # so much alike that the votes may say it
    (0.79, ("How can I track an order?", "Where do I cancel it?"), ""),  # somebody has called it so
    (0.79, ("How can I track my order, or orders?", "Of all who cancels?"), ""),
    (0.79, (), "new_word")])
def test_wary_new_word_is_a_miss(cosine: float, phrasings: Sequence[str], why: str) -> None:
    """It may be what the question is about: its own answer is made, and learned from, however sure the rule is."""
    near = neighbours((cosine, 1), text="How can I track an order?")
    votes = heard(1, *phrasings)
    votes.add(99, 2, parse_wording("Where do I cancel what I ordered?"))  # another answer's words say nothing of this one's
    asked = parse_wording("How do I track and cancel my order?")
    judged = reject_new_words(judge_question(asked, near, votes, Sure()), asked, votes, 0.8)
    assert (judged.why, len(judged.features)) == (why, N_FEATURES)
    assert reject_new_words(judge_question(asked, near, votes, FixedThreshold(0.9)), asked, votes, 0.8).why == "unlike"
    assert reject_new_words(judge_question(asked, near, votes, Sure()), asked, votes, 0.0).why == ""  # off


def test_judge_below_least_cosine_is_a_miss() -> None:
    """Nor learned from: no label says anything of it."""
    assert judge_question(ASKED, neighbours((LEAST_COSINE, 1)), AnswerVotes(), Sure()).why == ""
    judged = judge_question(ASKED, neighbours((LEAST_COSINE - 0.01, 1)), AnswerVotes(), Sure())
    assert (judged.why, judged.features) == ("unlike", ())
