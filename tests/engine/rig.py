"""What the engine's tests share: a sink that remembers, an engine on a random model, and plain HTTP to its port."""

import asyncio
import json
import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.events import EngineState, Fact, Fanout
from stayfast.engine.config import EngineConfig
from stayfast.engine.process import Engine
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from stayfast.upstreams.embedded import NATIVE_LOCAL_APIS, TASK_APIS, LocalUpstream
from tests.engine.random_gguf import write_random_gguf

BOUND_S = 20.0  # a child is ready in a tenth of a second; a busy machine may take longer, a hang must not take for ever


class Facts:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.all: list[EngineState] = []
        self._came = asyncio.Event()

    def emit(self, fact: Fact) -> None:
        """Take one fact; the engine emits no other kind."""
        assert isinstance(fact, EngineState)
        self.all.append(fact)
        self._came.set()

    async def until(self, state: str, n_times: int = 1) -> None:
        """Wait, within the bound, until `state` has been told so often."""
        async with asyncio.timeout_at(soon().at):
            while self.states().count(state) < n_times:
                self._came.clear()
                await self._came.wait()

    def states(self) -> list[str]:
        """The states told so far, in order."""
        return [fact.state for fact in self.all]


def random_config(tmp_path: Path, **changes: Any) -> EngineConfig:
    """One thread and a random model; `changes` are fields of EngineConfig."""
    path = write_random_gguf(tmp_path / "random.gguf")
    config = EngineConfig(model=str(path), n_threads=1, n_slots=2, ctx_per_slot=1024, restart_base_s=0.02)
    return replace(config, **changes)


def engine_on(config: EngineConfig, facts: Facts, rng: Random | None = None, name: str = "") -> Engine:
    """An engine that is not started yet."""
    return Engine(config, facts, SystemClock(), rng or Random(), name=name)


@asynccontextmanager
async def serve_engine(config: EngineConfig, name: str = "") -> AsyncIterator[tuple[Engine, LocalUpstream]]:
    """A ready engine and the upstream that sends to it."""
    clock = SystemClock()
    engine = engine_on(config, Facts(), name=name)
    await engine.start()
    try:
        assert await engine.wait_ready(soon())
        yield engine, LocalUpstream("local", engine, lambda address: DialectUpstream(
            "local", DialectConfig("embedded", TASK_APIS[config.task] & NATIVE_LOCAL_APIS, always_streams=True,
                                   request_usage=True),
            HttpClient("local", HttpConfig(f"http://{address[0]}:{address[1]}/v1", http="1.1"), sink=Fanout(), clock=clock),
            clock), clock, apis=TASK_APIS[config.task])
    finally:
        await engine.stop()


def soon() -> Deadline:
    """A deadline that only a hang misses."""
    return Deadline(SystemClock.now() + BOUND_S)


def ends_within(pid: int, seconds: float) -> bool:
    """Whether the process, ours or not, ends in that time; a zombie has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


async def ask(engine: Engine, path: str, body: dict[str, Any] | None = None, *headers: str) -> str:
    """One request, the whole answer with its head."""
    reader, writer = await send(engine, path, body, *headers)
    answer = await reader.read()
    writer.transport.abort()
    return answer.decode()


async def send(engine: Engine, path: str, body: dict[str, Any] | None = None,
               *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request (a POST when there is a body) and leave the answer to the caller."""
    assert engine.address is not None
    reader, writer = await asyncio.open_connection(*engine.address)
    data = b"" if body is None else json.dumps(body).encode()
    verb = "GET" if body is None else "POST"
    head = [f"{verb} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(data)}", *headers]
    writer.write("\r\n".join([*head, "", ""]).encode() + data)
    return reader, writer


async def metric(engine: Engine, name: str) -> float:
    """One of llama.cpp's own counters or gauges."""
    page = await ask(engine, "/metrics")
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"llamacpp:{name} "))
