"""Which of a route's upstreams to try, best first.

Problem: sending to the least loaded of many by stale numbers makes all gateways pick the same one at once; and what an
upstream takes for a first token says more of its load than how many requests it has. Rule: power of two choices over the
peak-EWMA of the time to the first token. Of the upstreams that are well two are drawn at random, the one with less load
goes first. A slower sample is its pace at once, which then falls back to what is usual there, in 10 s to a third:

    load_s = pace_s * (n_in_flight + backlog + 1)
    pace_s = usual_s + (pace_s - usual_s) e^(-t/10)
    backlog = sum of min(tokens / usual tokens, 100) - 1 of calls without a first token whose prompts are longer than usual

A prompt that an engine has yet to read counts as as many requests as it is long; where prompts are alike that is nothing.
A failure counts as a sample of twice the pace, or it would look quick. An upstream of which nothing is known gets one
request at a time; where that ended without an answer, others go first, for about 10 s. Those that are not well (an open
breaker, a Retry-After, a refused key, a model that is not there) stand behind, but are never taken out: the last one
standing is tried. One that is coming back is well for a share of the requests only. An upstream that wants a probe goes
first, for that one request.
Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001); Finagle's and tower's peak EWMA.
When wrong: one answer of a heavy tail makes its upstream look slow for seconds; with many gateways each sees its own
requests in flight only. Providers that read long prompts beside short ones are spared for nothing for some seconds.

With weights or affinity it is filter, score, pick. Filter: those that are well (a breaker's share, an outlier's), everybody
where that is nobody. Score: policy/affinity's, of the load that one more request meets. Pick: the best score where the
upstreams differ in what they know of the prompt; else two drawn at random, the one with less load first. Where there are
weights the draws go by them, and the first drawn goes first unless it has more than twice the load of the second: shares
are the weights as long as everybody keeps up.

    load_s = pace_s * (work / weight + 1)        weights are taken over their mean, so that equal ones change nothing

Source: llm-d's filter, score, pick; Envoy's weighted least request.
When wrong: with `max_load` near 1 affinity follows every noise of the loads, with a large one a popular prefix its queue.
"""

from collections.abc import Callable, Sequence
from math import exp, log

from msgspec import Struct

from stayfast.core.clock import Rng
from stayfast.policy.routing.affinity import score_s

DECAY_S = 10.0
UNKNOWN_S = 1.0  # a pace, times the requests in flight, until one is known
FAILED_FACTOR = 2.0
MAX_WORK = 100.0  # requests that one long prompt counts for
USUAL_LEARNS = 0.05
MOST_S = 60.0  # by failures: a storm of them would double it to infinity, from which nothing comes back


class CandidateLoad(Struct, frozen=True, gc=False):
    """What is known of one candidate at this moment. `share`: of the requests that it may be preferred for."""

    seconds: float
    share: float = 1.0
    wants_probe: bool = False


class LatencyEstimate:
    """The peak-EWMA of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0  # nothing is known
        self._at = 0.0  # of the last sample; of the last call in vain while nothing is known

    def took(self, seconds: float, usual_s: float, now: float) -> None:
        """A first token came after so long, for a prompt like most."""
        fallen_s = self._at_now(usual_s, now)
        if seconds < fallen_s:
            seconds = fallen_s + (seconds - fallen_s) * (1 - exp((self._at - now) / DECAY_S))
        self._seconds, self._at = seconds, now

    def outlasted(self, seconds: float, usual_s: float, now: float) -> None:
        """A first token had not come after so long, and somebody else was quicker: it took at least that."""
        if seconds > self._at_now(usual_s, now):
            self._seconds, self._at = seconds, now

    def failed(self, usual_s: float, now: float) -> None:
        """An attempt failed, which may have been quick."""
        self.took(min(MOST_S, FAILED_FACTOR * (self._at_now(usual_s, now) or UNKNOWN_S)), usual_s, now)

    def vain(self, now: float) -> None:
        """A call ended that says nothing of the time."""
        if not self._seconds:
            self._at = now

    def load_s(self, n_in_flight: float, usual_s: float, now: float) -> float:
        """What one more request meets."""
        pace_s = self._seconds
        if not pace_s:
            return UNKNOWN_S * (n_in_flight + (exp((self._at - now) / DECAY_S) if self._at else 0.0))
        if pace_s > usual_s:
            pace_s = usual_s + (pace_s - usual_s) * exp((self._at - now) / DECAY_S)
        return pace_s * (n_in_flight + 1)

    def _at_now(self, usual_s: float, now: float) -> float:
        if self._seconds <= usual_s:
            return self._seconds
        return usual_s + (self._seconds - usual_s) * exp((self._at - now) / DECAY_S)

    def __repr__(self) -> str:
        return f"<LatencyEstimate {self._seconds:.3g} s>"


class PrefillBacklog:
    """Prompts that one upstream has yet to read, as requests beyond those that are counted. Changed only by its owner."""

    __slots__ = ("_usual", "work")

    def __init__(self) -> None:
        self.work = 0.0
        self._usual = 0.0  # the logarithm of a usual prompt's tokens; 0: none is known

    def began(self, n_tokens: float) -> float:
        """A call begins; how much more than one request it counts for, until its first token."""
        size = log(max(2.0, n_tokens))
        self._usual += (size - self._usual) * USUAL_LEARNS if self._usual else size
        if size <= self._usual:
            return 0.0
        work = min(exp(size - self._usual), MAX_WORK) - 1.0
        self.work += work
        return work

    def ended(self, work: float) -> None:
        """It waits no longer for a first token."""
        self.work = max(0.0, self.work - work)


def in_turn(loads: Sequence[CandidateLoad], rng: Rng) -> list[int]:
    """The candidates' indices as listed, those that are not well behind: a preferred upstream and its fallbacks."""
    well = able(loads, rng)
    return sorted(range(len(loads)), key=lambda index: (not loads[index].wants_probe, index not in well))


def order(loads: Sequence[CandidateLoad], rng: Rng) -> list[int]:
    """The candidates' indices, best first. One candidate costs nothing; an empty list gives an empty list."""
    n = len(loads)
    if n < 2:
        return list(range(n))
    well = able(loads, rng)
    first = less_of_two(loads, well, rng)
    if n == 2:
        found = [first, 1 - first]
    else:
        rest = sorted((index for index in range(n) if index != first),
                      key=lambda index: (index not in well, loads[index].seconds))
        found = [first, *rest]
    return probes_first(loads, found)


def less_of_two(loads: Sequence[CandidateLoad], indices: Sequence[int], rng: Rng) -> int:
    """Of two of those, drawn at random, the one with less load. `Random.sample` draws the same, in four times the time."""
    n, getrandbits = len(indices), rng.getrandbits
    one_at = _below(n, getrandbits)
    one = indices[one_at]
    if n == 1:
        return one
    other_at = _below(n - 1, getrandbits)
    other = indices[n - 1 if other_at == one_at else other_at]
    return one if loads[one].seconds <= loads[other].seconds else other


def _below(n: int, getrandbits: Callable[[int], int]) -> int:
    n_bits = n.bit_length()
    drawn = getrandbits(n_bits)
    while drawn >= n:
        drawn = getrandbits(n_bits)
    return drawn


def probes_first(loads: Sequence[CandidateLoad], found: list[int]) -> list[int]:
    """The same order, but for the one that wants a probe."""
    for index, load in enumerate(loads):
        if load.wants_probe:
            found.remove(index)
            return [index, *found]
    return found


def able(loads: Sequence[CandidateLoad], rng: Rng) -> list[int]:
    """Those that this request may prefer; everybody where that is nobody."""
    for load in loads:
        if load.share < 1.0:
            break
    else:
        return list(range(len(loads)))
    well = [index for index, load in enumerate(loads) if load.share >= 1.0 or (load.share > 0 and rng.random() < load.share)]
    return (well or [index for index, load in enumerate(loads) if load.share > 0] or list(range(len(loads))))


KEEPS_UP = 2.0
_ONE_FIRST, _OTHER_FIRST = [0, 1], [1, 0]


def choose(loads: Sequence[CandidateLoad], weights: Sequence[float], new_shares: Sequence[float], waits_s: Sequence[float],
           *,
           max_load: float, rng: Rng) -> list[int]:
    """The candidates' indices, best first. `weights`, `new_shares` of the prompt: by candidate, or empty if all are equal;
    `waits_s` for the first token, or empty where they are not known of all.
    """
    if len(loads) == 2 and not new_shares:
        one, other = loads
        if one.share >= 1.0 and other.share >= 1.0 and not (one.wants_probe or other.wants_probe):
            return _of_two(one, other, weights, rng) if weights else order(loads, rng)
    indices = able(loads, rng)
    first = _drawn(loads, weights, indices, rng)
    scores_s: list[float] = []
    if new_shares:
        scores_s = [score_s(load.seconds, new, max_load, waits_s[index] if waits_s else None)
                    for index, (load, new) in enumerate(zip(loads, new_shares, strict=True))]
        most_s = max_load * min(loads[index].seconds for index in indices)
        best = min([index for index in indices if loads[index].seconds <= most_s], key=scores_s.__getitem__)
        if new_shares[best] < max(new_shares[index] for index in indices):
            first = best
    if len(loads) == 2:
        found = [first, 1 - first]
    else:
        is_well, scores_s = set(indices), scores_s or [load.seconds for load in loads]
        found = sorted(range(len(loads)), key=lambda index: (index != first, index not in is_well, scores_s[index]))
    return probes_first(loads, found)


def weighted(load: CandidateLoad, work: float, weight: float) -> CandidateLoad:
    """The load of one upstream, with the work that it has taken by its weight, over the mean of all weights."""
    return CandidateLoad(load.seconds * (work / weight + 1) / (work + 1), load.share, load.wants_probe)


def _of_two(one: CandidateLoad, other: CandidateLoad, weights: Sequence[float], rng: Rng) -> list[int]:
    """The order of two that are well."""
    weight = weights[0]
    if rng.random() * (weight + weights[1]) < weight:
        return _ONE_FIRST[:] if one.seconds <= KEEPS_UP * other.seconds else _OTHER_FIRST[:]
    return _OTHER_FIRST[:] if other.seconds <= KEEPS_UP * one.seconds else _ONE_FIRST[:]


def _drawn(loads: Sequence[CandidateLoad], weights: Sequence[float], indices: Sequence[int], rng: Rng) -> int:
    if len(indices) == 1:
        return indices[0]
    if not weights:
        return less_of_two(loads, indices, rng)
    one = _by_weight(indices, weights, rng)
    if len(indices) == 2:
        other = indices[1] if one == indices[0] else indices[0]
    else:
        other = _by_weight([index for index in indices if index != one], weights, rng)
    return one if loads[one].seconds <= KEEPS_UP * loads[other].seconds else other


def _by_weight(indices: Sequence[int], weights: Sequence[float], rng: Rng) -> int:
    """One of them; `choices` of the standard library takes four times as long for one of two."""
    whole = 0.0
    for index in indices:
        whole += weights[index]
    left = rng.random() * whole if len(indices) > 1 else 0.0
    for index in indices:
        left -= weights[index]
        if left < 0:
            return index
    return indices[-1]
