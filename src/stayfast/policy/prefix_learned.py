"""What an upstream's answers tell of its cache of prompts' beginnings: from which length on it keeps them, how many bytes a
token has, and what it will not be told.

Problem: tables of floors and of fields are old, wrong, or of another endpoint than the one that answers to a model's name.
Rule: two answers that neither wrote nor read what was marked raise the floor to that length; a field that a refusal names,
where the same request without it is answered, is left out. Both hold for an hour, for one model of one upstream.
When wrong: silence may be a provider's bad minute. So the floor rises to MOST_TIMES what the table says at most, and a
prompt no longer than the silent ones that is kept after all takes it back.
"""

from dataclasses import replace
from typing import Final

from stayfast.policy.prefix_rules import HOUR_S, PrefixRules

N_SILENT: Final = 2
MOST_TIMES: Final = 4.0
KEY: Final = "prompt_cache_key"


class Floor:
    """The length from which one model of one upstream keeps what is marked. Instants never go backwards."""

    __slots__ = ("_least", "_n_silent", "_raised", "_silent", "_until")

    def __init__(self, tokens: float) -> None:
        self._least = tokens
        self._n_silent = 0
        self._silent = 0.0  # how much was marked when it said nothing
        self._raised = tokens
        self._until = 0.0

    def tokens(self, now: float) -> float:
        """What is taken for it."""
        return self._raised if now < self._until else self._least

    def told(self, n_marked: float, *, n_read: int, n_written: int, now: float) -> None:
        """An answer to a prompt of which so many tokens were marked."""
        if n_read or n_written:
            self._n_silent = 0
            if n_marked <= self._silent:
                self._until = now
            return
        self._n_silent += 1
        if self._n_silent >= N_SILENT:
            self._n_silent = 0
            self._silent = n_marked
            self._raised = max(self.tokens(now), min(n_marked, self._least * MOST_TIMES))
            self._until = now + HOUR_S


class Scale:
    """How many bytes of JSON a token has, at one model: about 4, until its answers have told better."""

    __slots__ = ("bytes_a_token",)

    def __init__(self) -> None:
        self.bytes_a_token = 4.0

    def told(self, n_bytes: int, n_tokens: int) -> None:
        """A prompt of so many bytes was counted."""
        if n_tokens and n_bytes:
            self.bytes_a_token += 0.1 * (min(20.0, max(1.0, n_bytes / n_tokens)) - self.bytes_a_token)


class Refusals:
    """Members of a request that one model of one upstream does not take, with when they are tried again."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, member: str, now: float) -> None:
        """It was refused, and the same request without it was answered."""
        self._until[member] = now + HOUR_S

    def without(self, rules: PrefixRules, now: float) -> PrefixRules:
        """The rules, as far as they can be said there."""
        for member, until in self._until.items():
            if now < until:
                rules = (replace(rules, has_key=False) if member == KEY
                         else replace(rules, marks="none", most_marks=0, marks_end=False))
        return rules
