"""How often a model that compares answers errs, and how many comparisons it may make.

Problem: the labels of a semantic cache come from a model, which is wrong in some comparisons. If it calls different answers
the same, wrong hits look right, and the proven error is too low by this share. Nobody knows the right verdicts, but the
model can be called again. Rule: judge some pairs twice, the second time with the answers exchanged, and let a third call
decide.

    verdict       the first order is drawn. A "different" is always judged again, a "same" in CHECKED_SHARE of the cases and
                  where words suggest a difference; if the two calls disagree, a third one with other instructions decides
    miss_share    of the pairs whose first vote was "different" and that were found different, x of n had a second vote for
                  "same". With a share b of wrong votes on different pairs, x / n is b / (1 + b) for these, and more for
                  equal pairs with two wrong votes. So, with the upper bound r of x / n,
                      b <= r / (1 - r),    miss_share = b + (1 - b) b^2
                  (the first vote is wrong, whether or not it is judged again, or the second and the third are)
    prior         PRIOR_X and PRIOR_N are added to x and n: 0.80 without any check, 0.14 after 30 checks without a
                  disagreement, 0.016 after 300
    memory        x and n are halved at MOST_CHECKS, so that a changed model is noticed
    allowance     each call of the route adds `share` comparisons, and the sum never exceeds MOST_SAVED; each request to the
                  judge takes one. A verdict needs up to three: the rest is a debt

A comparison of words (`policy.cache.answer_comparison`) may find a difference without a model. It is used alone once its
verdicts were those of the model in at least LEAST_AGREEMENT (lower 95 % bound) of the comparisons, for each rule by itself,
and is compared with the model in RECHECKED_SHARE of the cases after that. Only "different" is taken from words: an error
there costs hits, but hides no wrong hit.

Source: Clopper and Pearson (1934) for the bound; that two orders of a pair expose a judge's inconsistency is Zheng and
others' ("Judging LLM-as-a-judge", 2023). The estimate is ours.
When wrong: the votes on one pair are assumed to be independent, given the truth. A difference that the model overlooks in
both orders stays unseen, so `miss_share` covers inconsistency, and no blind spots.
"""

from stayfast.policy.cache.calibration import lower_bound, upper_bound

CHECKED_SHARE = 0.25
RECHECKED_SHARE = 0.05
LEAST_AGREEMENT = 0.99
PRIOR_X, PRIOR_N = 1.0, 10.0
MOST_CHECKS = 1000.0
MOST_SAVED = 50.0  # comparisons
FIRST_SAVED = 5.0  # before the first call


class JudgeConsistency:
    """The repeated judgements of one judge."""

    __slots__ = ("_n_different", "_n_split", "n_checked", "n_contradicted")

    def __init__(self) -> None:
        self.n_checked = 0  # pairs judged twice
        self.n_contradicted = 0  # of those, with two verdicts
        self._n_different = 0.0  # pairs judged again and found different
        self._n_split = 0.0  # of those, with a vote for "same"

    def record(self, *, was_first_same: bool, is_same: bool, is_contradicted: bool) -> None:
        """A pair was judged at least twice. was_first_same: the first vote. is_same: the majority. is_contradicted: the
        first two votes differed.
        """
        self.n_checked += 1
        self.n_contradicted += is_contradicted
        if is_same or was_first_same:
            return
        self._n_different += 1.0
        self._n_split += is_contradicted
        if self._n_different >= MOST_CHECKS:
            self._n_different, self._n_split = self._n_different / 2, self._n_split / 2

    @property
    def miss_share(self) -> float:
        """The upper 95 % bound of the share of different pairs that are called the same. Takes 0.1 ms."""
        bound = upper_bound(self._n_split + PRIOR_X, self._n_different + PRIOR_N)
        wrong = min(1.0, bound / (1.0 - bound)) if bound < 1.0 else 1.0
        return min(1.0, wrong + (1.0 - wrong) * wrong * wrong)

    def __repr__(self) -> str:
        return f"<JudgeConsistency {self.n_contradicted} of {self.n_checked} contradicted>"


class JudgeAllowance:
    """How many requests the judge may make."""

    __slots__ = ("_saved", "share")

    def __init__(self, share: float) -> None:
        self.share = share  # requests to the judge, for each call of the route
        self._saved = FIRST_SAVED

    def note_call(self) -> None:
        """The route made a call."""
        self._saved = min(MOST_SAVED, self._saved + self.share)

    @property
    def may_judge(self) -> bool:
        return self.share > 0 and self._saved >= 1.0

    def spend(self) -> None:
        self._saved -= 1.0

    def __repr__(self) -> str:
        return f"<JudgeAllowance {self.share:g}, {self._saved:.1f} saved>"


class WordRuleRecord:
    """How often each rule about words that finds a difference agreed with the model."""

    __slots__ = ("_counts", "_proven")

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}  # by rule: agreed, all
        self._proven: set[str] = set()

    def record(self, rule: str, *, is_agreed: bool) -> None:
        agreed, n = self._counts.get(rule, (0.0, 0.0))
        agreed, n = agreed + is_agreed, n + 1.0
        if n >= MOST_CHECKS:
            agreed, n = agreed / 2, n / 2
        self._counts[rule] = agreed, n
        is_proven = lower_bound(agreed, n) >= LEAST_AGREEMENT
        (self._proven.add if is_proven else self._proven.discard)(rule)

    def is_proven(self, rule: str) -> bool:
        """Whether the rule suffices without a model. True after 299 comparisons at the earliest."""
        return rule in self._proven
