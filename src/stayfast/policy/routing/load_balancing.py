"""Load balancing: the order in which a route's upstreams are tried.

Problem: if all gateways choose the least loaded upstream by stale numbers, they choose the same one. Rule: power of two
choices over the peak-EWMA of the time to first token. Of the healthy upstreams two are drawn at random, and the one with
less load goes first. A slower sample replaces the pace at once, which then decays to its usual value, to a third in 10 s:

    load_s = pace_s * (n_in_flight + backlog + 1)
    pace_s = usual_s + (pace_s - usual_s) e^(-t/10)
    backlog = sum of min(tokens / usual tokens, 100) - 1 of calls without a first token whose prompts are longer than usual

A failure counts as a sample of twice the pace, or a failing upstream would look fast. An unknown upstream gets one request
at a time; if that ends without an answer, others go first for about 10 s. Unhealthy upstreams (an open breaker, a
Retry-After, a refused key, an unknown model) come last but are never removed. A recovering one counts as healthy for a share
of the requests. An upstream that needs a probe goes first for that one request.

With affinity, the cost of each upstream decides (policy/routing/replica_cost.py). With weights, two are drawn by weight, and
the first goes first unless it has more than twice the load of the second. Weights are relative to their mean:

    load_s = pace_s * (work / weight + 1)

Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001); Finagle's and tower's peak EWMA;
llm-d's filter, score, pick; Envoy's weighted least request.
When wrong: one answer of a heavy tail makes its upstream look slow for seconds; each of several gateways sees only its own
requests.
"""

from collections.abc import Callable, Sequence
from math import exp, log

from msgspec import Struct

from stayfast.core.clock import Rng

DECAY_S = 10.0
UNKNOWN_S = 1.0  # the pace until one is known
FAILED_FACTOR = 2.0
MAX_WORK = 100.0  # requests that one long prompt counts as
USUAL_LEARNS = 0.05
MOST_S = 60.0  # after failures, which would otherwise double the pace without bound


class CandidateLoad(Struct, frozen=True, gc=False):
    """The state of one candidate. `share`: the share of requests that may prefer it."""

    seconds: float
    share: float = 1.0
    needs_probe: bool = False


class LatencyEstimate:
    """The peak-EWMA of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0  # 0: not known yet
        self._at = 0.0  # of the last sample; before the first, of the last call without one

    def add_sample(self, seconds: float, usual_s: float, now: float) -> None:
        """A first token arrived after `seconds`, scaled to a typical prompt."""
        fallen_s = self._pace_s(usual_s, now)
        if seconds < fallen_s:
            seconds = fallen_s + (seconds - fallen_s) * (1 - exp((self._at - now) / DECAY_S))
        self._seconds, self._at = seconds, now

    def add_lower_bound(self, seconds: float, usual_s: float, now: float) -> None:
        """A call without a first token after `seconds` was cancelled for a faster one: a lower bound."""
        if seconds > self._pace_s(usual_s, now):
            self._seconds, self._at = seconds, now

    def record_failure(self, usual_s: float, now: float) -> None:
        self.add_sample(min(MOST_S, FAILED_FACTOR * (self._pace_s(usual_s, now) or UNKNOWN_S)), usual_s, now)

    def record_unanswered(self, now: float) -> None:
        """A call ended without information about the time."""
        if not self._seconds:
            self._at = now

    def load_s(self, n_in_flight: float, usual_s: float, now: float) -> float:
        if not self._seconds:
            return UNKNOWN_S * (n_in_flight + (exp((self._at - now) / DECAY_S) if self._at else 0.0))
        return self._pace_s(usual_s, now) * (n_in_flight + 1)

    def _pace_s(self, usual_s: float, now: float) -> float:
        if self._seconds <= usual_s:
            return self._seconds
        return usual_s + (self._seconds - usual_s) * exp((self._at - now) / DECAY_S)

    def __repr__(self) -> str:
        return f"<LatencyEstimate {self._seconds:.3g} s>"


class PrefillBacklog:
    """Prompts that wait for their prefill at one upstream, as extra requests. Changed only by its owner."""

    __slots__ = ("_usual", "work")

    def __init__(self) -> None:
        self.work = 0.0
        self._usual = 0.0  # logarithm of a typical prompt's tokens; 0: not known yet

    def start_call(self, n_tokens: float) -> float:
        """Start a call; returns the extra requests that it counts as, until its first token."""
        size = log(max(2.0, n_tokens))
        self._usual += (size - self._usual) * USUAL_LEARNS if self._usual else size
        if size <= self._usual:
            return 0.0
        work = min(exp(size - self._usual), MAX_WORK) - 1.0
        self.work += work
        return work

    def end_prefill(self, work: float) -> None:
        self.work = max(0.0, self.work - work)


def order_as_listed(loads: Sequence[CandidateLoad], rng: Rng) -> list[int]:
    """The candidates' indices in the listed order, unhealthy ones last: a preferred upstream and its fallbacks."""
    healthy = select_healthy(loads, rng)
    return sorted(range(len(loads)), key=lambda index: (not loads[index].needs_probe, index not in healthy))


def order_by_load(loads: Sequence[CandidateLoad], rng: Rng) -> list[int]:
    """The candidates' indices, best first."""
    n = len(loads)
    if n < 2:
        return list(range(n))
    healthy = select_healthy(loads, rng)
    first = draw_less_loaded(loads, healthy, rng)
    found = sorted(range(n), key=lambda index: (index != first, index not in healthy, loads[index].seconds))
    return move_probe_first(loads, found)


def draw_less_loaded(loads: Sequence[CandidateLoad], indices: Sequence[int], rng: Rng) -> int:
    """The less loaded of two candidates drawn at random. `Random.sample` draws the same, in four times the time."""
    n, getrandbits = len(indices), rng.getrandbits
    one_at = _random_below(n, getrandbits)
    one = indices[one_at]
    if n == 1:
        return one
    other_at = _random_below(n - 1, getrandbits)
    other = indices[n - 1 if other_at == one_at else other_at]
    return one if loads[one].seconds <= loads[other].seconds else other


def _random_below(n: int, getrandbits: Callable[[int], int]) -> int:
    n_bits = n.bit_length()
    drawn = getrandbits(n_bits)
    while drawn >= n:
        drawn = getrandbits(n_bits)
    return drawn


def move_probe_first(loads: Sequence[CandidateLoad], found: list[int]) -> list[int]:
    """The same order, with a candidate that needs a probe first."""
    for index, load in enumerate(loads):
        if load.needs_probe:
            found.remove(index)
            return [index, *found]
    return found


def select_healthy(loads: Sequence[CandidateLoad], rng: Rng) -> list[int]:
    """The candidates that this request may prefer; all, if there are none."""
    healthy = [index for index, load in enumerate(loads)
               if load.share >= 1.0 or (load.share > 0 and rng.random() < load.share)]
    return healthy or [index for index, load in enumerate(loads) if load.share > 0] or list(range(len(loads)))


KEEPS_UP = 2.0


def order_by_weight(loads: Sequence[CandidateLoad], weights: Sequence[float], rng: Rng) -> list[int]:
    """The candidates' indices, best first. weights: by candidate, or empty if all are equal."""
    indices = select_healthy(loads, rng)
    first, is_healthy = _draw_first(loads, weights, indices, rng), set(indices)
    found = sorted(range(len(loads)), key=lambda index: (index != first, index not in is_healthy, loads[index].seconds))
    return move_probe_first(loads, found)


def weigh_load(load: CandidateLoad, work: float, weight: float) -> CandidateLoad:
    """The load with the upstream's work divided by its weight, which is relative to the mean of all weights."""
    return CandidateLoad(load.seconds * (work / weight + 1) / (work + 1), load.share, load.needs_probe)


def _draw_first(loads: Sequence[CandidateLoad], weights: Sequence[float], indices: Sequence[int], rng: Rng) -> int:
    if len(indices) == 1:
        return indices[0]
    if not weights:
        return draw_less_loaded(loads, indices, rng)
    one = _draw_by_weight(indices, weights, rng)
    if len(indices) == 2:
        other = indices[1] if one == indices[0] else indices[0]
    else:
        other = _draw_by_weight([index for index in indices if index != one], weights, rng)
    return one if loads[one].seconds <= KEEPS_UP * loads[other].seconds else other


def _draw_by_weight(indices: Sequence[int], weights: Sequence[float], rng: Rng) -> int:
    """A random index by weight. The standard library's `choices` takes four times as long for two."""
    whole = 0.0
    for index in indices:
        whole += weights[index]
    left = rng.random() * whole if len(indices) > 1 else 0.0
    for index in indices:
        left -= weights[index]
        if left < 0:
            return index
    return indices[-1]
