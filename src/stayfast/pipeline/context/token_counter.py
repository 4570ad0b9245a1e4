"""Counts the input tokens of one route's requests, before they are sent."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from stayfast.core.types import Request
from stayfast.policy.prompt_tokens import PromptTokens


class TokenCount(msgspec.Struct, frozen=True, gc=False):
    """The input tokens of a request or a text. is_exact: by the model's own vocabulary, or by the upstream."""

    n_tokens: int
    is_exact: bool = False


class TokenCounter(Protocol):
    """Belongs to one loop. Never awaits and never raises for a prompt of unknown form."""

    def count(self, request: Request) -> TokenCount:
        """The input tokens of a request in any client's dialect: texts, tools, and what a chat template adds."""

    def count_text(self, text: str) -> int:
        """The tokens of a text alone, without those that a chat template adds to a message."""


class LearnedFrom(Protocol):
    """An upstream that learns token counts from the usage it reports."""

    @property
    def prompt_tokens(self) -> PromptTokens:
        """What it has learned."""


class LearnedTokenCounter:
    """Counts as the reported usage of a route's upstreams has shown. Belongs to one loop."""

    __slots__ = ("_of",)

    def __init__(self, of: Sequence[tuple[LearnedFrom, str]]) -> None:
        """of: the route's upstreams and the model's name at each, first choice first; an empty name: as the client's."""
        self._of = tuple(of)

    def count(self, request: Request) -> TokenCount:
        return TokenCount(self._estimate(request.model, len(request.body)))

    def count_text(self, text: str) -> int:
        return self._estimate("", len(text.encode())) if text else 0

    def _estimate(self, model: str, n_bytes: int) -> int:
        if not self._of:
            return PromptTokens().estimate(model, n_bytes)
        first, own_model = self._of[0]
        return first.prompt_tokens.estimate(own_model or model, n_bytes)


UNLEARNED: Final = LearnedTokenCounter(())  # of a route without upstreams: four bytes a token
