"""How many tokens of a model's answer fit into the time that is left, from the recent speed of the model.

    large, small = ModelSpeed("large", tokens_per_s=40), ModelSpeed("small", tokens_per_s=150)      # created once

    async with budget(total=4.0) as b:
        model = choose_model([large, small], 300, b.remaining(), b.now())               # the first that fits
        await b.run(call_model, model.name, question, model.max_tokens(b.remaining(), 800, b.now()))

Problem: with a fixed `max_tokens` the deadline cuts answers mid-sentence when the model is slow, and answers stay shorter
than necessary when it is fast. Rule: n = (time left - TTFT) / TPOT, where TTFT (time to first token) and TPOT (time per
output token) are the 95th percentiles of the last LAST_S seconds; below MIN_ANSWERS samples, the configured values.
When wrong: the sum of two 95th percentiles is pessimistic unless both are slow at the same time.
"""

from collections.abc import Sequence
from math import isnan

from stayfast.policy.histogram import Window
from stayfast.turns.validation import argument_error, is_amount, is_count, is_seconds

MIN_ANSWERS = 5
LAST_S = 300.0
_MIN_TPOT_S = 1e-9  # of answers that arrived in one piece
QUANTILE = 0.95


class ModelSpeed:
    """The speed of one model; share it among turns. Instants must not decrease. Raises ValueError for rates <= 0."""

    __slots__ = ("_assumed_tpot_s", "_assumed_ttft_s", "_tpots", "_ttfts", "name")

    def __init__(self, name: str, *, ttft_s: float = 1.0, tokens_per_s: float = 50.0) -> None:
        for argument, value in (("ttft_s", ttft_s), ("tokens_per_s", tokens_per_s)):
            if not is_seconds(value):
                raise argument_error(f"{argument}={value!r:.80}: a number, above 0, as in "
                                     "ModelSpeed(\"large\", ttft_s=0.8, tokens_per_s=40)", value)
        self.name = name
        self._assumed_ttft_s = ttft_s
        self._assumed_tpot_s = 1.0 / tokens_per_s
        self._ttfts = Window()
        self._tpots = Window()

    def record_answer(self, ttft_s: float, whole_s: float, n_tokens: int, now: float) -> None:
        """An answer of `n_tokens`: first token after `ttft_s`, last token after `whole_s`. `now`: as `Budget.now()`."""
        if not is_amount(ttft_s) or not is_amount(whole_s):
            raise ValueError(f"ttft_s={ttft_s!r:.80}, whole_s={whole_s!r:.80}: seconds from the request to the first token "
                             "and to the last, as in record_answer(0.4, 1.6, n_tokens=190, now=b.now())")
        self._ttfts.add(ttft_s, now)
        if n_tokens > 1:
            self._tpots.add(max(0.0, whole_s - ttft_s) / (n_tokens - 1), now)

    def estimate_s(self, n_tokens: int, now: float) -> float:
        """Seconds for an answer of `n_tokens`; 95 % of answers are faster."""
        return self._ttft_s(now) + n_tokens * self._tpot_s(now)

    def max_tokens(self, seconds: float, at_most: int, now: float) -> int:
        """How many tokens fit into `seconds`, 1 to `at_most`."""
        if not is_count(at_most, 1):
            raise argument_error(f"at_most={at_most!r:.80}: tokens, an integer, 1 or more", at_most)
        if isnan(seconds):
            raise ValueError("seconds=nan: the time left, as in max_tokens(b.remaining(), 800, b.now())")
        n_fit = (seconds - self._ttft_s(now)) / max(self._tpot_s(now), _MIN_TPOT_S)
        return int(max(1, min(at_most, n_fit)))  # also for zero and infinite seconds

    def _ttft_s(self, now: float) -> float:
        return recent_p95(self._ttfts, now) or self._assumed_ttft_s

    def _tpot_s(self, now: float) -> float:
        return recent_p95(self._tpots, now) or self._assumed_tpot_s

    def __repr__(self) -> str:
        return f"<ModelSpeed of {self.name}: {self._ttfts!r}>"


def choose_model(best_first: Sequence[ModelSpeed], n_tokens: int, seconds: float, now: float) -> ModelSpeed:
    """The first model whose answer of `n_tokens` fits into `seconds`; else the fastest. Raises ValueError if empty."""
    if not best_first:
        raise ValueError("choose_model needs a model: choose_model([large, small], n_tokens=300, ...), the best one first")
    for model in best_first:
        if model.estimate_s(n_tokens, now) <= seconds:
            return model
    return min(best_first, key=lambda model: model.estimate_s(n_tokens, now))


def recent_p95(values: Window, now: float) -> float | None:
    """The QUANTILE of the values of the last LAST_S; None below MIN_ANSWERS values."""
    recent = values.merge_last(LAST_S, now)
    return recent.quantile(QUANTILE) if recent.n >= MIN_ANSWERS else None
