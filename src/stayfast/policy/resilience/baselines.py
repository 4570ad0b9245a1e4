"""How long a first token usually takes, so that "slow" means something for short and for long prompts alike, and when a call
is judged as slow, so that any pattern of arrivals gives the same shares.

Problem: times to the first token of one upstream differ a hundredfold by prompt and model, so neither their mean nor a
constant says whether one of them was slow. Rule: times are compared within their class (model, streamed or whole, prompt
tokens to a power of two), as ratios to the long geometric mean of that class:

    long += (ln(ttft_s) - long) / min(n, 600)         ratio = (ttft_s + 0.05) / (exp(long) + 0.05)

A ratio of 1 is usual, whatever was asked. A class says nothing before it has 10 answers, and those to three of four of its
calls: the first ten answers to a burst are its ten quickest. From then on its calls are learned when they are judged, at
most as what is slow, in the order in which they began: not in the order of their answers. The 50 ms that are added to both
keep an upstream that answers in a millisecond from being slow when this machine was busy for two. Prompt tokens are the
uncached ones where the upstream has told them by then, else a quarter of the request's bytes.

Problem: answers that are counted as they come are not those of the calls that were made. Right after a burst has begun only
quick ones have come; in the lull behind it only slow ones are left, and a provider with a long tail looks congested for as
long as nobody asks it. Rule: whether a call is slow is known at one instant that is fixed when it begins, and it counts
then, whether it was answered long before or still is not:

    judged_at = began_at + the time that a slow one takes      (3 times the usual)

Calls that began together and were like each other are judged together, the unanswered ones as at least that slow. So the
calls of any stretch of time are a fair draw from what the upstream does, however they came; nothing is weighed, and nothing
is estimated. The instants are rounded up to eighths of a second, in which calls are judged in one go. Where nobody knows yet
what is slow, a call counts a second after it began, and says only whether it was refused. A call whose client left before
its first token and before it was judged says nothing, unless it was slow already at ordinary concurrency
(policy/resilience/queueing.py); one that was given up for a quicker one, only where it lost after so long that slow is the
better guess (`LOST`).

Source: the long window of Netflix's Gradient2; the logarithm is ours: one answer of the tail moves a mean, not this. The
landmark analysis of survival statistics (Anderson, Cain, Gelber, 1983), here with a landmark for each call.
When wrong: a slow drift is learned and so never seen; a whole answer takes as long as it is long, which its prompt does not
tell; news are as old as a slow answer; who gives up before the landmark because it is slow takes a slow call away.
"""

from collections.abc import Sequence
from enum import Enum
from math import exp, inf, log
from typing import Generic, NamedTuple, TypeVar

from stayfast.policy.prompt_tokens import PromptTokens

N_LONG = 600
N_WARM = 10
WARM_SHARE = 0.75
MAX_CLASSES = 500  # model names can be the clients' own; the class that was first seen goes first
PADDING_S = 0.05
_LEAST_S = 1e-4
_LEAST_LOG = log(_LEAST_S)


def log_of(seconds: float) -> float:
    """The logarithm of a time, as it is learned."""
    return log(seconds) if seconds > _LEAST_S else _LEAST_LOG


class Baseline:
    """What is usual in one class, or over all. Pure state; changed only by its owner."""

    __slots__ = ("_long", "_n", "baseline_s", "n_unknown")

    def __init__(self) -> None:
        self._n = 0
        self.n_unknown = 0  # calls that began before it was known and still wait
        self._long = 0.0
        self.baseline_s = 0.0  # about what a first token takes; 0 before that is known

    def learn(self, log_s: float, n: int = 1) -> None:
        """The logarithm of one time to a first token, or the sum of `n` of them."""
        self._n = n_all = self._n + n
        self._long += (log_s - n * self._long) / max(n, min(N_LONG, n_all))
        if self.baseline_s or (n_all >= N_WARM and n_all >= WARM_SHARE * (n_all + self.n_unknown)):
            self.baseline_s = exp(self._long)

    def ratio(self, ttft_s: float) -> float | None:
        """A time to the first token over what is usual; None before that is known."""
        usual_s = self.baseline_s
        return (ttft_s + PADDING_S) / (usual_s + PADDING_S) if usual_s else None

    def after_s(self, ratio: float) -> float:
        """The time to the first token that has this ratio; infinite before it is known."""
        usual_s = self.baseline_s
        return ratio * (usual_s + PADDING_S) - PADDING_S if usual_s else inf


class LatencyBaselines:
    """Of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_by_class", "all", "prompt_tokens")

    def __init__(self) -> None:
        self._by_class: dict[tuple[str, bool, int], Baseline] = {}
        self.all = Baseline()
        self.prompt_tokens = PromptTokens()

    def norm(self, model: str, n_tokens: int, is_whole: bool) -> Baseline:
        """The class of a prompt of so many tokens; `is_whole`: its first token comes with its last."""
        key = (model, is_whole, n_tokens.bit_length())
        found = self._by_class.get(key)
        if found is None:
            if len(self._by_class) >= MAX_CLASSES:
                del self._by_class[next(iter(self._by_class))]
            self._by_class[key] = found = Baseline()
        return found

    def learn(self, norm: Baseline, log_s: float, n: int = 1) -> None:
        """The logarithm of one time to a first token of this class, or the sum of `n` of them."""
        norm.learn(log_s, n)
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
    LOST = 2  # given up for a quicker one, late enough to be taken for slow
    FAILED = 3
    REFUSED = 4  # for a quota
    NOTHING = 5  # it says nothing
    JUDGED = 6


WAITING, ANSWERED, LOST, FAILED, REFUSED, NOTHING, JUDGED = CallVerdict


class CallRecord:
    """What is known of one call. Its owner makes it, and sets `became`, `took_s` and `real`."""

    __slots__ = ("became", "began_at", "is_queued", "mark", "n_concurrent", "norm", "real", "slow_at", "took_s")

    norm: Baseline
    mark: int  # the breaker's
    n_concurrent: int  # calls that ran when it began, itself among them
    began_at: float
    slow_at: float  # infinite: nobody knows
    became: CallVerdict
    took_s: float | None  # until its first token, or until it lost
    real: Baseline | None  # of the prompt's real size, where that came to be known
    is_queued: bool  # it was slow for our own load: no evidence against the upstream (policy/resilience/queueing.py)

    @property
    def is_slow(self) -> bool:
        """Whether its first token had not come when a slow one does."""
        return self.took_s is None or self.took_s >= self.slow_at - self.began_at


class DueBuckets(Generic[T]):
    """What is to be looked at when. Instants are seconds; one owner's."""

    __slots__ = ("_slots", "next_at")

    def __init__(self) -> None:
        self._slots: dict[int, list[T]] = {}
        self.next_at = inf  # nothing is due before

    def add(self, item: T, at: float) -> None:
        """It is due at the end of the eighth of a second in which `at` lies."""
        slot = int(at * PER_S) + 1
        found = self._slots.get(slot)
        if found is not None:
            found.append(item)
            return
        self._slots[slot] = [item]
        if slot < self.next_at * PER_S:
            self.next_at = slot / PER_S

    def due(self, now: float) -> list[tuple[float, list[T]]]:
        """What is due by now, oldest first, and since when."""
        slots = self._slots
        found = [(slot / PER_S, slots.pop(slot)) for slot in sorted(slots) if slot <= now * PER_S]
        self.next_at = min(slots) / PER_S if slots else inf
        return found


class CallTally(NamedTuple):
    """Of calls that were judged together. `samples`: ratios (or seconds; infinite: not answered), and the calls beside."""

    n: int
    n_dropped: int  # failed or refused
    n_peak: int  # the most that ran when one of them began
    samples: list[tuple[float, int]]
    n_slow: int  # of those with the mark that did not queue behind others
    n_quick: int


def of_mark(calls: Sequence[CallRecord], mark: int) -> tuple[int, int]:
    """How many calls of this mark that are about to be judged are slow, and how many are not; none of them changes. Those
    that queued are neither.
    """
    n_slow = n_quick = 0
    for call in calls:
        became = call.became
        if became is NOTHING or became is FAILED or became is REFUSED or call.slow_at == inf or call.mark != mark:
            continue
        if became is not LOST and not call.is_slow:
            n_quick += 1
        elif not call.is_queued:
            n_slow += 1
    return n_slow, n_quick


def classify(calls: Sequence[CallRecord], usual: LatencyBaselines | None, mark: int, *,
             wants_seconds: bool = False) -> CallTally:
    """Judge calls, and learn from them what is `usual`, but for those of which nobody knew what is slow."""
    n = n_dropped = n_slow = n_quick = 0
    answered: list[CallRecord] = []  # or not by now
    known: list[CallRecord] = []
    for call in calls:
        became, call.became = call.became, JUDGED
        if became is NOTHING:
            continue
        n += 1
        if became is FAILED or became is REFUSED:
            n_dropped += 1
            continue
        answered.append(call)
        if call.slow_at < inf:
            known.append(call)
            if call.mark == mark:
                if became is not LOST and not call.is_slow:
                    n_quick += 1
                elif not call.is_queued:
                    n_slow += 1
    if wants_seconds:
        samples = [(inf if call.took_s is None else call.took_s, call.n_concurrent) for call in answered]
    else:
        samples = [(inf if call.took_s is None else _ratio(call, call.took_s), call.n_concurrent) for call in known]
    if usual is not None:
        _learn(known, usual)
    return CallTally(n, n_dropped, max([call.n_concurrent for call in calls], default=0), samples, n_slow, n_quick)


def _ratio(call: CallRecord, took_s: float) -> float:
    ratio = call.real.ratio(took_s) if call.real is not None else None
    if ratio is None:
        ratio = call.norm.ratio(took_s)
    return ratio if ratio is not None else inf


def _learn(calls: Sequence[CallRecord], usual: LatencyBaselines) -> None:
    norm, n, log_s = None, 0, 0.0
    for call in calls:
        if call.norm is not norm:
            if norm is not None:
                usual.learn(norm, log_s, n)
            norm, n, log_s = call.norm, 0, 0.0
        took_s, slow_s = call.took_s, call.slow_at - call.began_at
        log_one = log_of(slow_s if took_s is None or took_s > slow_s else took_s)
        n += 1
        log_s += log_one
        if call.real is not None and call.real is not norm:
            call.real.learn(log_one)
    if norm is not None:
        usual.learn(norm, log_s, n)
