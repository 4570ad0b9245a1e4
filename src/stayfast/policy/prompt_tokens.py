"""Estimates the tokens of a prompt from its bytes, for attempts whose upstream does not report them.

Problem: a cancelled attempt is billed, but the upstream reports no tokens for it. The usual four bytes a token are wrong by
up to a factor of three: the JSON around short prompts has few tokens, code and other languages have many. Rule: use the
ratio in the reported prompts of the same model and about the same size:

    estimate = bytes * (reported tokens / their bytes)

The sums are those of prompts of the same octave (power of two) of bytes if there are at least MIN_PROMPTS, else those of all
prompts of the model. Without any, a token has 4 bytes. The sums are halved at HALVE_AT prompts, so that new traffic counts
more.
When wrong: the bytes of the first images among prompts of a size are counted as text.
"""

from typing import Final

from stayfast.core.constants import BYTES_A_TOKEN

MIN_PROMPTS: Final = 4
HALVE_AT: Final = 256
MAX_CLASSES: Final = 1024  # pairs of a model and an octave
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
            if sums[0] >= HALVE_AT:
                sums[:] = [value / 2 for value in sums]
            sums[0] += 1
            sums[1] += n_bytes
            sums[2] += n_tokens

    def estimate(self, model: str, n_bytes: int) -> int:
        """The estimated tokens of a prompt of `n_bytes` for this model."""
        for octave in (n_bytes.bit_length(), _ALL):
            sums = self._of.get((model, octave))
            if sums is not None and (octave == _ALL or sums[0] >= MIN_PROMPTS):
                return round(n_bytes * sums[2] / sums[1])
        return n_bytes // BYTES_A_TOKEN
