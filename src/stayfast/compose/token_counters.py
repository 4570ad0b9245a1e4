"""The token counter of each route."""

from stayfast.compose.tiers import members_of
from stayfast.pipeline.context.token_counter import LearnedTokenCounter, TokenCounter
from stayfast.settings import Settings
from stayfast.upstreams.state.upstream_state import Registry


def make_token_counter(name: str, settings: Settings, registry: Registry) -> TokenCounter:
    """The counter of a route."""
    return LearnedTokenCounter(name, [(registry[member].baselines, model or "")
                                      for member, model in members_of(name, settings)])
