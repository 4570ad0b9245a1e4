"""Semantic cache decisions: whether the nearest question's answer fits a new one.

Problem: on BANKING77, with common embeddings, every fixed cosine threshold up to .95 serves more than 2 % wrong answers.
Rule: take the ten nearest phrasings in the scope. The nearest that the word rules do not tell apart from the question
represents it; y1 is its answer. All ten vote:

    cos1     its cosine
    margin   cos1 - the best cosine of another answer. If all ten vote for y1: cos1 - the tenth's cosine; if the scope has
             fewer than ten, all of y1: 0, as nothing is known
    vote5    y1's votes among the nearest five, / 5; a scope with fewer phrasings has fewer votes to give
    mean3    the sum of the cosines of the nearest three, / 3
    vote10   y1's votes, / 10
    shared   common words / all words of the two texts (Jaccard)
    new      the weighted share of the question's content words that no phrasing of y1 has
    size     ln(1 + phrasings of y1), at most MAX_SIZE
    beyond   cos1 - the mean spread of y1's phrasings among the ten: below 0, the question lies outside of what y1 answers
    wrong    the share of y1's recent judgements that found it wrong

The last four recognise a question that nothing stored answers: new topics and questions out of scope have neighbours, too.
p is a logistic function of these (policy/cache/calibration.py). y1 is served if p reaches the threshold, a second call has
confirmed y1, and y1 is not on probation (policy/cache/answer_clusters.py). Below LEAST_COSINE nothing is served or learned.
With `new_word_cosine` nothing is served below that cosine if the question has a content word that no phrasing of y1 has;
such misses are labels, too.
Source: ours; measured on public data (docs/cache-eval.md) and by `stayfast prove semantic`.
When wrong: if each question occurs once, there are no votes, and nothing is confirmed or served. The error of a fixed
`threshold` is unknown, and it needs no confirmation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.cache.answer_clusters import AnswerVotes, Neighbour
from stayfast.policy.cache.calibration import LEAST_LABELS, CalibrateConfig
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.english import ENGLISH, Lexicon
from stayfast.policy.cache.lexical import Wording, find_difference

N_NEAREST = 10
N_FEATURES = 10
LEAST_COSINE = 0.5
MAX_SIZE = 4.0


class DecisionRule(Protocol):
    """The decision from the features: `calibration.Calibrator`, or `FixedThreshold`."""

    @property
    def needs_confirmation(self) -> bool:
        """Whether an answer must be confirmed by a second call before it is served."""

    def probability(self, features: Sequence[float]) -> float:
        """The probability, from 0 to 1, that y1 is right."""

    def reject_reason(self, p: float) -> str:
        """The reason not to serve an answer with this probability; empty: serve it."""


class FixedThreshold:
    """A fixed threshold of the cosine. It does not bound the error."""

    __slots__ = ("threshold",)

    needs_confirmation = False

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def probability(self, features: Sequence[float]) -> float:
        return features[0]

    def reject_reason(self, p: float) -> str:
        return "" if p >= self.threshold else "unlike"

    def __repr__(self) -> str:
        return f"<FixedThreshold {self.threshold:g}>"


class Judgement(NamedTuple):
    """The result for one question. `why`: empty for a hit, else the rule that made it a miss. `nearest`: the neighbour whose
    answer was judged. `features`: empty if there was no such neighbour; else a label to learn once an answer was generated
    and compared (`Calibrator.learn`, `AnswerVotes.record_judgement`). `is_servable`: the answer is confirmed and not on
    probation, so that the label counts for what would be served.
    """

    why: str
    nearest: Neighbour | None = None
    p: float = 0.0
    features: tuple[float, ...] = ()
    is_servable: bool = True


def judge_question(question: Wording, neighbours: Sequence[Neighbour], votes: AnswerVotes, rule: DecisionRule,
                   lexicon: Lexicon = ENGLISH) -> Judgement:
    """Judge the answer of the nearest neighbour that the word rules do not tell apart from the question. About 40 us."""
    if not neighbours:
        return Judgement("no_neighbour")
    first_why = ""
    for nearest in neighbours[:N_NEAREST]:
        why = find_difference(question, nearest.wording, lexicon)
        if not why:
            break
        first_why = first_why or why
    else:
        return Judgement(first_why, neighbours[0])
    if nearest.cosine < LEAST_COSINE:
        return Judgement("unlike", nearest)
    found = compute_features(question, nearest, neighbours, votes)
    p = rule.probability(found)
    why = _reject_answer(votes, nearest.answer, rule)
    return Judgement(why or rule.reject_reason(p), nearest, p, found, not why)


def _reject_answer(votes: AnswerVotes, answer: int, rule: DecisionRule) -> str:
    if votes.is_on_probation(answer):
        return "probation"
    return "unconfirmed" if rule.needs_confirmation and not votes.is_confirmed(answer) else ""


def reject_new_words(judged: Judgement, question: Wording, votes: AnswerVotes, new_word_cosine: float) -> Judgement:
    """Turn a hit below this cosine into a miss if the question has a word that is new to the answer."""
    if judged.nearest is None or not judged.features or judged.nearest.cosine >= new_word_cosine:
        return judged
    has_new = votes.new_word_share(judged.nearest.answer, question) > 0
    return judged._replace(why=judged.why or "new_word", is_servable=False) if has_new else judged


def compute_features(question: Wording, nearest: Neighbour, neighbours: Sequence[Neighbour],
                     votes: AnswerVotes) -> tuple[float, ...]:
    """N_FEATURES numbers about one of the first N_NEAREST neighbours, as listed above."""
    near = neighbours[:N_NEAREST]
    cos1, y1, wording = nearest.cosine, nearest.answer, nearest.wording
    other = next((each.cosine for each in near if each.answer != y1), near[-1].cosine if len(near) == N_NEAREST else cos1)
    spreads = [each.spread for each in near if each.answer == y1]
    n_five = sum(each.answer == y1 for each in near[:5])
    own_words, other_words = set(question.words), set(wording.words)
    n_either = len(own_words | other_words)
    return (cos1, cos1 - other, n_five / 5, sum(each.cosine for each in near[:3]) / 3, len(spreads) / N_NEAREST,
            len(own_words & other_words) / n_either if n_either else 0.0, votes.new_word_share(y1, question),
            min(votes.log_size(y1), MAX_SIZE), cos1 - sum(spreads) / len(spreads), votes.wrong_share(y1))


PERCENT = r"[0-9]{1,3}(\.[0-9]{1,6})?%?"
PERCENT_FORM = "a share like 1% or 0.01"
MOST_LABELS = 4096  # of min_labels: more would delay the first hit too long


@dataclass(frozen=True, slots=True)
class SemanticConfig:
    """The semantic cache of one route, used if the cache's mode is semantic."""

    max_error: Annotated[str, SettingDoc(
        "Largest share of wrong semantic hits; no hits before it is proven.",
        pattern=PERCENT, form=PERCENT_FORM, or_number=True)] = "1%"
    threshold: Annotated[float | None, SettingDoc(
        "Fixed cosine from which an answer is served, without an error bound. null: `max_error` applies.",
        minimum=0.5, maximum=1)] = None
    audit_share: Annotated[float, SettingDoc(
        "Share of hits that also make their own call in the background, for comparison.", minimum=0.001, maximum=1)] = 0.05
    audit_seed: Annotated[int, SettingDoc(
        "Seed of the random choice of audited hits: runs with one seed and the same traffic audit the same hits.",
        minimum=0, maximum=2**63 - 1)] = 0
    min_labels: Annotated[int, SettingDoc(
        "Comparisons before the first hit.", minimum=LEAST_LABELS, maximum=MOST_LABELS)] = 300
    semantic_ttl_s: Annotated[float, SettingDoc(
        "Longest age of an answer served to another question.", more_than=0, maximum=31_536_000)] = 3600.0
    lookup_timeout_s: Annotated[float, SettingDoc(
        "A slower lookup is a miss; `budget.cache` may shorten it.", minimum=0.001, maximum=10)] = 0.05
    max_questions: Annotated[int, SettingDoc(
        "Questions remembered per worker, 2 kB each; the oldest is dropped first.", minimum=10, maximum=10_000_000)] = 50_000
    same_answer_cosine: Annotated[float, SettingDoc(
        "Cosine from which two answers count as the same when judging errors.", minimum=0.5, maximum=1)] = 0.9
    new_word_cosine: Annotated[float, SettingDoc(
        "Cosine needed if the question has a word new to the answer; 0.8 is careful but costs hits. 0: any.",
        minimum=0, maximum=1)] = 0.0
    judge: Annotated[str, SettingDoc(
        "Compares answers. auto: the route's own model; ROUTE: that route's; local: rules about words.")] = "auto"
    judge_share: Annotated[float, SettingDoc(
        "Most requests to the judge per call of the route; beyond it, nothing is learned.", minimum=0, maximum=10)] = 2.0
    verify: Annotated[str, SettingDoc(
        "Route whose model must confirm each hit, within `lookup_timeout_s` and `budget.cache`. Empty: none.")] = ""
    eligible: Annotated[EligibleConfig, SettingDoc(
        "Which questions may get answers to other questions.")] = field(default_factory=EligibleConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        self.calibration_config()

    def judge_route(self, route: str) -> str:
        """The route whose model compares the answers of `route`; empty: none does."""
        return "" if self.judge in ("", "local") else route if self.judge == "auto" else self.judge

    def calibration_config(self) -> CalibrateConfig:
        """The settings of the calibration. Raises ValueError naming the field that is out of bounds."""
        share = float(self.max_error.rstrip("%")) / (100.0 if self.max_error.endswith("%") else 1.0)
        return CalibrateConfig(share, self.audit_share, self.min_labels)
