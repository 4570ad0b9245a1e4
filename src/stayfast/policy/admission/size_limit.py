"""How long a prompt may be on a route.

Problem: one prompt of a million tokens, by accident or not, takes an engine's memory and minutes of its prefill, and fails
at its context limit in the end. Rule: beyond the route's maximum, or that of the client's tier where it has one, a prompt is
refused before anything is spent on it, or goes to the route for such prompts. What is counted are estimated tokens
(`wire.tokens`): the real tokenizer is the upstream's.
Source: the providers' own `context_length_exceeded`. When wrong: the estimate is on the high side, English by a tenth to a
fifth and long numbers by up to three times: set the maximum where it hurts, not to the token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from stayfast.core.setting import About, check_bounds
from stayfast.policy.admission.priority import Tier

_MOST = 100_000_000


@dataclass(frozen=True, slots=True)
class SizeConfig:
    """Of one route. None: any number of tokens. `offline`: the route for what is longer; empty: it is refused."""

    max_input_tokens: Annotated[int | None, About(
        "The longest prompt, in estimated tokens; 413 beyond it. null: any.", minimum=1, maximum=_MOST)] = None
    max_input_by_tier: Annotated[Mapping[str, int], About(
        "The same for tenants of a tier: premium, standard, batch.",
        minimum=1, maximum=_MOST)] = field(default_factory=lambda: MappingProxyType({}))
    offline: Annotated[str, About("The route that longer prompts go to, on its terms. Empty: they are refused.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        for tier in self.max_input_by_tier:
            if tier not in set(Tier):
                raise ValueError(f"max_input_by_tier.{tier} is no tier: there are {', '.join(Tier)}")
        if self.offline and not self.is_bounded:
            raise ValueError("offline is where prompts beyond max_input_tokens go, which is not set")

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound."""
        return self.max_input_tokens is not None or bool(self.max_input_by_tier)

    @property
    def least(self) -> int:
        """What is no longer than so many tokens is not too long for anybody."""
        most = self.max_input_tokens if self.max_input_tokens is not None else _MOST
        return min(most, *self.max_input_by_tier.values()) if self.max_input_by_tier else most

    def most(self, tier: Tier) -> int | None:
        """The most tokens for one tier; None: any number."""
        return self.max_input_by_tier.get(tier, self.max_input_tokens)
