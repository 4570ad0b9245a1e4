"""How much of a model's answer fits into what a turn has left, by how fast that model answers these days.

    large, small = ModelSpeed("large", tokens_per_s=40), ModelSpeed("small", tokens_per_s=150)          # made once

    async with budget(total=4.0) as b:
        pace = choose([large, small], 300, b.remaining(), b.now())                          # the first that fits
        await b.run(ask, pace.name, question, pace.max_tokens(b.remaining(), 800, b.now()))

Problem: a fixed `max_tokens` is cut off by the deadline in bad minutes, in the middle of a sentence, and wastes quality in
good ones. Rule: of the last minutes' answers, the 95th percentile of the time to the first token and of the time for each
further one; what is left, less the former, over the latter. Before MIN_ANSWERS are known, what the maker said.
When wrong: the percentiles are added, which is late for both only where they are slow together.
"""

from collections.abc import Sequence
from math import isnan

from stayfast.policy.histogram import Window
from stayfast.turns.validation import argument_error, is_amount, is_count, is_seconds

MIN_ANSWERS = 5
LAST_S = 300.0
_LEAST_TPOT_S = 1e-9  # of answers that came in one piece
QUANTILE = 0.95


class ModelSpeed:
    """Of one model. Share it among turns. Instants must not go back. Raises ValueError for rates that cannot be."""

    __slots__ = ("_assumed_tpot_s", "_assumed_ttft_s", "_tpots", "_ttfts", "name")

    def __init__(self, name: str, *, ttft_s: float = 1.0, tokens_per_s: float = 50.0) -> None:
        for argument, value in (("ttft_s", ttft_s), ("tokens_per_s", tokens_per_s)):
            if not is_seconds(value):
                raise argument_error(f"{argument}={value!r:.80}: a number, more than 0, as in "
                            "ModelSpeed(\"large\", ttft_s=0.8, tokens_per_s=40)", value)
        self.name = name
        self._assumed_ttft_s = ttft_s
        self._assumed_tpot_s = 1.0 / tokens_per_s
        self._ttfts = Window()
        self._tpots = Window()

    def record_answer(self, ttft_s: float, whole_s: float, n_tokens: int, now: float) -> None:
        """An answer of so many tokens came: its first after `ttft_s`, its last after `whole_s`. `now`: as `Budget.now()`."""
        if not is_amount(ttft_s) or not is_amount(whole_s):
            raise ValueError(f"ttft_s={ttft_s!r:.80}, whole_s={whole_s!r:.80}: seconds from the question to the first token "
                             "and to the last, as in answered(0.4, 1.6, n_tokens=190, now=b.now())")
        self._ttfts.add(ttft_s, now)
        if n_tokens > 1:
            self._tpots.add(max(0.0, whole_s - ttft_s) / (n_tokens - 1), now)

    def estimate_s(self, n_tokens: int, now: float) -> float:
        """How long an answer of so many tokens takes, 19 times of 20."""
        return self._ttft_s(now) + n_tokens * self._tpot_s(now)

    def max_tokens(self, seconds: float, at_most: int, now: float) -> int:
        """How many tokens come within `seconds`, 1 to `at_most`."""
        if not is_count(at_most, 1):
            raise argument_error(f"at_most={at_most!r:.80}: tokens, a whole number, 1 or more", at_most)
        if isnan(seconds):
            raise ValueError("seconds=nan: how long there is, as in max_tokens(b.remaining(), 800, b.now())")
        n_fit = (seconds - self._ttft_s(now)) / max(self._tpot_s(now), _LEAST_TPOT_S)
        return int(max(1, min(at_most, n_fit)))  # where no time is left, and where there is no end of it

    def _ttft_s(self, now: float) -> float:
        return recent_p95(self._ttfts, now) or self._assumed_ttft_s

    def _tpot_s(self, now: float) -> float:
        return recent_p95(self._tpots, now) or self._assumed_tpot_s

    def __repr__(self) -> str:
        return f"<Pace of {self.name}: {self._ttfts!r}>"


def choose_model(best_first: Sequence[ModelSpeed], n_tokens: int, seconds: float, now: float) -> ModelSpeed:
    """The first whose answer of so many tokens fits into `seconds`; else the quickest. Raises ValueError for none."""
    if not best_first:
        raise ValueError("choose needs a model: choose([large, small], n_tokens=300, ...), the best one first")
    for pace in best_first:
        if pace.estimate_s(n_tokens, now) <= seconds:
            return pace
    return min(best_first, key=lambda pace: pace.estimate_s(n_tokens, now))


def recent_p95(values: Window, now: float) -> float | None:
    """The QUANTILE of the last minutes' values; None before MIN_ANSWERS of them are known."""
    lately = values.last(LAST_S, now)
    return lately.quantile(QUANTILE) if lately.n >= MIN_ANSWERS else None
