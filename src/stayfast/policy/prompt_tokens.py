"""Estimate of a prompt's tokens from its bytes, if the upstream does not report them.

Problem: a cancelled attempt is billed but reports nothing, and four bytes a token is wrong by up to a factor of three: JSON
around short prompts has few tokens, code and other languages have many. Rule: use the ratio of the reported prompts of the
same model and about the same size:

    estimate = bytes * (tokens so far / bytes so far),   of its octave of bytes from N_KNOWN on, else of the model, else / 4

Both sums are halved at N_HALVED prompts, so that new traffic counts more.
When wrong: the first pictures among prompts of a size are counted as text.
"""

from typing import Final

from stayfast.core.constants import BYTES_A_TOKEN

N_KNOWN: Final = 4
N_HALVED: Final = 256
MAX_CLASSES: Final = 1024  # of model and octave
_ALL: Final = -1


class PromptTokens:
    """The estimates of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], list[float]] = {}  # by model and octave: prompts, bytes, tokens

    def learn(self, model: str, n_bytes: int, n_tokens: int) -> None:
        """Record the upstream's token count of a prompt."""
        for octave in (_ALL, n_bytes.bit_length()):
            sums = self._of.get((model, octave))
            if sums is None:
                if len(self._of) >= MAX_CLASSES:
                    del self._of[next(iter(self._of))]
                self._of[model, octave] = sums = [0.0, 0.0, 0.0]
            if sums[0] >= N_HALVED:
                sums[:] = [value / 2 for value in sums]
            sums[0] += 1
            sums[1] += n_bytes
            sums[2] += n_tokens

    def estimate(self, model: str, n_bytes: int) -> int:
        for octave in (n_bytes.bit_length(), _ALL):
            sums = self._of.get((model, octave))
            if sums is not None and (octave == _ALL or sums[0] >= N_KNOWN):
                return round(n_bytes * sums[2] / sums[1])
        return n_bytes // BYTES_A_TOKEN
