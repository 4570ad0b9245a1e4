"""The steps of the context stage of each route."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stayfast.compose.caching import Stores
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.types import SUMMARY
from stayfast.pipeline.context.diet_step import DietStep
from stayfast.pipeline.context.history_jobs import HistoryState, SummaryMaker
from stayfast.pipeline.context.history_step import HistoryStep
from stayfast.pipeline.context.history_summarizer import HistorySummarizer
from stayfast.pipeline.context.step import ContextStep
from stayfast.pipeline.context.token_counter import TokenCounter
from stayfast.pipeline.own_request import BackgroundModel, Serve
from stayfast.pipeline.plan import Route
from stayfast.policy.context.diet import DietConfig
from stayfast.policy.context.history import HistoryConfig
from stayfast.settings import Settings
from stayfast.stores.base import Store
from stayfast.stores.memory import MemoryStore


class ContextSteps:
    """Makes the steps of one set of settings; what they have learned and stored is taken over at a reload."""

    __slots__ = ("_clock", "_is_shedding", "_serve", "_settings", "_stores")

    def __init__(self, settings: Settings, stores: Stores, *, clock: Clock, serve: Serve, is_shedding: Callable[[], bool]
                 ) -> None:
        """serve: for requests to the routes that summarize. is_shedding: whether requests are rejected now."""
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._serve = serve
        self._is_shedding = is_shedding

    def make_steps(self, route: str, before: Route | None, counter: TokenCounter) -> tuple[ContextStep, ...]:
        """The steps of a route, in their order. before: its last version, at a reload. counter: of the route."""
        config = self._settings.routes[route].context
        history = self._make_history(config.history, find_history(before), counter)
        diet = make_diet_steps(config.diet)
        return (history, *diet) if history is not None else diet

    def _make_history(self, config: HistoryConfig, before: HistoryStep | None, counter: TokenCounter) -> HistoryStep | None:
        if config.mode == "off":
            return None
        store, state = self._choose_store(config, before), before.state if before is not None else HistoryState()
        maker = None
        if config.mode == "summarize":
            model = BackgroundModel(config.by, SUMMARY, self._serve, self._clock, config.timeout_s)
            summarizer = HistorySummarizer(config.by, model.answer, self._clock, self._run_aside, config.pins)
            maker = SummaryMaker(config, store, counter, summarizer, state, clock=self._clock,
                                 is_shedding=self._is_shedding)
        return HistoryStep(config, store, counter, maker, state, clock=self._clock)

    async def _run_aside(self, work: Callable[[], Any]) -> Any:
        """On a thread, so that the loop is not blocked; in virtual time here, since its loop waits for no thread."""
        return await asyncio.to_thread(work) if isinstance(self._clock, SystemClock) else work()

    def _choose_store(self, config: HistoryConfig, before: HistoryStep | None) -> Store:
        if config.store:
            return self._stores[config.store]
        if before is not None and (before.config.store, before.config.max_bytes) == ("", config.max_bytes):
            return before.store
        return MemoryStore(config.max_bytes)


def make_diet_steps(config: DietConfig) -> tuple[ContextStep, ...]:
    """The step that leaves parts of prompts out; empty if nothing is to be left out."""
    return (DietStep(config),) if config.drop_repeats or config.minify_json else ()


def find_history(route: Route | None) -> HistoryStep | None:
    """The step of a route that shortens long conversations."""
    steps = route.policy.context if route is not None else ()
    return next((step for step in steps if isinstance(step, HistoryStep)), None)


def history_steps(routes: Mapping[str, Route]) -> Iterator[tuple[str, HistoryStep]]:
    """All of them, by route."""
    for name, route in routes.items():
        if (step := find_history(route)) is not None:
            yield name, step
