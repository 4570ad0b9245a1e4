"""When a call is judged as slow or not, so that any pattern of arrivals gives the same shares.

Problem: answers that are counted as they come are not those of the calls that were made. Right after a burst has begun only
quick ones have come; in the lull behind it only slow ones are left, and a provider with a long tail looks congested for as
long as nobody asks it. Rule: whether a call is slow is known at one instant that is fixed when it begins, and it counts
then, whether it was answered long before or still is not:

    judged_at = began_at + the time that a slow one takes      (3 times the usual, policy/resilience/baselines.py)

Calls that began together and were like each other are judged together, the unanswered ones as at least that slow. So the
calls of any stretch of time are a fair draw from what the upstream does, however they came; nothing is weighed, and nothing
is estimated. The instants are rounded up to eighths of a second, in which calls are judged in one go. Where nobody knows yet
what is slow, a call counts a second after it began, and says only whether it was refused.

What a call that was given up says: nothing, unless it was slow already, or had lost to a quicker one after so long a time
that slow is the better guess (`LOST`).
Source: ours; it is the landmark analysis of survival statistics (Anderson, Cain, Gelber, 1983), a landmark for each call.
When wrong: news are as old as a slow answer; who gives up before the landmark because it is slow takes a slow call away.
"""

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Generic, NamedTuple, TypeVar

from stayfast.policy.resilience.baselines import Norm, Usual, log_of

PER_S = 8
UNKNOWN_JUDGED_AFTER_S = 1.0
T = TypeVar("T")


class Became(Enum):
    """What became of a call."""

    WAITING = 0  # for its first token
    ANSWERED = 1
    LOST = 2  # given up for a quicker one, late enough to be taken for slow
    FAILED = 3
    REFUSED = 4  # for a quota
    NOTHING = 5  # it says nothing
    JUDGED = 6


WAITING, ANSWERED, LOST, FAILED, REFUSED, NOTHING, JUDGED = Became


class Call:
    """What is known of one call. Its owner makes it, and sets `became`, `took_s` and `real`."""

    __slots__ = ("became", "began_at", "mark", "n_beside", "norm", "real", "slow_at", "took_s")

    norm: Norm
    mark: int  # the breaker's
    n_beside: int  # calls that ran when it began, itself among them
    began_at: float
    slow_at: float  # infinite: nobody knows
    became: Became
    took_s: float | None  # until its first token, or until it lost
    real: Norm | None  # of the prompt's real size, where that came to be known

    @property
    def is_slow(self) -> bool:
        """Whether its first token had not come when a slow one does."""
        return self.took_s is None or self.took_s >= self.slow_at - self.began_at


class Wheel(Generic[T]):
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


class Tally(NamedTuple):
    """Of calls that were judged together. `samples`: ratios (or seconds; infinite: not answered), and the calls beside."""

    n: int
    n_dropped: int  # failed or refused
    n_peak: int  # the most that ran when one of them began
    samples: list[tuple[float, int]]
    n_slow: int  # of those with the mark
    n_quick: int


def of_mark(calls: Sequence[Call], mark: int) -> tuple[int, int]:
    """How many calls of this mark that are about to be judged are slow, and how many are not; none of them changes."""
    n_slow = n_quick = 0
    for call in calls:
        became = call.became
        if became is NOTHING or became is FAILED or became is REFUSED or call.slow_at == inf or call.mark != mark:
            continue
        if became is LOST or call.is_slow:
            n_slow += 1
        else:
            n_quick += 1
    return n_slow, n_quick


def tally(calls: Sequence[Call], usual: Usual | None, mark: int, *, wants_seconds: bool = False) -> Tally:
    """Judge calls, and learn from them what is `usual`, but for those of which nobody knew what is slow."""
    n = n_dropped = n_slow = n_quick = 0
    answered: list[Call] = []  # or not by now
    known: list[Call] = []
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
                if became is LOST or call.is_slow:
                    n_slow += 1
                else:
                    n_quick += 1
    if wants_seconds:
        samples = [(inf if call.took_s is None else call.took_s, call.n_beside) for call in answered]
    else:
        samples = [(inf if call.took_s is None else _ratio(call, call.took_s), call.n_beside) for call in known]
    if usual is not None:
        _learn(known, usual)
    n_peak = max([call.n_beside for call in calls], default=0)
    return Tally(n, n_dropped, n_peak, samples, n_slow, n_quick)


def _ratio(call: Call, took_s: float) -> float:
    ratio = call.real.ratio(took_s) if call.real is not None else None
    if ratio is None:
        ratio = call.norm.ratio(took_s)
    return ratio if ratio is not None else inf


def _learn(calls: Sequence[Call], usual: Usual) -> None:
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
