"""Counts the input tokens of one route's requests, before they are sent."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from stayfast.core.constants import MAX_NAME
from stayfast.core.types import Request
from stayfast.policy.context.token_estimate import PromptTokens


class TokenCount(msgspec.Struct, frozen=True, gc=False):
    """The input tokens of a request. is_exact: by the model's own vocabulary, or by the upstream."""

    n_tokens: int
    is_exact: bool = False


class TokenCounter(Protocol):
    """Belongs to one loop. Never awaits and never raises for a prompt of unknown form."""

    def count(self, request: Request) -> TokenCount:
        """The input tokens of a request in any client's dialect: texts, tools, and what a chat template adds."""

    def count_text(self, text: str) -> int:
        """The tokens of a text alone, without those that a chat template adds to a message."""


class LearnsTokens(Protocol):
    """What an upstream has learned from the usage that it reports."""

    @property
    def prompt_tokens(self) -> PromptTokens:
        """By route and model."""


class LearnedTokenCounter:
    """Counts as the reported usage of a route's upstreams has shown. Belongs to one loop."""

    __slots__ = ("_of", "_route")

    def __init__(self, route: str, of: Sequence[tuple[LearnsTokens, str]]) -> None:
        """of: the route's upstreams and the model's name at each, best first; an empty name: as the client's."""
        self._route = route
        self._of = tuple(of)

    def count(self, request: Request) -> TokenCount:
        tokens, model = self._choose(request.model)
        return TokenCount(tokens.estimate(self._route, model, request.body))

    def count_text(self, text: str) -> int:
        tokens, model = self._choose(self._route)
        return tokens.estimate_text(self._route, model, msgspec.json.encode(text)[1:-1])

    def _choose(self, requested: str) -> tuple[PromptTokens, str]:
        """The upstream that has shown most."""
        if not self._of:
            return _NOTHING_LEARNED, requested[:MAX_NAME]
        found = [(of.prompt_tokens, (model or requested)[:MAX_NAME]) for of, model in self._of]
        return found[0] if len(found) == 1 else max(found, key=lambda pair: pair[0].n_learned(self._route, pair[1]))


_NOTHING_LEARNED: Final = PromptTokens()
UNLEARNED: Final = LearnedTokenCounter("", ())  # of a route without upstreams
