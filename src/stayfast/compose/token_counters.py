"""The token counter of each route."""

from stayfast.pipeline.context.token_counter import LearnedTokenCounter, TokenCounter
from stayfast.settings import Settings
from stayfast.upstreams.state.upstream_state import Registry


def make_token_counter(name: str, settings: Settings, registry: Registry) -> TokenCounter:
    """The counter of a route."""
    return LearnedTokenCounter([(registry[upstream].baselines, settings.model_for(name, upstream) or "")
                                for upstream in settings.routes[name].upstreams])
