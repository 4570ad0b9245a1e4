"""The hit rate of one upstream's prefix cache: as its answers report it (truth), and as routing believed it.

Problem: routing by a belief that is wrong makes requests slow and looks well: it counts its own hits. Rule: compare both
over the same answers, weighted by tokens, newest first (half in about 350 answers):

    truth = sum cached tokens by usage / sum input tokens        belief = sum believed tokens / sum input tokens

An upstream whose usage has never shown a cached token may not report any: then the truth is unknown, not 0. vLLM omits the
count where it is 0, so its absence in single answers counts as 0 once there was one.
Source: `prompt_tokens_details.cached_tokens` of OpenAI, vLLM (`--enable-prompt-tokens-details`), SGLang
(`--enable-cache-report`). When wrong: an engine whose cache never hits looks like one that does not report.
"""

from typing import Final

FADES: Final = 0.998  # an answer


class CacheTruth:
    """Pure state; changed only by its owner. Token counts fade, except `n_answers`."""

    __slots__ = ("n_answers", "n_believed", "n_cached", "n_input", "reports")

    def __init__(self) -> None:
        self.reports = False  # its usage has shown cached tokens
        self.n_answers = 0
        self.n_input = self.n_cached = self.n_believed = 0.0

    def add(self, n_input: int, n_cached: int, believed_share: float) -> None:
        """An answer with n_input prompt tokens, of which n_cached were reported as cached."""
        if n_cached and not self.reports:
            self.reports = True
            self.n_answers = 0
            self.n_input = self.n_cached = self.n_believed = 0.0  # what was counted before may have been unreported
        self.n_answers += 1
        self.n_input = self.n_input * FADES + n_input
        self.n_cached = self.n_cached * FADES + min(n_cached, n_input)
        self.n_believed = self.n_believed * FADES + believed_share * n_input

    @property
    def truth(self) -> float | None:
        """The share of input tokens from its cache; None: unknown."""
        return self.n_cached / self.n_input if self.reports and self.n_input else None

    @property
    def belief(self) -> float | None:
        """The share that routing believed to be in its cache; None: no answers."""
        return self.n_believed / self.n_input if self.n_input else None

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {'unknown' if share is None else f'{share:.0%}'}"
                           for name, share in (("truth", self.truth), ("belief", self.belief)))
        return f"<CacheTruth of {self.n_answers} answers: {shares}>"
