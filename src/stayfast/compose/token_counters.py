"""The token counters of the routes, and the vocabularies that they share."""

import asyncio
from collections.abc import Mapping

from stayfast.compose.tiers import members_of
from stayfast.pipeline.context.count_answers import CountAnswers
from stayfast.pipeline.context.exact_counter import ExactTokenCounter
from stayfast.pipeline.context.token_counter import LearnedTokenCounter, TokenCounter
from stayfast.pipeline.plan import Route
from stayfast.policy.context.config import LEARNED, UPSTREAM
from stayfast.settings import Settings
from stayfast.stores.exact_tokenizer import NoTokenizer, TokenizerSlot
from stayfast.upstreams.state.registry import Registry


class TokenCounters:
    """Makes the counters of one set of settings. old: the routes before a reload, whose vocabularies stay loaded."""

    __slots__ = ("_registry", "_settings", "_slots")

    def __init__(self, settings: Settings, registry: Registry, old: Mapping[str, Route]) -> None:
        self._settings = settings
        self._registry = registry
        self._slots = {slot.name: slot for slot in tokenizer_slots(old)}

    def make(self, name: str) -> tuple[TokenCounter, CountAnswers]:
        """The counter of a route, and what answers its clients' requests for counts."""
        settings = self._settings
        route_settings = settings.routes[name]
        members = list(members_of(name, settings))
        baselines = [self._registry[member].baselines for member, _ in members]
        models = [model or "" for _, model in members]
        learned = LearnedTokenCounter(name, list(zip(baselines, models, strict=True)))
        vocabulary = route_settings.context.tokenizer
        exact = None
        if vocabulary not in (LEARNED, UPSTREAM):
            exact = ExactTokenCounter(self._slots.setdefault(vocabulary, TokenizerSlot(vocabulary)), learned)
        for each in baselines:
            each.prompt_tokens.pass_on(name, exact.learn if exact is not None else None)
        if exact is None:
            return learned, CountAnswers(learned, uses_upstream=vocabulary == UPSTREAM)
        return exact, CountAnswers(exact, exact.encode, exact.count_whole)


def tokenizer_slots(routes: Mapping[str, Route]) -> list[TokenizerSlot]:
    """The vocabularies of all routes, each once."""
    found = [route.policy.counter.slot for route in routes.values() if isinstance(route.policy.counter, ExactTokenCounter)]
    return list({slot.name: slot for slot in found if isinstance(slot, TokenizerSlot)}.values())


async def load_tokenizers(routes: Mapping[str, Route]) -> list[str]:
    """Load the vocabularies of all routes on another thread. Returns the errors: such routes count by their usage."""
    errors = []
    for slot in tokenizer_slots(routes):
        try:
            await asyncio.to_thread(slot.load)
        except NoTokenizer as error:
            errors.append(str(error))
    return errors
