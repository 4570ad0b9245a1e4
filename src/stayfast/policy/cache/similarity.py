"""Semantic cache decisions: which questions may share answers, and whether the nearest question's answer fits a new one.

Problem: "and how much is it?" has cosine .97 to the same words about something else. Rule: a question must be
self-contained. It is neither looked up nor stored for others if it is

    short       fewer than `min_content_words` words with content, or with an ellipsis
    pointing    it begins with a word that refers to earlier text (it, they, and, why)
    volatile    its answer changes soon (today, latest, price), and answers are stored longer than `volatile_ttl_s`
    personal    it contains "my", unless the route sets `allow_personal: true`
    private     it contains an e-mail address, a long number, a card or an account number
    language    there is no word list for its language (policy/cache/lexical.py)

Tenant, system prompt, tools, format and earlier turns must be exactly equal; they are the scope (`wire.canonical`).

Problem: on BANKING77, with common embeddings, every fixed cosine threshold up to .95 serves more than 2 % wrong answers.
Rule: take the ten nearest phrasings in the scope. The nearest that the word rules do not tell apart from the question
represents it; y1 is its answer. All ten vote:

    cos1     its cosine
    margin   cos1 - the best cosine of another answer. If all ten vote for y1: cos1 - the tenth's cosine; if the scope has
             fewer than ten, all of y1: 0, as nothing is known
    vote5    the share of y1 among the nearest five
    mean3    the mean cosine of the nearest three
    vote10   the share of y1 among the ten
    shared   common words / all words of the two texts (Jaccard)

p is a logistic function of these (policy/cache/calibration.py). y1 is served if p reaches the threshold and y1 is not on
probation (policy/cache/answer_clusters.py). Below LEAST_COSINE nothing is served or learned. With `new_word_cosine`
nothing is served below that cosine if the question has a content word that no phrasing of y1 has; such misses are labels,
too.
Source: ours; measured on public data (docs/cache-eval.md) and by `stayfast prove semantic`.
When wrong: word lists miss cases ("Which of the two is better?" refers to earlier text, and passes). If each question occurs
once, there are no votes, and the features are only cosine. The error of a fixed `threshold` is unknown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, Protocol

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.cache.answer_clusters import AnswerVotes, Neighbour
from stayfast.policy.cache.calibration import LEAST_LABELS, CalibrateConfig
from stayfast.policy.cache.lexical import ENGLISH, LEXICONS, MOST_CHARS, Lexicon, Wording, find_difference

MIN_WORDS_FOR_LANGUAGE = 5  # words; a shorter question may well have no filler
_PRIVATE: Final = re.compile(r"[^\s@]@[^\s@]+\.\w|\d[\d -]{7,}\d|\b[A-Z]{2}\d{2}[A-Z0-9]{10,}\b")
_ELLIPSIS: Final = re.compile(r"\.\.\.|\u2026")


@dataclass(frozen=True, slots=True)
class EligibleConfig:
    """Which questions of a route may share answers. `volatile_ttl_s`: how long an answer about today or a price is valid."""

    language: Annotated[str, SettingDoc("Language of the word lists; only en. Other languages get no semantic hits.")] = "en"
    allow_personal: Annotated[bool, SettingDoc(
        'Questions with "my" may share answers: only if no personal data are looked up.')] = False
    min_content_words: Annotated[int, SettingDoc(
        "Fewest content words; shorter questions depend on the conversation.", minimum=1, maximum=20)] = 3
    volatile_ttl_s: Annotated[float, SettingDoc(
        "Lifetime of answers about today, now or a price; a longer `semantic_ttl_s` excludes such questions.",
        minimum=0, maximum=31_536_000)] = 0.0
    max_chars: Annotated[int, SettingDoc("Longest question.", minimum=1, maximum=MOST_CHARS)] = 2000

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.language not in LEXICONS:
            raise ValueError(f"language must be one of {', '.join(LEXICONS)}, not {self.language!r}: it needs a word list")


def exclusion_reason(text: str, read: Wording, config: EligibleConfig, ttl_s: float) -> str:
    """The rule that excludes a question; empty: none. `ttl_s`: how long its route stores semantic answers."""
    if len(text) > config.max_chars:
        return "long"
    lexicon, words = LEXICONS[config.language], read.words
    n_fillers = sum(word in lexicon.fillers for word in words)
    is_western = all(word.isascii() or max(word) < "\u0250" for word in words)  # by its letters
    if not is_western or (not n_fillers and len(words) >= MIN_WORDS_FOR_LANGUAGE):
        return "language"
    if len(words) - n_fillers < config.min_content_words or _ELLIPSIS.search(text):
        return "short"
    if words[0] in lexicon.pointing:
        return "pointing"
    if _PRIVATE.search(text):
        return "private"
    if not config.allow_personal and not lexicon.personal.isdisjoint(words):
        return "personal"
    return "volatile" if ttl_s > config.volatile_ttl_s and not lexicon.volatile.isdisjoint(words) else ""


N_NEAREST = 10
N_FEATURES = 6
LEAST_COSINE = 0.5


class DecisionRule(Protocol):
    """The decision from the features: `calibration.Calibrator`, or `FixedThreshold`."""

    def probability(self, features: Sequence[float]) -> float:
        """The probability, from 0 to 1, that y1 is right."""

    def reject_reason(self, p: float) -> str:
        """The reason not to serve an answer with this probability; empty: serve it."""


class FixedThreshold:
    """A fixed threshold of the cosine. It does not bound the error."""

    __slots__ = ("threshold",)

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
    answer was judged. `compute_features`: empty if there was no such neighbour; else a label to learn once an answer was
    generated and compared (`Calibrator.learn`, `AnswerVotes.judged`).
    """

    why: str
    nearest: Neighbour | None = None
    p: float = 0.0
    features: tuple[float, ...] = ()


def judge_question(question: Wording, neighbours: Sequence[Neighbour], votes: AnswerVotes, rule: DecisionRule,
          lexicon: Lexicon = ENGLISH) -> Judgement:
    """Judge the answer of the nearest neighbour that the word rules do not tell apart from the question. About 20 us."""
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
    found = compute_features(question, nearest, neighbours)
    p = rule.probability(found)
    return Judgement("probation" if votes.is_on_probation(nearest.answer) else rule.reject_reason(p), nearest, p, found)


def reject_new_words(judged: Judgement, question: Wording, votes: AnswerVotes, new_word_cosine: float,
         lexicon: Lexicon = ENGLISH) -> Judgement:
    """Turn a hit below this cosine into a miss if the question has a word that is new to the answer. 50 us at most."""
    if judged.why or judged.nearest is None or judged.nearest.cosine >= new_word_cosine:
        return judged
    words = [word for word in question.words if word not in lexicon.fillers]
    return judged._replace(why="new_word") if votes.has_new(judged.nearest.answer, words) else judged


def compute_features(question: Wording, nearest: Neighbour, neighbours: Sequence[Neighbour]) -> tuple[float, ...]:
    """N_FEATURES numbers about one of the first N_NEAREST neighbours, as listed above."""
    near = neighbours[:N_NEAREST]
    cos1, y1, _, wording = nearest
    other = next((each.cosine for each in near if each.answer != y1), near[-1].cosine if len(near) == N_NEAREST else cos1)
    n_five = sum(each.answer == y1 for each in near[:5])
    n_ten = n_five + sum(each.answer == y1 for each in near[5:])
    own_words, other_words = set(question.words), set(wording.words)
    n_either = len(own_words | other_words)
    return (cos1, cos1 - other, n_five / min(5, len(near)), sum(each.cosine for each in near[:3]) / min(3, len(near)),
            n_ten / len(near), len(own_words & other_words) / n_either if n_either else 0.0)


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
        "Most requests to the judge per call of the route; beyond it, nothing is learned.", minimum=0, maximum=10)] = 1.0
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
