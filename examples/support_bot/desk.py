"""What all turns share, opened once: the pages, their vectors where an embedder is installed, and a model."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from random import Random

from openai import AsyncOpenAI

from examples.support_bot.passages import changes, passages
from examples.support_bot.turn import SLOW_S, Desk, Finds, Writer
from examples.support_bot.words import Words
from stayfast.core.clock import SystemClock
from stayfast.core.clock import Deadline
from stayfast.core.events import Fact
from stayfast.engine.config import TINY_ALIAS, EngineConfig
from stayfast.engine.process import Engine
from stayfast.settings.environment import cache_home, environment
from stayfast.stores.embedder import HOW_TO, NoEmbedder
from stayfast.turns.chat import ChatModel

ROOT = Path(__file__).parents[2]
_READY_S = 30.0


class Unavailable(Exception):
    """Something that this machine does not have; its text says what to do about it."""


class _Quiet:
    """What the engine says of itself goes nowhere: when it is not there, the answer says so."""

    def emit(self, fact: Fact) -> None:
        """Take one."""


def words(root: Path = ROOT) -> tuple[Words, Words]:
    """The pages and the change log, by their words. Blocks for some 100 ms."""
    return Words(passages(root)), Words(changes(root))


async def meaning(docs: Words) -> Finds:
    """The pages by their meaning; the first time that takes some seconds of another thread. Raises Unavailable."""
    try:
        return await asyncio.to_thread(_meaning, docs)
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed: {HOW_TO}") from error
    except (NoEmbedder, OSError, sqlite3.Error) as error:
        raise Unavailable(str(error)) from error


def _meaning(docs: Words) -> Finds:
    cache_dir = cache_home(environment())
    cache_dir.mkdir(parents=True, exist_ok=True)
    found: Finds = import_module("examples.support_bot.meaning").opened(docs.passages, cache_dir)
    return found


@asynccontextmanager
async def embedded() -> AsyncIterator[Writer]:
    """The little model that ships with the project, in a process of its own. Raises Unavailable."""
    engine = Engine(EngineConfig(n_slots=2), _Quiet(), SystemClock(), Random(os.urandom(16)))
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
async def remote(base_url: str, name: str) -> AsyncIterator[Writer]:
    """Any model behind OpenAI's chat API."""
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield Writer(ChatModel(client, name), name, reads=name != TINY_ALIAS)


@asynccontextmanager
async def desk(writer: AbstractAsyncContextManager[Writer], slow_s: Mapping[str, float] = SLOW_S) -> AsyncIterator[Desk]:
    """All of it, with what is not here named."""
    without: dict[str, str] = {}
    docs, log = words()
    async with AsyncExitStack() as opened:
        its_meaning, its_writer = None, None
        try:
            its_meaning = await meaning(docs)
            opened.callback(its_meaning.close)
        except Unavailable as error:
            without["meaning"] = str(error)
        try:
            its_writer = await opened.enter_async_context(writer)
        except Unavailable as error:
            without["answer"] = str(error)
        yield Desk(docs, log, its_meaning, its_writer, without, slow_s)
