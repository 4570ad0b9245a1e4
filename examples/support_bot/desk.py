"""The state shared by all turns: the docs, their vectors if an embedder is installed, and a model."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from random import Random

from openai import AsyncOpenAI

from examples.support_bot.passages import load_changes, load_passages
from examples.support_bot.turn import SLOW_S, Desk, MeaningSearch, Writer
from examples.support_bot.words import Words
from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.events import Fact
from stayfast.engine.config import TINY_ALIAS, EngineConfig
from stayfast.engine.process import Engine
from stayfast.settings.environment import cache_directory, read_environment
from stayfast.stores.embedder import INSTALL_HINT, NoEmbedder
from stayfast.turns.chat import ChatModel

ROOT = Path(__file__).parents[2]
_READY_S = 30.0


class Unavailable(Exception):
    """A part is not installed on this machine; the message has the remedy."""


class _NullSink:
    """Drops the events of the engine: a missing model is reported in the answer."""

    def emit(self, fact: Fact) -> None:
        pass


def load_words(root: Path = ROOT) -> tuple[Words, Words]:
    """Full text indexes of the docs and the change log. Blocks for some 100 ms."""
    return Words(load_passages(root)), Words(load_changes(root))


async def load_meaning(docs: Words) -> MeaningSearch:
    """The semantic index of the docs; the first time it takes seconds, in a thread. Raises Unavailable."""
    try:
        return await asyncio.to_thread(_load_meaning, docs)
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed: {INSTALL_HINT}") from error
    except (NoEmbedder, OSError, sqlite3.Error) as error:
        raise Unavailable(str(error)) from error


def _load_meaning(docs: Words) -> MeaningSearch:
    cache_dir = cache_directory(read_environment())
    cache_dir.mkdir(parents=True, exist_ok=True)
    search: MeaningSearch = import_module("examples.support_bot.meaning").open_meaning(docs.passages, cache_dir)
    return search


@asynccontextmanager
async def embedded_writer() -> AsyncIterator[Writer]:
    """The embedded model, in its own process. Raises Unavailable."""
    engine = Engine(EngineConfig(n_slots=2), _NullSink(), SystemClock(), Random(os.urandom(16)))
    try:
        await engine.start()
    except (ValueError, OSError) as error:
        raise Unavailable(str(error)) from error
    try:
        if not await engine.wait_ready(Deadline(SystemClock.now() + _READY_S)) or engine.address is None:
            raise Unavailable("the embedded model did not start")
        host, port = engine.address
        async with AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0) as client:
            yield Writer(ChatModel(client, TINY_ALIAS), TINY_ALIAS, reads=False)
    finally:
        await engine.stop()


@asynccontextmanager
async def remote_writer(base_url: str, name: str) -> AsyncIterator[Writer]:
    """Any model behind OpenAI's chat API."""
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield Writer(ChatModel(client, name), name, reads=name != TINY_ALIAS)


@asynccontextmanager
async def open_desk(writer: AbstractAsyncContextManager[Writer],
                    slow_s: Mapping[str, float] = SLOW_S) -> AsyncIterator[Desk]:
    """Open everything; missing parts are listed in `without`."""
    without: dict[str, str] = {}
    docs, log = load_words()
    async with AsyncExitStack() as stack:
        search, open_writer = None, None
        try:
            search = await load_meaning(docs)
            stack.callback(search.close)
        except Unavailable as error:
            without["meaning"] = str(error)
        try:
            open_writer = await stack.enter_async_context(writer)
        except Unavailable as error:
            without["answer"] = str(error)
        yield Desk(docs, log, search, open_writer, without, slow_s)
