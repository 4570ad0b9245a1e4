"""How long a first token usually takes, so that "slow" means something for short and for long prompts alike.

Problem: times to the first token of one upstream differ a hundredfold by prompt and model, so neither their mean nor a
constant says whether one of them was slow. Rule: times are compared within their class (model, streamed or whole, prompt
tokens to a power of two), as ratios to the long geometric mean of that class:

    long += (ln(ttft_s) - long) / min(n, 600)         ratio = (ttft_s + 0.05) / (exp(long) + 0.05)

A ratio of 1 is usual, whatever was asked. A class says nothing before it has 10 answers, and those to three of four of its
calls: the first ten answers to a burst are its ten quickest. From then on its calls are learned when they are judged
(policy/resilience/outcome_sampling.py), at most as what is slow, in the order in which they began: not in the order of
their answers. The 50 ms that are added to both keep an upstream that answers in a millisecond from being slow when this
machine was busy for two. Prompt tokens are the uncached ones where the upstream has told them by then, else a quarter of
the request's bytes. Source: the long window of Netflix's Gradient2; the logarithm is ours: one answer of the tail moves a
mean, not this. When wrong: a slow drift is learned and so never seen; a whole answer takes as long as it is long, which
its prompt does not tell.
"""

from math import exp, inf, log

N_LONG = 600
N_WARM = 10
WARM_SHARE = 0.75
MAX_CLASSES = 500  # model names can be the clients' own; the class that was first seen goes first
PADDING_S = 0.05
_LEAST_S = 1e-4
_LEAST_LOG = log(_LEAST_S)


def log_of(seconds: float) -> float:
    """The logarithm of a time, as it is learned."""
    return log(seconds) if seconds > _LEAST_S else _LEAST_LOG


class Norm:
    """What is usual in one class, or over all. Pure state; changed only by its owner."""

    __slots__ = ("_long", "_n", "n_unknown", "usual_s")

    def __init__(self) -> None:
        self._n = 0
        self.n_unknown = 0  # calls that began before it was known and still wait
        self._long = 0.0
        self.usual_s = 0.0  # about what a first token takes; 0 before that is known

    def learn(self, log_s: float, n: int = 1) -> None:
        """The logarithm of one time to a first token, or the sum of `n` of them."""
        self._n = n_all = self._n + n
        self._long += (log_s - n * self._long) / max(n, min(N_LONG, n_all))
        if self.usual_s or (n_all >= N_WARM and n_all >= WARM_SHARE * (n_all + self.n_unknown)):
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

    def learn(self, norm: Norm, log_s: float, n: int = 1) -> None:
        """The logarithm of one time to a first token of this class, or the sum of `n` of them."""
        norm.learn(log_s, n)
        self.all.learn(log_s, n)

    def __repr__(self) -> str:
        usual_s = self.all.usual_s
        return f"<Usual {f'{usual_s:.3g} s' if usual_s else 'unknown'}, {len(self._by_class)} classes>"
