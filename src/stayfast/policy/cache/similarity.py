"""Which questions may be answered by what was said to another one, and whether the answer to the nearest is one to this.

Problem: "and how much is it?" is .97 like another "and how much is it?" whose "it" was another thing. Rule: a question must
stand for itself. It is not looked up, nor kept for others, where

    short       it has fewer than `min_content_words` words that say something, or leans on dots
    pointing    it begins with a word that leans on what was said before (it, they, and, why)
    volatile    its answer is another one soon (today, latest, price), and answers are kept longer than `volatile_ttl_s`
    personal    it speaks of "my": the answer is another one for another person, unless the route says `allow_personal: true`
                (a help desk's answers that look nobody up are the same for all)
    private     it has what only one person would write: an e-mail address, a long number, a card or account number
    language    nobody has a list of the words that would tell it from its opposite (policy/cache/lexical.py)

What must be equal to the letter, the tenant, the system prompt, the tools, the format and all earlier turns, is the scope,
and no matter of likeness (`wire.canonical.scope_bytes`).
When wrong: these are word lists. "Which of the two is better?" points back, and passes.

Problem: cosine alone cannot tell. On BANKING77, with a model's usual embeddings, every fixed threshold up to .95 gives more
than 2 % wrong answers; at 1 % of wrong ones a seventh of the requests could be answered. Three features that cost next to
nothing make it three quarters: how far the next *other* answer is, and how many of the neighbours vote for this one. Rule:
take the ten nearest phrasings in the scope. The nearest of them whose words do not tell it apart from the question
(policy/cache/lexical.py) stands for it; y1 is its answer. All ten vote, told apart or not:

    cos1     its cosine
    margin   cos1 - the best cosine of an answer other than y1. All ten vote for y1: cos1 - the last one's cosine, for
             another is no nearer than that; fewer than ten in the scope, all of y1: 0, for then nothing is known
    vote5    the share of y1 among the nearest five
    mean3    the mean cosine of the nearest three
    vote10   the share of y1 among the ten
    shared   words that both texts have, of the words that either has (Jaccard)

p = logistic of these (policy/cache/calibration.py), and y1 is given where p has reached the threshold, unless y1 is on
probation (policy/cache/answer_clusters.py). Below LEAST_COSINE nothing is given and nothing is learned, whatever p is:
that is another question, and a model that never saw its like has nothing to say of it. Where an operator wants it (`wary`),
nothing is given below a cosine of his if the question has a word that says something and that no phrasing of y1 has had:
as long as nobody has asked how to cancel an order, all ten neighbours of "how do I cancel my order" vote for "how can I
track my order", .52 alike, and p believes the votes. The first one's own answer is made; from then on the word is that
answer's. It costs hits where people have many words for the same. What comes of it is learned from, as of any other: left
out, those labels would make the threshold bolder. Nothing that comes after can make a hit of a miss.
Source: ours; measured on public data (docs/cache-eval.md), again by `stayfast prove semantic`.
When wrong: where each question is asked once, there are no votes, and the features are cosine in other words.

`max_error` is the share of *hits* that may be wrong (policy/cache/calibration.py); everything is a miss until enough is
known. `threshold` instead of it is a fixed cosine: quick to set, and nobody knows what it serves wrongly.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, Protocol

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.cache.answer_clusters import AnswerVotes, Neighbour
from stayfast.policy.cache.calibration import LEAST_LABELS, CalibrateConfig
from stayfast.policy.cache.lexical import ENGLISH, LEXICONS, MOST_CHARS, Lexicon, Wording, why_apart

N_TO_TELL_LANGUAGE = 5  # words; fewer may well be without a filler
_PRIVATE: Final = re.compile(r"[^\s@]@[^\s@]+\.\w|\d[\d -]{7,}\d|\b[A-Z]{2}\d{2}[A-Z0-9]{10,}\b")
_ASIDE: Final = re.compile(r"\.\.\.|\u2026")


@dataclass(frozen=True, slots=True)
class EligibleConfig:
    """Which questions of a route may meet others. `volatile_ttl_s`: how long an answer about today or a price holds."""

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


def why_not(text: str, read: Wording, config: EligibleConfig, ttl_s: float) -> str:
    """The rule by which a question is on its own; empty: it may be compared. `ttl_s`: how long its route keeps answers."""
    if len(text) > config.max_chars:
        return "long"
    lexicon, words = LEXICONS[config.language], read.words
    n_fillers = sum(word in lexicon.fillers for word in words)
    is_western = all(word.isascii() or max(word) < "\u0250" for word in words)  # by its letters
    if not is_western or (not n_fillers and len(words) >= N_TO_TELL_LANGUAGE):
        return "language"
    if len(words) - n_fillers < config.min_content_words or _ASIDE.search(text):
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


class Rule(Protocol):
    """What p is, and what of it is enough: `calibrate.Calibrator`, or `Fixed`."""

    def p(self, features: Sequence[float]) -> float:
        """How likely y1 is right, 0 to 1."""

    def why_not(self, p: float) -> str:
        """The reason not to give an answer that is right with p; empty: none."""


class Fixed:
    """A fixed threshold of the cosine: the simple mode. It bounds no error; nobody knows what it serves wrongly."""

    __slots__ = ("threshold",)

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def p(self, features: Sequence[float]) -> float:
        return features[0]

    def why_not(self, p: float) -> str:
        return "" if p >= self.threshold else "unlike"

    def __repr__(self) -> str:
        return f"<Fixed {self.threshold:g}>"


class Judgement(NamedTuple):
    """What became of a question. `why`: empty for a hit, else the rule that made a miss of it. nearest: whose answer it is
    about. features are empty where nothing was near, or all that was is told apart by its words; else they are to be learned
    from (`Calibrator.learn`, `AnswerVotes.judged`) once an answer was made all the same and judged.
    """

    why: str
    nearest: Neighbour | None = None
    p: float = 0.0
    features: tuple[float, ...] = ()


def judge(question: Wording, neighbours: Sequence[Neighbour], votes: AnswerVotes, rule: Rule,
          lexicon: Lexicon = ENGLISH) -> Judgement:
    """Whether a question is answered by the answer of the nearest that its words do not tell apart. About 20 us."""
    if not neighbours:
        return Judgement("no_neighbour")
    apart = ""
    for nearest in neighbours[:N_NEAREST]:
        why = why_apart(question, nearest.wording, lexicon)
        if not why:
            break
        apart = apart or why
    else:
        return Judgement(apart, neighbours[0])
    if nearest.cosine < LEAST_COSINE:
        return Judgement("unlike", nearest)
    found = features(question, nearest, neighbours)
    p = rule.p(found)
    return Judgement("probation" if votes.is_on_probation(nearest.answer) else rule.why_not(p), nearest, p, found)


def wary(judged: Judgement, question: Wording, votes: AnswerVotes, new_word_cosine: float,
         lexicon: Lexicon = ENGLISH) -> Judgement:
    """The same, but no hit below this cosine by a word that the answer's questions have not had. 50 us at most."""
    if judged.why or judged.nearest is None or judged.nearest.cosine >= new_word_cosine:
        return judged
    words = [word for word in question.words if word not in lexicon.fillers]
    return judged._replace(why="new_word") if votes.has_new(judged.nearest.answer, words) else judged


def features(question: Wording, nearest: Neighbour, neighbours: Sequence[Neighbour]) -> tuple[float, ...]:
    """N_FEATURES numbers about one of the first N_NEAREST neighbours; see the module."""
    near = neighbours[:N_NEAREST]
    cos1, y1, _, wording = nearest
    other = next((one.cosine for one in near if one.answer != y1), near[-1].cosine if len(near) == N_NEAREST else cos1)
    n_five = sum(one.answer == y1 for one in near[:5])
    n_ten = n_five + sum(one.answer == y1 for one in near[5:])
    ones, others = set(question.words), set(wording.words)
    n_either = len(ones | others)
    return (cos1, cos1 - other, n_five / min(5, len(near)), sum(one.cosine for one in near[:3]) / min(3, len(near)),
            n_ten / len(near), len(ones & others) / n_either if n_either else 0.0)


PERCENT = r"[0-9]{1,3}(\.[0-9]{1,6})?%?"
PERCENT_FORM = "a share like 1% or 0.01"
MOST_LABELS = 4096  # who wants more before the first hit wants none


@dataclass(frozen=True, slots=True)
class SemanticConfig:
    """The semantic cache of one route, in use where its cache has the mode semantic."""

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
        "Questions remembered per worker, 2 kB each; the oldest goes first.", minimum=10, maximum=10_000_000)] = 50_000
    same_answer_cosine: Annotated[float, SettingDoc(
        "Cosine from which two answers count as the same when judging errors.", minimum=0.5, maximum=1)] = 0.9
    new_word_cosine: Annotated[float, SettingDoc(
        "Cosine needed if the question has a word new to the answer; 0.8 is careful but costs hits. 0: any.",
        minimum=0, maximum=1)] = 0.0
    judge: Annotated[str, SettingDoc(
        "Route whose model decides whether two similar answers are the same. Empty: they are.")] = ""
    verify: Annotated[str, SettingDoc(
        "Route whose model must confirm each hit, within `lookup_timeout_s` and `budget.cache`. Empty: none.")] = ""
    eligible: Annotated[EligibleConfig, SettingDoc(
        "Which questions may get answers to other questions.")] = field(default_factory=EligibleConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        self.calibrated()

    def calibrated(self) -> CalibrateConfig:
        """How the threshold is found. Raises ValueError naming the field that is out of bounds."""
        share = float(self.max_error.rstrip("%")) / (100.0 if self.max_error.endswith("%") else 1.0)
        return CalibrateConfig(share, self.audit_share, self.min_labels)
