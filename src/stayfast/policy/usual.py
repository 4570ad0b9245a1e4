"""How long a first token usually takes, so that "slow" means something for short and for long prompts alike.

Problem: times to the first token of one upstream differ a hundredfold by prompt and model, so neither their mean nor a
constant says whether one of them was slow. Rule: times are compared within their class (model, streamed or whole, prompt
tokens to a power of two), as ratios to the long geometric mean of that class:

    long += (ln(ttft_s) - long) / min(n, 600)         ratio = (ttft_s + 0.05) / (exp(long) + 0.05)

A ratio of 1 is usual, whatever was asked; a class that has fewer than 10 answers says nothing. The 50 ms that are added to
both keep an upstream that answers in a millisecond from being slow when this machine was busy for two. Prompt tokens are
the uncached ones where the upstream has told them by then, else a quarter of the request's bytes.
Source: the long window of Netflix's Gradient2; the logarithm is ours: one answer of the tail moves a mean, not this.
When wrong: a slow drift is learned and so never seen; a whole answer takes as long as it is long, which its prompt does not
tell.
"""

from math import exp, inf, log

N_LONG = 600
N_WARM = 10
MAX_CLASSES = 500  # model names can be the clients' own; the class that was first seen goes first
PADDING_S = 0.05
_LEAST_S = 1e-4


class Norm:
    """What is usual in one class, or over all. Pure state; changed only by its owner."""

    __slots__ = ("_long", "_n", "usual_s")

    def __init__(self) -> None:
        self._n = 0
        self._long = 0.0
        self.usual_s = 0.0  # about what a first token takes; 0 before that is known

    def learn(self, log_s: float) -> None:
        """The logarithm of one time to a first token."""
        n = self._n
        if n < N_LONG:
            self._n = n = n + 1
        self._long += (log_s - self._long) / n
        if n >= N_WARM:
            self.usual_s = exp(self._long)

    def ratio(self, ttft_s: float) -> float | None:
        """A time to the first token over what is usual; None before that is known."""
        usual_s = self.usual_s
        return (ttft_s + PADDING_S) / (usual_s + PADDING_S) if usual_s else None

    def after_s(self, ratio: float) -> float:
        """The time to the first token that has this ratio; infinite before it is known."""
        usual_s = self.usual_s
        return ratio * (usual_s + PADDING_S) - PADDING_S if usual_s else inf


class Usual:
    """Of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_by_class", "all")

    def __init__(self) -> None:
        self._by_class: dict[tuple[str, bool, int], Norm] = {}
        self.all = Norm()

    def norm(self, model: str, n_tokens: int, is_whole: bool) -> Norm:
        """The class of a prompt of so many tokens; `is_whole`: its first token comes with its last."""
        key = (model, is_whole, n_tokens.bit_length())
        found = self._by_class.get(key)
        if found is None:
            if len(self._by_class) >= MAX_CLASSES:
                del self._by_class[next(iter(self._by_class))]
            self._by_class[key] = found = Norm()
        return found

    def learn(self, norm: Norm, ttft_s: float) -> None:
        """A first token of this class came after so many seconds."""
        log_s = log(max(ttft_s, _LEAST_S))
        norm.learn(log_s)
        self.all.learn(log_s)

    def __repr__(self) -> str:
        usual_s = self.all.usual_s
        return f"<Usual {f'{usual_s:.3g} s' if usual_s else 'unknown'}, {len(self._by_class)} classes>"
