"""A model in an engine process of its own, reached by the native API of llama.cpp's server."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import StayfastError
from stayfast.core.events import EngineState, Fact, Fanout
from stayfast.engine.config import EngineConfig
from stayfast.engine.process import Engine
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.observe.snapshot.process_files import ProcessFiles

N_SLOTS: Final = 2
LOAD_S: Final = 900.0  # of a large model from a slow disk
_ANSWER_S: Final = 600.0
_MAX_BYTES: Final = 1 << 26
_JSON: Final = (("content-type", "application/json"),)


class ModelFailed(Exception):
    """The engine does not load the model, or ends or answers with an error. The message says why."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _FirstCause:
    """A sink that remembers why the engine ended first."""

    def __init__(self) -> None:
        self.detail = ""

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, EngineState) and fact.detail and not self.detail:
            self.detail = fact.detail


class LoadedModel:
    """One model that answers. `slot`: 0 to N_SLOTS - 1; requests of one slot are in order and share the slot's cache."""

    def __init__(self, engine: Engine, client: HttpClient) -> None:
        self._engine = engine
        self._client = client

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer's body. Raises ModelFailed."""
        try:
            reply = await self._client.fetch("POST", path, _JSON, msgspec.json.encode(body), timeout_s=_ANSWER_S,
                                             max_body_bytes=_MAX_BYTES)
        except StayfastError as error:
            raise ModelFailed(f"the engine did not answer {path}: {error}") from error
        if reply.status != HTTPStatus.OK:
            raise ModelFailed(f"the engine answered {path} with status {reply.status}: "
                              f"{reply.body[:300].decode('utf-8', 'replace')}")
        return reply.body

    async def tokenise(self, text: str) -> tuple[list[int], list[int]]:
        """The tokens that the model puts in front of a text, and those of the text."""
        whole, plain = [msgspec.json.decode(
            await self.post("/tokenize", {"content": text, "add_special": is_whole}), type=_Tokens).tokens
            for is_whole in (True, False)]
        return _head_of(whole, plain), plain

    @property
    def resident_bytes(self) -> int | None:
        """Memory of the engine's process that is in use now; None: unknown on this system."""
        return ProcessFiles(Path(f"/proc/{self._engine.pid}")).rss_bytes() or None


def _head_of(whole: Sequence[int], plain: Sequence[int]) -> list[int]:
    for n in range(len(whole) - len(plain) + 1):
        if list(whole[n:n + len(plain)]) == list(plain):
            return list(whole[:n])
    return []


@asynccontextmanager
async def load_model(path: Path, *, ctx_per_slot: int, n_threads: int = 0) -> AsyncIterator[LoadedModel]:
    """Load a model; its process ends with the block. n_threads: 0: one less than the cores. Raises ModelFailed."""
    cause = _FirstCause()
    config = EngineConfig(model=str(path), n_threads=n_threads, n_slots=N_SLOTS, ctx_per_slot=ctx_per_slot,
                          prompt_cache_mib=0, ready_timeout_s=LOAD_S, restart_base_s=3600, restart_cap_s=3600)
    engine = Engine(config, cause, SystemClock(), Random())
    try:
        await engine.start()
    except (ValueError, OSError) as error:
        raise ModelFailed(str(error)) from error
    try:
        if not await _is_ready(engine, cause):
            raise ModelFailed(f"llama.cpp does not load {path}: {cause.detail or 'no answer in time'}")
        assert engine.address is not None
        host, port = engine.address
        client = HttpClient("engine", HttpConfig(f"http://{host}:{port}", http="1.1"), sink=Fanout(), clock=SystemClock())
        try:
            yield LoadedModel(engine, client)
        finally:
            client.close()
    finally:
        await engine.stop()


async def _is_ready(engine: Engine, cause: _FirstCause) -> bool:
    """Wait until the model answers, or its process ended once."""
    until = SystemClock.now() + LOAD_S
    while SystemClock.now() < until and not cause.detail:
        if await engine.wait_ready(Deadline(SystemClock.now() + 0.2)):
            return True
    return False
