"""Prediction of the time to first token at one upstream, from the length of the prompt and the tokens queued before it.

Problem: a mean of recent times predicts the same for ten tokens and for a hundred thousand. Rule: a linear model, fitted to
every first token:

    ttft_s = a + b * own + c * ahead        own: uncached tokens of the prompt;  ahead: those of calls without a first token

The fit is by recursive least squares with forgetting (0.998 a sample, so half in 350 samples). A sample has weight 1 /
max(0.05 s, predicted, ttft/4)^2, so a single very late first token has little effect. Negative coefficients count as 0.
There is no prediction before 10 samples. `own` of a new prompt is a quarter of its bytes times the recent ratio of reported
to estimated tokens. Each model has a fit of its own, as one may think for seconds where another answers at once; `ahead`
counts the calls of all models, as an engine reads all prompts in one queue.
Source: the features are those of llm-d's predicted-latency scheduling; recursive least squares are textbook (Haykin,
Adaptive Filter Theory). Chosen by the error on simulated traffic (mean absolute error over mean time):

    engine, light / busy / no long prompts / static batches / hosted     mean: 1.22 / 0.79 / 0.57 / 0.44 / 0.47
    mean by size of prompt 1.25 / 0.83 / 0.63 / 0.47 / 0.47           this: 0.30 / 0.21 / 0.12 / 0.38 / 0.38

When wrong: requests of other clients to the same upstream are not seen; a static batch's time depends on its other
requests; cache hits are known only for the mean prompt.
"""

from stayfast.core.types import Usage
from stayfast.policy.resilience.prefill_rate import PrefillRate

FORGETS = 0.998
N_WARM = 10
LEAST_S = 0.05  # the least scale of errors
MAX_VARIANCE = 1e4
_KILO = 1e-3  # scales the features to about 1, so that the sums are well conditioned
_ERROR_LEARNS = 0.02
_SHARE_LEARNS = 0.05
_MAX_SHARE = 4.0
MAX_MODELS = 64  # of one upstream; clients may choose model names


class TtftPrediction:
    """The prediction for one running call. The caller reports the call's progress to it."""

    __slots__ = ("_is_counted", "_is_waiting", "_n_ahead", "_n_estimated", "_n_known", "_n_own", "_of", "_ttft_s", "seconds")

    def __init__(self, of: "TtftPredictor", n_estimated: float, n_own: float, seconds: float | None, n_known: float) -> None:
        self.seconds = seconds  # None: no prediction
        self._of = of
        self._n_estimated = n_estimated
        self._n_own = n_own
        self._n_known = n_known
        self._ttft_s = 0.0  # until the first token
        self._n_ahead = of.ahead.n
        self._is_waiting = True
        self._is_counted = False

    def record_first_token(self, ttft_s: float, n_uncached: float | None) -> None:
        """The first token arrived; `n_uncached`: the upstream's count, if known by then."""
        self._ttft_s = ttft_s
        self.end_wait(n_uncached)
        if self.seconds is not None:
            self._of.learn_error(abs(self.seconds - ttft_s), ttft_s)
        self._of.learn(self._n_own if n_uncached is None else n_uncached, self._n_ahead, ttft_s)

    def end_wait(self, n_uncached: float | None) -> None:
        """The call no longer waits for a first token. May be called again with the upstream's count."""
        of = self._of
        if self._is_waiting:
            self._is_waiting = False
            of.ahead.n = max(0.0, of.ahead.n - self._n_own)
        if n_uncached is not None and self._n_estimated and not self._is_counted:
            self._is_counted = True
            of.learn_share(n_uncached, self._n_estimated)


    def count_uncached(self, usage: Usage | None) -> float | None:
        """The prompt's uncached tokens by the upstream's usage. None: not reported, or it does not report what it cached."""
        if usage is None or not usage.input_total:
            return None
        if usage.cached_read:
            self._of.ahead.reports_cached = True
        return usage.uncached if self._of.ahead.reports_cached or not self._n_known else None

    def learn_rate(self, n_uncached: float | None) -> None:
        """The call has succeeded; n_uncached: see `count_uncached`."""
        if self._ttft_s and n_uncached is not None:
            self._of.rate.learn(n_uncached, self._n_ahead, self._ttft_s)


class TokensAhead:
    """The tokens of calls that wait for their first token at one upstream."""

    __slots__ = ("n", "reports_cached")

    def __init__(self) -> None:
        self.n = 0.0
        self.reports_cached = False  # its usage has shown cached tokens: without any, none were cached


class TtftPredictor:
    """The fit for one model of one upstream. Pure state; changed only by its owner. ahead: of all models."""

    __slots__ = ("_a", "_b", "_c", "_error_s", "_mean_s", "_n", "_n_estimated", "_n_uncached", "_p", "_share", "ahead",
                 "rate")

    def __init__(self, ahead: TokensAhead | None = None) -> None:
        self.ahead = ahead or TokensAhead()
        self.rate = PrefillRate()
        self._a = self._b = self._c = 0.0
        self._p = (100.0, 0.0, 0.0, 100.0, 0.0, 100.0)  # the upper half of a symmetric matrix, row by row
        self._n = 0
        self._n_uncached = self._n_estimated = 1.0  # running means; their ratio weights long prompts by their length
        self._share = 1.0  # reported uncached tokens per estimated token
        self._error_s = self._mean_s = 0.0  # running means of the absolute error, and of the times

    def predict_s(self, n_estimated: float) -> float | None:
        """The predicted time to first token of a prompt of about `n_estimated` tokens sent now; None: no prediction."""
        return self._evaluate(n_estimated * self._share, self.ahead.n) if self._n >= N_WARM else None

    @property
    def has_samples(self) -> bool:
        return self._n > 0

    @property
    def error_ratio(self) -> float | None:
        """Mean absolute error of recent predictions over the mean wait; None: no predictions."""
        return self._error_s / self._mean_s if self._mean_s else None

    def start_call(self, n_estimated: float, n_known: float = 0.0) -> TtftPrediction:
        """Start a call with a prompt of about `n_estimated` uncached tokens, besides n_known that are probably cached."""
        n_own = n_estimated * self._share
        seconds = self._evaluate(n_own, self.ahead.n) if self._n >= N_WARM else None
        prediction = TtftPrediction(self, n_estimated, n_own, seconds, n_known)
        self.ahead.n += n_own
        return prediction

    def learn_share(self, n_uncached: float, n_estimated: float) -> None:
        """Learn the upstream's count of a prompt."""
        self._n_uncached += (min(n_uncached, _MAX_SHARE * n_estimated) - self._n_uncached) * _SHARE_LEARNS
        self._n_estimated += (n_estimated - self._n_estimated) * _SHARE_LEARNS
        self._share = self._n_uncached / self._n_estimated

    def learn_error(self, error_s: float, ttft_s: float) -> None:
        self._error_s += (error_s - self._error_s) * _ERROR_LEARNS
        self._mean_s += (ttft_s - self._mean_s) * _ERROR_LEARNS

    def _evaluate(self, n_own: float, n_ahead: float) -> float:
        b, c = self._b, self._c
        seconds = self._a
        if b > 0:
            seconds += b * n_own * _KILO
        if c > 0:
            seconds += c * n_ahead * _KILO
        return seconds if seconds > 0 else 0.0

    def learn(self, n_own: float, n_ahead: float, ttft_s: float) -> None:
        """One step of weighted recursive least squares, written out for three features for speed."""
        own, ahead = n_own * _KILO, n_ahead * _KILO
        p00, p01, p02, p11, p12, p22 = self._p
        predicted_s = self._a + self._b * own + self._c * ahead
        error_s = ttft_s - predicted_s
        scale_s = max(LEAST_S, predicted_s, ttft_s / 4)
        self._n += 1
        g0 = p00 + p01 * own + p02 * ahead
        g1 = p01 + p11 * own + p12 * ahead
        g2 = p02 + p12 * own + p22 * ahead
        d = FORGETS * scale_s * scale_s + g0 + g1 * own + g2 * ahead
        k0, k1, k2 = g0 / d, g1 / d, g2 / d
        self._a += k0 * error_s
        self._b += k1 * error_s
        self._c += k2 * error_s
        p00, p11, p22 = p00 - k0 * g0, p11 - k1 * g1, p22 - k2 * g2
        grow = 1.0 / FORGETS if max(p00, p11, p22) < MAX_VARIANCE else 1.0  # bounds an unused feature's variance
        self._p = (p00 * grow, (p01 - k0 * g1) * grow, (p02 - k0 * g2) * grow, p11 * grow, (p12 - k1 * g2) * grow,
                   p22 * grow)

    def __repr__(self) -> str:
        ratio = self.error_ratio
        return (f"<TtftPredictor {self._a * 1e3:.0f} ms + {self._b * 1e3:.3g} own + {self._c * 1e3:.3g} ahead of each 1,000 "
                f"tokens; {'no error known' if ratio is None else f'off by {ratio:.0%}'}>")


class TtftPredictors:
    """The predictors of one upstream, by model. Pure state; changed only by its owner."""

    __slots__ = ("_by_model", "ahead")

    def __init__(self) -> None:
        self.ahead = TokensAhead()
        self._by_model: dict[str, TtftPredictor] = {}

    def of(self, model: str) -> TtftPredictor:
        """The predictor of one model. The oldest is dropped, those without samples first."""
        found = self._by_model.get(model)
        if found is None:
            if len(self._by_model) >= MAX_MODELS:
                del self._by_model[min(self._by_model, key=lambda name: self._by_model[name].has_samples)]
            self._by_model[model] = found = TtftPredictor(self.ahead)
        return found

    def predict_s(self, model: str, n_estimated: float) -> float | None:
        """The predicted time to first token of a prompt sent now; None: no prediction."""
        found = self._by_model.get(model)
        return found.predict_s(n_estimated) if found is not None else None

    def tokens_per_s(self, model: str) -> float | None:
        """The learned prefill rate; None: unknown."""
        found = self._by_model.get(model)
        return found.rate.tokens_per_s if found is not None else None

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Of the slowest of its models; None: unknown."""
        rates = [rate for one in self._by_model.values() if (rate := one.rate.tokens_per_s) is not None]
        return min(rates, default=None)

    @property
    def error_ratio(self) -> float | None:
        """The largest error of its predictors, relative to their mean time; None: no predictions."""
        ratios = [one.error_ratio for one in self._by_model.values()]
        return max((ratio for ratio in ratios if ratio is not None), default=None)

    def __repr__(self) -> str:
        return f"<TtftPredictors {self._by_model!r}>"
