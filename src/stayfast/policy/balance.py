"""Which of a route's upstreams to try, best first.

Problem: sending to the least loaded of many by stale numbers makes all gateways pick the same one at once. Rule: power of
two choices. Two candidates are drawn at random, the one with fewer requests in flight goes first; upstreams whose last
attempts all failed stand behind the healthy ones, but are never taken out: the last one standing is still tried.

    score = (is_failing, n_in_flight)          lower is better; ties fall to the order of the draw

Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
When wrong: requests differ a hundredfold in work, so in-flight counts are a poor measure of load for mixed prompts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random


class Load(NamedTuple):
    """What is known of one candidate at this moment."""

    is_failing: bool
    n_in_flight: int


def in_turn(loads: Sequence[Load]) -> list[int]:
    """The candidates' indices as listed, the failing ones behind the healthy: a preferred upstream and its fallbacks."""
    return sorted(range(len(loads)), key=lambda index: loads[index].is_failing)


def order(loads: Sequence[Load], rng: "Random") -> list[int]:
    """The candidates' indices, best first. One candidate costs nothing; an empty list gives an empty list."""
    n = len(loads)
    if n < 2:
        return list(range(n))
    healthy = [index for index in range(n) if not loads[index].is_failing] or list(range(n))
    drawn = rng.sample(healthy, min(2, len(healthy)))
    first = min(drawn, key=loads.__getitem__)
    rest = sorted((index for index in range(n) if index != first), key=loads.__getitem__)
    return [first, *rest]
