"""How long a first token will take at one upstream, for this prompt, with this much before it.

Problem: a mean of the last waits says the same of ten tokens and of a hundred thousand, and nothing of the prompts that an
engine has yet to read; so a request is queued that cannot make its deadline, or refused that could. Rule: the wait is a
line through what delays it, learned from every first token:

    ttft_s = a + b * own + c * ahead        own: uncached tokens of the prompt;  ahead: of calls without a token

by recursive least squares that forget (0.998 a sample: half in 350). A sample weighs 1 / max(0.05 s, predicted, ttft/4)^2:
what counts is the error for its size, and one answer of a heavy tail moves little. No coefficient is used below zero. Until
10 samples nothing is said.
`own` of a new prompt is a quarter of its bytes times what that has lately come to where upstreams told their count: the
estimate's own error and the prefix cache's share are learned together, as one factor.
Source: the features are those of llm-d's predicted-latency scheduling, which has XGBoost in a side-car for them; recursive
least squares are textbook (Haykin, Adaptive Filter Theory). Chosen by error on simulated traffic (mean absolute error over
mean wait; prefill first come first served, 1 of 50 prompts a hundred times as long; a hosted API with a heavy tail):

    engine, light / busy / no long ones / static batches / hosted     mean: 1.22 / 0.79 / 0.57 / 0.44 / 0.47
    mean by size of prompt 1.25 / 0.83 / 0.63 / 0.47 / 0.47           this: 0.30 / 0.21 / 0.12 / 0.38 / 0.38

When wrong: what others send to the same upstream is not seen; a static batch's wait depends on who else is in it; a prefix
that happens to be cached, or not, is known for the mean prompt only.
"""

FORGETS = 0.998
N_WARM = 10
LEAST_S = 0.05  # errors are not weighed finer than this
MAX_VARIANCE = 1e4
_KILO = 1e-3  # features of about 1 keep the sums well conditioned
_ERROR_LEARNS = 0.02
_SHARE_LEARNS = 0.05
_MAX_SHARE = 4.0


class TtftPrediction:
    """One call that has begun, and what was thought of it. Its caller's."""

    __slots__ = ("_is_counted", "_is_waiting", "_n_ahead", "_n_estimated", "_n_own", "_of", "seconds")

    def __init__(self, of: "Predictor", n_estimated: float, n_own: float, seconds: float | None) -> None:
        self.seconds = seconds  # None: nothing was known
        self._of = of
        self._n_estimated = n_estimated
        self._n_own = n_own
        self._n_ahead = of.n_ahead
        self._is_waiting = True
        self._is_counted = False

    def answered(self, ttft_s: float, n_uncached: float | None) -> None:
        """Its first token came; `n_uncached` where its upstream has counted by then."""
        self.ended(n_uncached)
        if self.seconds is not None:
            self._of.erred(abs(self.seconds - ttft_s), ttft_s)
        self._of.learn(self._n_own if n_uncached is None else n_uncached, self._n_ahead, ttft_s)

    def ended(self, n_uncached: float | None) -> None:
        """It waits no longer for a first token, whether one came or not. May be called again, when more is known."""
        of = self._of
        if self._is_waiting:
            self._is_waiting = False
            of.n_ahead = max(0.0, of.n_ahead - self._n_own)
        if n_uncached is not None and self._n_estimated and not self._is_counted:
            self._is_counted = True
            of.counted(n_uncached, self._n_estimated)


class Predictor:
    """Of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_a", "_b", "_c", "_error_s", "_mean_s", "_n", "_n_estimated", "_n_uncached", "_p", "_share", "n_ahead")

    def __init__(self) -> None:
        self.n_ahead = 0.0  # tokens of calls that still wait for their first token
        self._a = self._b = self._c = 0.0
        self._p = (100.0, 0.0, 0.0, 100.0, 0.0, 100.0)  # the upper half of a symmetric matrix, row by row
        self._n = 0
        self._n_uncached = self._n_estimated = 1.0  # about the means of both: long prompts weigh as they are long
        self._share = 1.0  # uncached tokens, as counted, for each that was estimated
        self._error_s = self._mean_s = 0.0

    def predicted_s(self, n_estimated: float) -> float | None:
        """When the first token of a prompt of about so many tokens would come if it were sent now; None: not known."""
        return self._line(n_estimated * self._share, self.n_ahead) if self._n >= N_WARM else None

    @property
    def error_ratio(self) -> float | None:
        """Mean absolute error of the last predictions over the mean wait; None before there is one."""
        return self._error_s / self._mean_s if self._mean_s else None

    def began(self, n_estimated: float) -> TtftPrediction:
        """A call begins, with a prompt of about so many tokens."""
        n_own = n_estimated * self._share
        guess = TtftPrediction(self, n_estimated, n_own, self._line(n_own, self.n_ahead) if self._n >= N_WARM else None)
        self.n_ahead += n_own
        return guess

    def counted(self, n_uncached: float, n_estimated: float) -> None:
        """The upstream had to read so many tokens of a prompt that was estimated at so many."""
        self._n_uncached += (min(n_uncached, _MAX_SHARE * n_estimated) - self._n_uncached) * _SHARE_LEARNS
        self._n_estimated += (n_estimated - self._n_estimated) * _SHARE_LEARNS
        self._share = self._n_uncached / self._n_estimated

    def erred(self, error_s: float, ttft_s: float) -> None:
        """A prediction was off by so much."""
        self._error_s += (error_s - self._error_s) * _ERROR_LEARNS
        self._mean_s += (ttft_s - self._mean_s) * _ERROR_LEARNS

    def _line(self, n_own: float, n_ahead: float) -> float:
        b, c = self._b, self._c
        seconds = self._a
        if b > 0:
            seconds += b * n_own * _KILO
        if c > 0:
            seconds += c * n_ahead * _KILO
        return seconds if seconds > 0 else 0.0

    def learn(self, n_own: float, n_ahead: float, ttft_s: float) -> None:
        """A first token came after `ttft_s`, with so many tokens of its own and ahead of it to be read. One step of weighted
        recursive least squares, written out for three features: loops take three times as long.
        """
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
        grow = 1.0 / FORGETS if max(p00, p11, p22) < MAX_VARIANCE else 1.0  # what is not seen is kept
        self._p = (p00 * grow, (p01 - k0 * g1) * grow, (p02 - k0 * g2) * grow, p11 * grow, (p12 - k1 * g2) * grow,
                   p22 * grow)

    def __repr__(self) -> str:
        ratio = self.error_ratio
        return (f"<Predictor {self._a * 1e3:.0f} ms + {self._b * 1e3:.3g} own + {self._c * 1e3:.3g} ahead of each 1,000 "
                f"tokens; {'no error known' if ratio is None else f'off by {ratio:.0%}'}>")
