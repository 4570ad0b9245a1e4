"""Which of a route's upstreams to try, best first, where it has weights or affinity: filter, score, pick.

Filter: those that are well (a breaker's share, an outlier's), everybody where that is nobody. Score: policy/affinity's, of
the load that one more request meets. Pick: the best score where the upstreams differ in what they know of the prompt; else
two drawn at random, the one with less load first. Where there are weights the draws go by them, and the first drawn goes
first unless it has more than twice the load of the second: shares are the weights as long as everybody keeps up.

    load_s = pace_s * (work / weight + 1)        weights are taken over their mean, so that equal ones change nothing

Source: llm-d's filter, score, pick; Envoy's weighted least request.
When wrong: with `max_load` near 1 affinity follows every noise of the loads, with a large one a popular prefix its queue.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stayfast.policy.affinity import score_s
from stayfast.policy.balance import Load, able, less_of_two, order, probes_first

if TYPE_CHECKING:
    from random import Random

KEEPS_UP = 2.0
_ONE_FIRST, _OTHER_FIRST = [0, 1], [1, 0]


def choose(loads: Sequence[Load], weights: Sequence[float], new_shares: Sequence[float], waits_s: Sequence[float], *,
           max_load: float, rng: "Random") -> list[int]:
    """The candidates' indices, best first. `weights`, `new_shares` of the prompt: by candidate, or empty if all are equal;
    `waits_s` for the first token, or empty where they are not known of all.
    """
    if len(loads) == 2 and not new_shares:
        one, other = loads
        if one.share >= 1.0 and other.share >= 1.0 and not (one.wants_probe or other.wants_probe):
            return _of_two(one, other, weights, rng) if weights else order(loads, rng)
    those = able(loads, rng)
    first = _drawn(loads, weights, those, rng)
    scores_s: list[float] = []
    if new_shares:
        scores_s = [score_s(load.seconds, new, max_load, waits_s[index] if waits_s else None)
                    for index, (load, new) in enumerate(zip(loads, new_shares, strict=True))]
        most_s = max_load * min(loads[index].seconds for index in those)
        best = min([index for index in those if loads[index].seconds <= most_s], key=scores_s.__getitem__)
        if new_shares[best] < max(new_shares[index] for index in those):
            first = best
    if len(loads) == 2:
        found = [first, 1 - first]
    else:
        is_well, scores_s = set(those), scores_s or [load.seconds for load in loads]
        found = sorted(range(len(loads)), key=lambda index: (index != first, index not in is_well, scores_s[index]))
    return probes_first(loads, found)


def weighted(load: Load, work: float, weight: float) -> Load:
    """The load of one upstream, with the work that it has taken by its weight, over the mean of all weights."""
    return Load(load.seconds * (work / weight + 1) / (work + 1), load.share, load.wants_probe)


def _of_two(one: Load, other: Load, weights: Sequence[float], rng: "Random") -> list[int]:
    """The order of two that are well."""
    weight = weights[0]
    if rng.random() * (weight + weights[1]) < weight:
        return _ONE_FIRST[:] if one.seconds <= KEEPS_UP * other.seconds else _OTHER_FIRST[:]
    return _OTHER_FIRST[:] if other.seconds <= KEEPS_UP * one.seconds else _ONE_FIRST[:]


def _drawn(loads: Sequence[Load], weights: Sequence[float], those: Sequence[int], rng: "Random") -> int:
    if len(those) == 1:
        return those[0]
    if not weights:
        return less_of_two(loads, those, rng)
    one = _by_weight(those, weights, rng)
    if len(those) == 2:
        other = those[1] if one == those[0] else those[0]
    else:
        other = _by_weight([index for index in those if index != one], weights, rng)
    return one if loads[one].seconds <= KEEPS_UP * loads[other].seconds else other


def _by_weight(those: Sequence[int], weights: Sequence[float], rng: "Random") -> int:
    """One of them; `choices` of the standard library takes four times as long for one of two."""
    whole = 0.0
    for index in those:
        whole += weights[index]
    left = rng.random() * whole if len(those) > 1 else 0.0
    for index in those:
        left -= weights[index]
        if left < 0:
            return index
    return those[-1]
