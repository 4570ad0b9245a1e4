"""Baselines of the time to first token, and the classification of calls as slow.

Problem: times to first token of one upstream vary a hundredfold by prompt and model. Rule: compare them within a class
(model, streamed or whole, prompt tokens to a power of two), as ratios to the long-term geometric mean of that class:

    long += (ln(ttft_s) - long) / min(n, 600)         ratio = (ttft_s + 0.05) / (exp(long) + 0.05)

A class has no baseline before 10 answers, and answers to three of four of its calls, since the first ten answers of a burst
are its fastest. Later calls are learned when they are classified, in the order of their start, and at most as slow. The
added 50 ms avoid a slow verdict on a fast upstream when this machine was busy. Prompt tokens are the uncached ones if the
upstream has reported them, else a quarter of the request's bytes.

Problem: answers counted as they arrive do not represent the calls made: at the start of a burst only fast ones have arrived,
after it only slow ones remain. Rule: a call is classified at one instant fixed at its start, answered or not:

    slow_at = began_at + the time that counts as slow      (3 times the baseline)

Unanswered calls are then at least that slow. So the calls of any period are a fair sample. Instants are rounded up to
eighths of a second, for batches. Without a baseline, a call is classified a second after its start, and only as refused or
not. A call whose client left earlier is ignored, unless it was already slow at ordinary concurrency
(policy/resilience/queueing.py); a call cancelled for a faster one counts only if it lost so late that it was probably slow.

Source: the long window of Netflix's Gradient2, here of logarithms, which one answer of the tail does not move; landmark
analysis of survival statistics (Anderson, Cain, Gelber, 1983), with a landmark for each call.
When wrong: a slow drift is learned as normal; a whole answer takes as long as it is long, whatever its prompt; a verdict
comes as late as a slow answer; clients that leave because of slowness remove slow calls.
"""

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum
from math import exp, inf, log
from typing import Generic, NamedTuple, TypeVar

from stayfast.policy.context.token_estimate import PromptTokens

N_LONG = 600
N_WARM = 10
WARM_SHARE = 0.75
MAX_CLASSES = 500  # clients may choose model names; the oldest class is dropped
PADDING_S = 0.05
_LEAST_S = 1e-4
_LEAST_LOG = log(_LEAST_S)


def log_of(seconds: float) -> float:
    """The natural logarithm of a time, bounded below."""
    return log(seconds) if seconds > _LEAST_S else _LEAST_LOG


class Baseline:
    """The baseline of one class, or of all. Pure state; changed only by its owner."""

    __slots__ = ("_long", "_n", "baseline_s", "n_unknown")

    def __init__(self) -> None:
        self._n = 0
        self.n_unknown = 0  # unanswered calls that began before there was a baseline
        self._long = 0.0
        self.baseline_s = 0.0  # geometric mean of the times; 0: not known yet

    def learn(self, log_s: float, n: int = 1) -> None:
        """Learn the logarithm of one time to first token, or the sum of `n` of them."""
        self._n = n_all = self._n + n
        self._long += (log_s - n * self._long) / (n_all if n_all < N_LONG else max(n, N_LONG))
        if self.baseline_s or (n_all >= N_WARM and n_all >= WARM_SHARE * (n_all + self.n_unknown)):
            self.baseline_s = exp(self._long)

    def ratio(self, ttft_s: float) -> float | None:
        """A time to first token relative to the baseline; None without a baseline."""
        return (ttft_s + PADDING_S) / (self.baseline_s + PADDING_S) if self.baseline_s else None

    def time_at_ratio_s(self, ratio: float) -> float:
        """The time to first token that has this ratio; infinite without a baseline."""
        return ratio * (self.baseline_s + PADDING_S) - PADDING_S if self.baseline_s else inf


class LatencyBaselines:
    """The baselines of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_by_class", "all", "prompt_tokens")

    def __init__(self) -> None:
        self._by_class: dict[tuple[str, bool, int], Baseline] = {}
        self.all = Baseline()
        self.prompt_tokens = PromptTokens()

    def baseline_for(self, model: str, n_tokens: int, is_whole: bool) -> Baseline:
        """The baseline of a class: prompts of about `n_tokens`; `is_whole`: answers that are not streamed."""
        key = (model, is_whole, n_tokens.bit_length())
        found = self._by_class.get(key)
        if found is None:
            if len(self._by_class) >= MAX_CLASSES:
                del self._by_class[next(iter(self._by_class))]
            self._by_class[key] = found = Baseline()
        return found

    def learn(self, baseline: Baseline, log_s: float, n: int = 1) -> None:
        baseline.learn(log_s, n)
        self.all.learn(log_s, n)

    def __repr__(self) -> str:
        usual_s = self.all.baseline_s
        return f"<LatencyBaselines {f'{usual_s:.3g} s' if usual_s else 'unknown'}, {len(self._by_class)} classes>"


PER_S = 8
UNKNOWN_JUDGED_AFTER_S = 1.0
T = TypeVar("T")


class CallVerdict(Enum):
    WAITING = 0  # for its first token
    ANSWERED = 1
    LOST = 2  # cancelled for a faster call, so late that it counts as slow
    FAILED = 3
    REFUSED = 4  # over a quota
    NOTHING = 5  # to be ignored
    JUDGED = 6


WAITING, ANSWERED, LOST, FAILED, REFUSED, NOTHING, JUDGED = CallVerdict
_NO_SAMPLE = (FAILED, REFUSED, NOTHING)


class CallRecord:
    """The data of one call for its classification. Its owner creates it, sets `verdict`, `took_s` and `actual_baseline`, and
    before it is classified `is_slow` and `is_queued`.
    """

    __slots__ = ("actual_baseline", "baseline", "began_at", "is_queued", "is_slow", "mark", "n_concurrent", "slow_at",
                 "took_s", "verdict")

    baseline: Baseline
    mark: int  # of the breaker
    n_concurrent: int  # running calls at its start, including itself
    began_at: float
    slow_at: float  # infinite: without a baseline
    verdict: CallVerdict
    took_s: float | None  # until its first token, or until it lost
    actual_baseline: Baseline | None  # the class by the reported prompt tokens, if known
    is_slow: bool  # its first token had not arrived by `slow_at`, or a faster call ended it
    is_queued: bool  # it is slow only because of our own load, so not evidence against the upstream


class DueBuckets(Generic[T]):
    """Items by the instant at which they are due. Instants are in seconds."""

    __slots__ = ("_slots", "next_at")

    def __init__(self) -> None:
        self._slots: dict[int, list[T]] = {}
        self.next_at = inf  # the earliest due instant

    def add(self, item: T, at: float) -> None:
        """Add an item, due at the end of the eighth of a second that contains `at`."""
        slot = int(at * PER_S) + 1
        found = self._slots.get(slot)
        if found is not None:
            found.append(item)
            return
        self._slots[slot] = [item]
        if slot < self.next_at * PER_S:
            self.next_at = slot / PER_S

    def pop_due(self, now: float) -> list[tuple[float, list[T]]]:
        """Remove and return the items due by now, oldest first, with their instants."""
        slots = self._slots
        found = [(slot / PER_S, slots.pop(slot)) for slot in sorted(slots) if slot <= now * PER_S]
        self.next_at = min(slots) / PER_S if slots else inf
        return found


class CallTally(NamedTuple):
    """The result of one batch. `samples`: ratios (or seconds; infinite: no answer), with the concurrency of each call."""

    n: int
    n_dropped: int  # failed or refused
    n_peak: int  # the highest concurrency
    samples: list[tuple[float, int]]
    n_slow: int  # with the given mark, without those slow because of our own load
    n_quick: int


def count_slow(calls: Sequence[CallRecord], mark: int) -> tuple[int, int]:
    """The numbers of slow and of quick calls with this mark. A call that is slow because of our own load is neither."""
    return _count_slow(_select_known(calls), mark)


def classify(calls: Sequence[CallRecord], baselines: LatencyBaselines | None, mark: int, *,
             wants_seconds: bool = False) -> CallTally:
    """Classify calls, and learn from those with a baseline."""
    known, verdicts = _select_known(calls), [call.verdict for call in calls]
    n_slow, n_quick = _count_slow(known, mark)
    if wants_seconds:
        samples = [(inf if call.took_s is None else call.took_s, call.n_concurrent) for call in calls
                   if call.verdict not in _NO_SAMPLE]
    else:
        samples = [(inf if call.took_s is None else _ratio(call, call.took_s), call.n_concurrent) for call in known]
    for call in calls:
        call.verdict = JUDGED
    if known and baselines is not None:
        _learn(known, baselines)
    return CallTally(len(calls) - verdicts.count(NOTHING), verdicts.count(FAILED) + verdicts.count(REFUSED),
                     max([call.n_concurrent for call in calls], default=0), samples, n_slow, n_quick)


def _select_known(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """The calls with a baseline that were answered, or are still without an answer."""
    return [call for call in calls if call.slow_at < inf and call.verdict not in _NO_SAMPLE]


def _count_slow(known: Sequence[CallRecord], mark: int) -> tuple[int, int]:
    n_slow = n_quick = 0
    for call in known:
        if call.mark == mark:
            if not call.is_slow:
                n_quick += 1
            elif not call.is_queued:
                n_slow += 1
    return n_slow, n_quick


def _ratio(call: CallRecord, took_s: float) -> float:
    actual = call.actual_baseline
    ratio = (actual if actual is not None and actual.baseline_s else call.baseline).ratio(took_s)
    return ratio if ratio is not None else inf


def _learn(calls: Sequence[CallRecord], usual: LatencyBaselines) -> None:
    """Each class learns a batch at once."""
    by_class: defaultdict[Baseline, list[float]] = defaultdict(list)
    of_all = by_class[usual.all]
    for call in calls:
        took_s, slow_s, actual = call.took_s, call.slow_at - call.began_at, call.actual_baseline
        log_s = log_of(slow_s if took_s is None or took_s > slow_s else took_s)
        of_all.append(log_s)
        by_class[call.baseline].append(log_s)
        if actual is not None and actual is not call.baseline:
            by_class[actual].append(log_s)
    for one, logs_s in by_class.items():
        one.learn(sum(logs_s), len(logs_s))
