"""Which arm answers a request at one engine: no speculation, n-grams, or a draft model.

Problem: an accepted share of 90 % may still be slower than plain decoding, as a check has fixed costs; at a full batch the
engine computes guesses instead of other answers. Rule: the reward is the speed of decoding, tokens a second of one answer.
Each route and each batch (powers of two of what is in flight) is a cell with its own evidence:

    sample     of a try: d = mean ln(its speeds) - median ln(speed of the arm in use, its last LEVEL_SPAN answers). Speeds of
               another hour, or of another load, are never compared. If the arm in use speculates, its median d is added
    interval   of the median of the last SPAN samples, none older than MAX_AGE_S: 95 %, by order statistics, because other
               work on the machine slows some answers down many times
    on         exp(low end) >= 1 + MIN_GAIN; among several, the one with the highest low end. An arm in use is replaced by
               one whose low end is MIN_GAIN above the median of the arm in use
    off again  exp(low end) < 1; or old evidence
    never      share of accepted tokens below MIN_ACCEPTED; batch of at least half the slots (and 2); an answer that is
               expected to have fewer than `min_output_tokens`
    tried      TRY_LENGTH requests in a row, by chance, P_TRY, while the cell has credit: ALLOWANCE at first, `explore_share`
               more with each request; down to -PROBATION while the arm in use speculates, so that an error is found
               soon. So the tries of a cell are at most   ALLOWANCE + PROBATION + explore_share * requests.
               A quarter of the share once all arms are refuted: exp(high end) < 1 + MIN_GAIN
    warm       the first request after a change of the arm is no sample: a process that was idle is slower (measured: 0.55
               times its speed with a model of 4 million parameters, whose weights had left the CPU's caches)

Source: epsilon-greedy; Garivier, Moulines, "On Upper-Confidence Bound Policies for Switching Bandit Problems" (2008) for the
sliding window; David, Nagaraja, "Order Statistics" (2003), 7.1.
When wrong: an arm in use that gets slower in the same cell with the same acceptance is found out by tries of plain decoding
alone, some hundreds of requests later; the engine's own load from elsewhere is not seen as a batch.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import comb, exp, inf, log
from statistics import fmean, median
from typing import Final, NamedTuple

from stayfast.core.clock import Rng
from stayfast.policy.speculation.config import OFF

MIN_GAIN: Final = 0.05
MIN_ACCEPTED: Final = 0.5
MIN_SAMPLES: Final = 8
SPAN: Final = 24  # samples
MAX_AGE_S: Final = 7200.0
MIN_DRAFTED: Final = 64.0  # tokens, before their accepted share counts
MIN_DECODED: Final = 8  # tokens of an answer, before its speed counts
FADE: Final = 0.98  # of the counts of guesses, with each newer answer
LEVEL_SPAN: Final = 8
MIN_LEVEL: Final = 4
LEVEL_S: Final = 600.0  # an older speed of the arm in use compares nothing
ALLOWANCE: Final = 48.0
PROBATION: Final = 12.0
MAX_EXTRA: Final = ALLOWANCE + PROBATION  # tries of a cell, beyond its share
TRY_LENGTH: Final = 3
P_TRY: Final = 0.1
REFUTED_PACE: Final = 0.25
MAX_CELLS: Final = 512
LENGTH_FADE: Final = 0.9


def _rank_of_low_end(n: int) -> int:
    """The index, among n ordered samples, of the low end of the median's 95 % interval."""
    rank, below = 0, 0.5**n
    while below + comb(n, rank + 1) * 0.5**n <= 0.025:
        rank += 1
        below += comb(n, rank) * 0.5**n
    return rank


_RANKS: Final = {n: _rank_of_low_end(n) for n in range(MIN_SAMPLES, SPAN + 1)}

UNPROVEN, PROVEN, TRIED, FULL_BATCH, SHORT, UNAVAILABLE = (
    "unproven", "proven", "tried", "full_batch", "short", "unavailable")


class DecodeSample(NamedTuple):
    """One answer. n_tokens: of its output. tokens_per_s: after the first token. n_drafted: guessed tokens."""

    n_tokens: int
    tokens_per_s: float
    n_drafted: int = 0
    n_accepted: int = 0


class ArmChoice(NamedTuple):
    """The arm of one request, and the cell that learns from it. why: one of the words above. is_warm: the arm answered the
    request before this one, too.
    """

    arm: str
    why: str
    route: str
    size: int
    is_warm: bool = False


class Gain(NamedTuple):
    """Speed of an arm as a multiple of plain decoding, with its 95 % interval. accepted: None: too few guesses."""

    ratio: float
    low: float
    high: float
    n: int
    accepted: float | None


class ArmEvidence:
    """Log ratios of the speed of one arm to plain decoding, one for each try, and its accepted tokens."""

    __slots__ = ("_accepted", "_drafted", "_samples")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SPAN)  # instant, log ratio
        self._drafted = self._accepted = 0.0

    def add_ratio(self, log_ratio: float, now: float) -> None:
        self._samples.append((now, log_ratio))

    def add_drafts(self, n_drafted: int, n_accepted: int) -> None:
        if n_drafted:
            self._drafted = self._drafted * FADE + n_drafted
            self._accepted = self._accepted * FADE + n_accepted

    @property
    def accepted(self) -> float | None:
        return self._accepted / self._drafted if self._drafted >= MIN_DRAFTED else None

    @property
    def is_accepted(self) -> bool:
        """Whether enough of its guesses are accepted, or too few are known."""
        accepted = self.accepted
        return accepted is None or accepted >= MIN_ACCEPTED

    def interval(self, now: float) -> tuple[float, float, float]:
        """The median of the log ratios, and its interval, which is unbounded below MIN_SAMPLES."""
        found = sorted(log_ratio for at, log_ratio in self._samples if now - at <= MAX_AGE_S)
        if len(found) < MIN_SAMPLES:
            return median(found) if found else 0.0, -inf, inf
        rank = _RANKS[len(found)]
        return median(found), found[rank], found[-1 - rank]

    def n_samples(self, now: float) -> int:
        return sum(now - at <= MAX_AGE_S for at, _ in self._samples)

    def gain(self, now: float) -> Gain:
        middle, low, high = self.interval(now)
        return Gain(exp(middle), exp(low), exp(high) if high < inf else inf, self.n_samples(now), self.accepted)


class _Level:
    """The recent speeds of one arm, as logarithms."""

    __slots__ = ("at", "values")

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=LEVEL_SPAN)
        self.at = -inf

    def add(self, log_speed: float, now: float) -> None:
        if now - self.at > LEVEL_S:
            self.values.clear()
        self.values.append(log_speed)
        self.at = now

    def is_known(self, now: float) -> bool:
        return len(self.values) >= MIN_LEVEL and now - self.at <= LEVEL_S


class _Cell:
    """One route at one batch size."""

    __slots__ = ("credit", "evidence", "last", "levels", "n_to_try", "tried", "used")

    def __init__(self, arms: Sequence[str]) -> None:
        self.used = OFF
        self.last = OFF  # the arm of the last request
        self.n_to_try = 0  # more requests for it
        self.tried: list[float] = []  # speeds of the present try
        self.credit = ALLOWANCE
        self.evidence = {arm: ArmEvidence() for arm in arms if arm != OFF}
        self.levels = {arm: _Level() for arm in arms}

    def decide(self, now: float) -> None:
        """Set the arm in use."""
        usable = {arm: evidence.interval(now)[1] for arm, evidence in self.evidence.items() if evidence.is_accepted}
        least = log(1.0 + MIN_GAIN)
        best, best_low = OFF, -inf
        if usable.get(self.used, -inf) >= 0.0:
            best, least = self.used, least + self.evidence[self.used].interval(now)[0]
        for arm, low in usable.items():
            if arm != self.used and low >= max(least, best_low):
                best, best_low = arm, low
        self.used = best

    def is_refuted(self, arm: str, now: float) -> bool:
        evidence = self.evidence[arm]
        _, _, high = evidence.interval(now)
        return high < log(1.0 + MIN_GAIN) or not evidence.is_accepted


class SpeculationController:
    """The arms of one engine. Pure state of one loop; instants never go back."""

    def __init__(self, arms: Sequence[str], n_slots: int, rng: Rng, *, explore_share: float = 0.02,
                 min_output_tokens: int = 32) -> None:
        """arms: with OFF. n_slots: answers that the engine generates at the same time; may be set later."""
        if OFF not in arms:
            raise ValueError(f"arms must contain {OFF}")
        self.arms = tuple(arms)
        self.n_slots = n_slots
        self._rng = rng
        self._explore_share = explore_share
        self._min_output_tokens = min_output_tokens
        self._cells: dict[tuple[str, int], _Cell] = {}
        self._lengths: dict[str, tuple[int, float]] = {}  # by route: answers, and tokens that are expected

    def choose(self, route: str, n_in_flight: int, max_output_tokens: int | None, now: float) -> ArmChoice:
        """n_in_flight: answers at this engine, this one included."""
        size = max(1, n_in_flight).bit_length()
        if n_in_flight >= max(2.0, self.n_slots / 2):
            return ArmChoice(OFF, FULL_BATCH, route, size)
        if self._expected(route, max_output_tokens) < self._min_output_tokens:
            return ArmChoice(OFF, SHORT, route, size)
        cell = self._cell(route, size)
        if cell is None:
            return ArmChoice(OFF, UNPROVEN, route, size)
        cell.decide(now)
        arm, before = self._try_other(cell, now) or cell.used, cell.last
        cell.last = arm
        why = TRIED if arm != cell.used else UNPROVEN if arm == OFF else PROVEN
        return ArmChoice(arm, why, route, size, is_warm=arm == before)

    def _expected(self, route: str, limit: int | None) -> float:
        n, usual = self._lengths.get(route, (0, inf))
        return min(usual if n >= MIN_LEVEL else inf, inf if limit is None else limit)

    def _cell(self, route: str, size: int) -> _Cell | None:
        cell = self._cells.get((route, size))
        if cell is None and len(self._cells) < MAX_CELLS:
            cell = self._cells[route, size] = _Cell(self.arms)
        return cell

    def _try_other(self, cell: _Cell, now: float) -> str | None:
        """Another arm than the one in use; None: no try."""
        others = [arm for arm in self.arms if arm != cell.used]
        guessing = [arm for arm in others if arm != OFF]
        open_arms = [arm for arm in guessing if not cell.is_refuted(arm, now)]
        pace = 1.0 if open_arms or cell.used != OFF else REFUTED_PACE
        cell.credit = min(ALLOWANCE, cell.credit + self._explore_share * pace)
        if cell.n_to_try:
            cell.n_to_try -= 1
            return cell.last
        least = TRY_LENGTH if cell.used == OFF else TRY_LENGTH - PROBATION
        if (not others or cell.credit < least or not self._explore_share
                or not cell.levels[cell.used].is_known(now)):
            return None
        draw = self._rng.random()
        if draw >= P_TRY:
            return None
        cell.credit -= TRY_LENGTH
        cell.n_to_try = TRY_LENGTH - 1
        cell.tried.clear()
        if cell.used != OFF and (draw < P_TRY / 2 or not open_arms):
            return OFF
        return min(open_arms or guessing, key=lambda arm: cell.evidence[arm].n_samples(now))

    def record(self, choice: ArmChoice, sample: DecodeSample, now: float) -> None:
        """A complete answer of the chosen arm."""
        n, usual = self._lengths.get(choice.route, (0, 0.0))
        weight = LENGTH_FADE if n >= MIN_LEVEL else n / (n + 1)
        if n or len(self._lengths) < MAX_CELLS:
            self._lengths[choice.route] = n + 1, usual * weight + sample.n_tokens * (1 - weight)
        cell = self._cells.get((choice.route, choice.size))
        if cell is None or sample.n_tokens < MIN_DECODED or not 0.0 < sample.tokens_per_s < inf:
            return
        speed = log(sample.tokens_per_s)
        if choice.arm in cell.evidence:
            cell.evidence[choice.arm].add_drafts(sample.n_drafted, sample.n_accepted)
        if not choice.is_warm:
            return
        if choice.why == TRIED:
            self._end_try(cell, choice.arm, speed, now)
        elif choice.arm == cell.used:
            cell.levels[choice.arm].add(speed, now)

    def _end_try(self, cell: _Cell, arm: str, speed: float, now: float) -> None:
        """One answer of a try; the sample is made of all."""
        cell.tried.append(speed)
        if len(cell.tried) < TRY_LENGTH - 1 or arm == cell.used or not cell.levels[cell.used].is_known(now):
            return
        step = fmean(cell.tried) - median(cell.levels[cell.used].values)
        cell.tried.clear()
        if arm == OFF:
            cell.evidence[cell.used].add_ratio(-step, now)
        else:
            base = cell.evidence[cell.used].interval(now)[0] if cell.used != OFF else 0.0
            cell.evidence[arm].add_ratio(step + base, now)

    def gains(self, now: float) -> Iterator[tuple[str, int, str, Mapping[str, Gain]]]:
        """Of each cell: route, batch (as a power of two: 1 is one answer, 2 is two or three), the arm in use, and the gains
        of the others.
        """
        for (route, size), cell in self._cells.items():
            yield route, size, cell.used, {arm: evidence.gain(now) for arm, evidence in cell.evidence.items()}

    def describe(self, choice: ArmChoice, now: float) -> str:
        """For the record of a request: `speculation: off (unproven), draft 0.79x (0.71 to 0.88, 92 % accepted)`."""
        cell = self._cells.get((choice.route, choice.size))
        parts = [f"speculation: {choice.arm} ({choice.why.replace('_', ' ')})"]
        for arm, evidence in cell.evidence.items() if cell is not None else ():
            gain = evidence.gain(now)
            if gain.n >= MIN_SAMPLES:
                accepted = f", {gain.accepted:.0%} accepted" if gain.accepted is not None else ""
                parts.append(f"{arm} {gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f}{accepted})")
        return ", ".join(parts)

    def __repr__(self) -> str:
        used = sum(cell.used != OFF for cell in self._cells.values())
        return f"<SpeculationController {', '.join(self.arms)}: {used} of {len(self._cells)} cells speculate>"
