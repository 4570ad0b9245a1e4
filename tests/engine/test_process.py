"""The embedded engine's good days, on a real llama.cpp with a random model."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.engine.config import EngineConfig
from stayfast.engine.process import EnginePhase
from tests.engine.rig import Facts, ask, ends_within, engine_on, metric, random_config, send, soon

pytestmark = pytest.mark.sockets

Run = Callable[[Coroutine[Any, Any, None]], None]
CHAT = "/v1/chat/completions"
SECRET = "zanzibar-4711"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_engine_starts_answers_and_stops(tmp_path: Path, run: Run) -> None:
    """From start to stop on both loops: a token is generated, every state is told, no process stays behind."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(random_config(tmp_path), facts)
        await engine.start()
        assert await engine.wait_ready(soon())
        assert "200 OK" in await ask(engine, CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
        pid = engine.pid
        assert pid is not None
        await engine.stop()
        assert facts.states() == ["starting", "ready", "stopped"]
        assert {fact.pid for fact in facts.all} == {pid}
        assert ends_within(pid, 0)
        assert (engine.state, engine.pid) == (EnginePhase.STOPPED, None)
    run(life())


def test_engine_start_returns_before_model_is_loaded(tmp_path: Path) -> None:
    """`start` gives the address and comes back while the child still has to be born; stopping it then leaves nothing."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(random_config(tmp_path), facts)
        began_at = SystemClock.now()
        await engine.start()
        assert SystemClock.now() - began_at < 1
        assert engine.state is EnginePhase.STARTING
        assert engine.address is not None
        assert 20_000 <= engine.address[1] < 32_768
        assert not await engine.wait_ready(Deadline(SystemClock.now()))
        await engine.stop()
        assert facts.states()[-1] == "stopped"
    uvloop.run(life())


def test_engine_wait_ready_ends_at_stop(tmp_path: Path) -> None:
    """Whoever waits for readiness is told at once that it will not come."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path), Facts())
        await engine.start()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(engine.wait_ready(soon()))
            await asyncio.sleep(0)
            await engine.stop()
        assert waiting.result() is False
    uvloop.run(life())


def test_engine_can_restart_after_stop_and_not_start_twice(tmp_path: Path) -> None:
    """A stopped engine starts again; a running one refuses."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path), Facts())
        for _ in range(2):
            await engine.start()
            with pytest.raises(RuntimeError, match="running already"):
                await engine.start()
            assert await engine.wait_ready(soon())
            await engine.stop()
            await engine.stop()
    uvloop.run(life())


def test_engine_child_has_its_own_session(tmp_path: Path) -> None:
    """The child has a session of its own: the gateway drains before its engine goes."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path), Facts())
        await engine.start()
        assert await engine.wait_ready(soon())
        assert engine.pid is not None
        assert os.getsid(engine.pid) == engine.pid
        await engine.stop()
    uvloop.run(life())


def test_engine_closed_stream_stops_generation(tmp_path: Path) -> None:
    """By the engine's own counter: the client reads one token of thousands and leaves."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path, ctx_per_slot=16_384), Facts())
        await engine.start()
        assert await engine.wait_ready(soon())
        reader, writer = await send(engine, CHAT, {"messages": [{"role": "user", "content": "Go"}], "stream": True,
                                                   "max_tokens": 16_000})
        await reader.readuntil(b'"delta":{"content":"')
        writer.transport.abort()
        async with asyncio.timeout_at(soon().at):
            is_busy = 1.0
            while is_busy:
                await asyncio.sleep(0.005)
                is_busy = await metric(engine, "requests_processing")
        assert 0 < await metric(engine, "tokens_predicted_total") < 4_000
        await engine.stop()
    uvloop.run(life())


def test_engine_stop_does_not_wait_for_streams(tmp_path: Path) -> None:
    """A client that reads no more must not hold up the end: llama.cpp would wait for it."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path, ctx_per_slot=16_384), Facts())
        await engine.start()
        assert await engine.wait_ready(soon())
        reader, writer = await send(engine, CHAT, {"messages": [{"role": "user", "content": "Go"}], "stream": True,
                                                   "max_tokens": 16_000})
        await reader.readuntil(b'"delta":{"content":"')
        began_at = SystemClock.now()
        await engine.stop()
        assert SystemClock.now() - began_at < 1.0  # a child that does not end by itself is killed after 2 s
        writer.transport.abort()
    uvloop.run(life())


def test_engine_stderr_has_no_prompts(tmp_path: Path) -> None:
    """llama.cpp quotes a bad grammar on stderr; neither that nor a prompt may be in what is kept or told."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(random_config(tmp_path), facts)
        await engine.start()
        assert await engine.wait_ready(soon())
        messages = [{"role": "user", "content": SECRET}]
        assert "400 Bad Request" in await ask(engine, CHAT, {"messages": messages, "grammar": f'root ::= "a" {SECRET} ['})
        assert "200 OK" in await ask(engine, CHAT, {"messages": messages, "max_tokens": 1})
        assert engine.pid is not None
        os.kill(engine.pid, 9)
        await facts.until("crashed")
        assert SECRET not in repr(facts.all)
        await engine.stop()
    uvloop.run(life())


def test_engine_serves_no_ui_and_no_slots(tmp_path: Path) -> None:
    """Only what the gateway uses is open: no web page, no list of slots, no leave for other origins."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path), Facts())
        await engine.start()
        assert await engine.wait_ready(soon())
        assert "404 Not Found" in await ask(engine, "/", None, "Accept-Encoding: gzip")
        assert "501 Not Implemented" in await ask(engine, "/slots")
        assert "Access-Control-Allow-Origin: \r\n" in await ask(engine, "/health", None, "Origin: http://elsewhere.example")
        await engine.stop()
    uvloop.run(life())


def test_engine_answers_do_not_contain_paths(tmp_path: Path) -> None:
    """The model's name in an answer is the file's, without where it lies."""
    async def life() -> None:
        engine = engine_on(random_config(tmp_path), Facts())
        await engine.start()
        assert await engine.wait_ready(soon())
        answer = await ask(engine, "/v1/completions", {"prompt": "Hi", "max_tokens": 1})
        assert '"model":"random"' in answer
        assert str(tmp_path) not in answer
        await engine.stop()
    uvloop.run(life())


def test_engine_invalid_model_is_refused_at_start(tmp_path: Path) -> None:
    """`start` raises before it makes a process, and the engine stays stopped."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(EngineConfig(model=str(tmp_path / "none.gguf")), facts)
        with pytest.raises(ValueError, match=r"none\.gguf' cannot be read: No such file"):
            await engine.start()
        assert (engine.state, facts.all) == (EnginePhase.STOPPED, [])
        await engine.stop()
    uvloop.run(life())
