"""Which tier answers a request: the smallest that is enough and that fits the time that is left.

Problem: always the largest model is slow and dear; always the smallest is wrong too often; and a large model that does not
answer before the deadline answers nobody. Rule: tiers with the same model have the same skill; their service tiers are
speeds. From the tier that is enough, they are preferred in this order:

    1. the tier itself                  2. faster service tiers of the same skill, the cheapest first
    3. larger skills, the next first    4. smaller skills, the next first (where the route allows it)
    5. slower service tiers of the same skill

The first one that fits is taken: its predicted end is within the time that is left, and its predicted first token within the
time to the start of the answer. Tiers that cannot be called now (breakers, full, over quota) come after all others. If none
fits, one without a prediction is tried; else the one that ends first: a late answer is better than none.
A tier without a prediction (few or old samples) is explored if it is the preferred one, if the first tier that fits would
still fit in EXPLORED_SHARE of the time, and if no other request explores it: the call leaves it in time for that one
(`reserve_s`), so that exploring costs no deadline.
Source: own rule. The cascade of FrugalGPT (Chen, Zaharia, Zou 2023) has no time; FlexInference has a time to the start only.
When wrong: predictions are of answers that came, so a tier that became slow in the last seconds is still chosen until
attempts are given up there.
"""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from stayfast.policy.tiers.speed import SpeedPrediction

EXPLORED_SHARE: Final = 0.5
UNKNOWN_SHARE: Final = 0.5  # of the time, left for a next tier whose speed is not known
LEAST_SHARE: Final = 0.25  # of its own predicted time; a tier that fits and would be left earlier is not left at all
MARGIN_FACTOR: Final = 1.1
MARGIN_S: Final = 0.02
START, FASTER, LARGER, SMALLER, SLOWER = "start", "faster", "larger", "smaller", "slower"


class TierOption(NamedTuple):
    """One tier as it is now. skill: 0 is the smallest; speed: 0 is the slowest. pressure: why it cannot be called; empty: it
    can.
    """

    name: str
    skill: int
    speed: int
    prediction: SpeedPrediction | None = None
    pressure: str = ""


class TimeLeft(NamedTuple):
    """Seconds from now to the deadline, and to the latest start of the answer (infinite: no limit of its own)."""

    end_s: float
    first_s: float = inf


class TierChoice(NamedTuple):
    """at: the tier to call first; then: the tiers to try after it, best first. fits: None: not known. relation: of that tier
    to the one that is enough.
    """

    at: int
    then: tuple[int, ...]
    fits: bool | None
    relation: str
    is_exploring: bool = False


def order_tiers(options: Sequence[TierOption], start: int, *, down: bool) -> list[int]:
    """All usable tiers, the preferred one first. start: the tier that is enough. down: smaller skills may be used."""
    own = options[start]
    ranks: list[tuple[tuple[int, int, int], int]] = []
    for n, option in enumerate(options):
        if n == start:
            rank = (0, 0, 0)
        elif option.skill == own.skill:
            rank = (1, 0, option.speed) if option.speed > own.speed else (4, 0, -option.speed)
        elif option.skill > own.skill:
            rank = (2, option.skill, option.speed)
        elif down:
            rank = (3, -option.skill, option.speed)
        else:
            continue
        ranks.append((rank, n))
    return [n for _, n in sorted(ranks)]


def relation_of(option: TierOption, own: TierOption) -> str:
    """How a tier differs from the one that is enough."""
    if option.skill != own.skill:
        return LARGER if option.skill > own.skill else SMALLER
    if option.speed == own.speed:
        return START
    return FASTER if option.speed > own.speed else SLOWER


def fits(option: TierOption, left: TimeLeft) -> bool | None:
    """Whether it is predicted to answer in time; None: not known."""
    if option.prediction is None:
        return None
    return option.prediction.end_s <= left.end_s and option.prediction.first_s <= left.first_s


def choose_tier(options: Sequence[TierOption], start: int, left: TimeLeft, *, down: bool, may_explore: bool) -> TierChoice:
    """The tier for a request of which `options[start]` is enough. may_explore: no other request explores that tier now."""
    order = order_tiers(options, start, down=down)
    ready = [n for n in order if not options[n].pressure] or order
    known = {n: fits(options[n], left) for n in ready}
    best = next((n for n in ready if known[n]), None)
    at, is_exploring = best, False
    if best is None:
        at = next((n for n in ready if known[n] is None), None)
        if at is None:
            at = min(ready, key=lambda n: _end_s(options[n]))
    elif known[ready[0]] is None and may_explore and fits(options[best], _part_of(left, EXPLORED_SHARE)):
        at, is_exploring = ready[0], True
    assert at is not None
    then = sorted((n for n in order if n != at),
                  key=lambda n: (options[n].pressure != "", _doubt(known.get(n, fits(options[n], left))), order.index(n)))
    return TierChoice(at, tuple(then), known[at], relation_of(options[at], options[start]), is_exploring)


def reserve_s(own: TierOption, following: TierOption, left: TimeLeft) -> TimeLeft:
    """How long before the end, and before the latest start, an attempt at `own` is left for the following tier. 0: never."""
    found = fits(following, left)
    if fits(own, left) and found and following.prediction is not None and own.prediction is not None and (
            left.end_s - with_margin_s(following.prediction.end_s) < LEAST_SHARE * own.prediction.end_s):
        return TimeLeft(0.0, 0.0)  # it would be left before it could answer
    if found is None:
        return TimeLeft(left.end_s * UNKNOWN_SHARE, left.first_s * UNKNOWN_SHARE if left.first_s < inf else 0.0)
    if not found or following.prediction is None:
        return TimeLeft(0.0, 0.0)
    return TimeLeft(with_margin_s(following.prediction.end_s), with_margin_s(following.prediction.first_s))


def with_margin_s(predicted_s: float) -> float:
    """The time that is left for a predicted one: timers are late, and answers at the limit are too late."""
    return predicted_s * MARGIN_FACTOR + MARGIN_S


def _end_s(option: TierOption) -> float:
    return option.prediction.end_s if option.prediction is not None else inf


def _part_of(left: TimeLeft, share: float) -> TimeLeft:
    return TimeLeft(left.end_s * share, left.first_s * share)


def _doubt(found: bool | None) -> int:
    return 1 if found is None else 0 if found else 2
