"""The embedded engine's bad days: it is killed, cannot load, loses its port, loses its parent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import uvloop

from stayfast.engine.config import EngineConfig
from stayfast.engine.fit import fit_engine
from stayfast.engine.process import EnginePhase, child_command
from tests.engine.rig import BOUND_S, Facts, ask, ends_within, engine_on, random_config, soon

pytestmark = pytest.mark.sockets

PARENT = """
import asyncio, random, sys
from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.events import Fanout
from stayfast.engine.config import EngineConfig
from stayfast.engine.process import Engine

async def main():
    clock = SystemClock()
    engine = Engine(EngineConfig(model=sys.argv[1], n_threads=1), Fanout(), clock, random.Random())
    await engine.start()
    assert await engine.wait_ready(Deadline(clock.now() + 20))
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_engine_killed_child_restarts_on_same_port(tmp_path: Path) -> None:
    """kill -9: told as a crash, started again, ready again, at the same address with another process."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(random_config(tmp_path), facts)
        await engine.start()
        assert await engine.wait_ready(soon())
        pid, address = engine.pid, engine.address
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await facts.until("ready", 2)
        assert facts.states() == ["starting", "ready", "crashed", "starting", "ready"]
        assert (facts.all[2].pid, facts.all[2].detail) == (pid, "killed by SIGKILL")
        assert engine.address == address
        assert engine.pid != pid
        assert "200 OK" in await ask(engine, "/v1/completions", {"prompt": "Hi", "max_tokens": 1})
        await engine.stop()
    uvloop.run(life())


@pytest.mark.parametrize(("healthy_after_s", "ceilings_s"), [(0.0, [0.02, 0.02, 0.02]), (60.0, [0.02, 0.04, 0.08])])
def test_engine_backoff_grows_with_crashes_in_row(tmp_path: Path, healthy_after_s: float, ceilings_s: list[float]) -> None:
    """A crash after a healthy time is a first crash again; one before that doubles the pause."""
    class Dice(Random):
        def __init__(self) -> None:
            super().__init__()
            self.drawn_s: list[float] = []

        def uniform(self, a: float, b: float) -> float:
            self.drawn_s.append(2 * b)
            return b

    async def life() -> None:
        facts, dice = Facts(), Dice()
        engine = engine_on(random_config(tmp_path, healthy_after_s=healthy_after_s), facts, dice)
        await engine.start()
        for n_times in (1, 2, 3):
            await facts.until("ready", n_times)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await facts.until("crashed", n_times)
        assert dice.drawn_s == ceilings_s
        await engine.stop()
    uvloop.run(life())


def test_engine_corrupt_model_backs_off_with_cause(tmp_path: Path) -> None:
    """A file without a tensor passes the checks before loading and fails to load: its cause is shown, and stop works in a
    pause.
    """
    config = random_config(tmp_path)
    path = Path(config.model)
    path.write_bytes(path.read_bytes().replace(b"token_embd.weight", b"token_embx.weight"))

    async def life() -> None:
        facts = Facts()
        engine = engine_on(config, facts)
        await engine.start()
        await facts.until("crashed", 2)
        assert engine.state is EnginePhase.BACKING_OFF
        assert not engine.is_ready
        assert facts.all[1].detail is not None
        assert facts.all[1].detail.startswith("exit code 1: ")
        assert "token_embd.weight" in facts.all[1].detail
        await engine.stop()
    uvloop.run(life())


def test_engine_child_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    """The time-out counts as a crash, and the late child does not stay."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(random_config(tmp_path, ready_timeout_s=0.001), facts)
        await engine.start()
        await facts.until("crashed")
        assert facts.all[1].detail == "not ready within 0.001 s"
        assert facts.all[1].pid is not None
        assert ends_within(facts.all[1].pid, 0)
        await engine.stop()
    uvloop.run(life())


def test_engine_taken_port_is_replaced(tmp_path: Path) -> None:
    """Somebody took the port while the engine was down: it comes back elsewhere and `address` says so."""
    async def life() -> None:
        facts = Facts()
        engine = engine_on(random_config(tmp_path, restart_base_s=0.5), facts)
        await engine.start()
        assert await engine.wait_ready(soon())
        address, pid = engine.address, engine.pid
        assert address is not None
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await facts.until("crashed")
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(address)
            thief.listen()
            await facts.until("ready", 2)
            assert engine.address is not None
            assert engine.address != address
            assert "200 OK" in await ask(engine, "/health")
        await engine.stop()
    uvloop.run(life())


def test_engine_configured_port_is_never_replaced(tmp_path: Path) -> None:
    """An operator's own port that is taken is told as the cause, again and again, until it is free."""
    async def life() -> None:
        facts = Facts()
        with socket.socket() as thief:
            thief.bind(("127.0.0.1", 0))
            thief.listen()
            port = thief.getsockname()[1]
            engine = engine_on(random_config(tmp_path, port=port), facts)
            await engine.start()
            await facts.until("crashed")
            assert f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}" in str(facts.all[1].detail)
        assert await engine.wait_ready(soon())
        assert engine.address == ("127.0.0.1", port)
        await engine.stop()
    uvloop.run(life())


def test_engine_supervision_failure_is_emitted_and_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the supervision ends waiting, is told as a fact, and comes out of `stop`: it is not lost with a task."""
    def broken(*_: object) -> list[str]:
        raise LookupError("bug")

    async def life() -> None:
        monkeypatch.setattr("stayfast.engine.process.child_command", broken)
        facts = Facts()
        engine = engine_on(random_config(tmp_path), facts)
        await engine.start()
        assert not await engine.wait_ready(soon())
        assert facts.all[0].detail == "supervision ended by LookupError"
        with pytest.raises(LookupError):
            await engine.stop()
    asyncio.run(life())


def test_engine_child_ends_with_killed_parent(tmp_path: Path) -> None:
    """kill -9 to the gateway: nobody is left to stop the engine, and it goes all the same."""
    config = random_config(tmp_path)
    with subprocess.Popen([sys.executable, "-c", PARENT, config.model], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not ends_within(pid, 0)
        parent.kill()
        assert ends_within(pid, BOUND_S)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a loading child sees EOF only once it has loaded")
@pytest.mark.parametrize("ending", ["eof", "sigterm"])
def test_engine_child_can_be_stopped_while_loading(tmp_path: Path, ending: str) -> None:
    """Loading holds the GIL: a model that is a pipe nobody writes to loads for ever, and must not hold the child."""
    endless = tmp_path / "endless.gguf"
    os.mkfifo(endless)
    fit = fit_engine(random_config(tmp_path))  # of another model: the endless one cannot be read here either
    with subprocess.Popen(child_command(EngineConfig(model=str(endless)), 0, fit), stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        writer = os.open(endless, os.O_WRONLY)  # returns when the child has opened the other end: it loads now
        if ending == "eof":
            child.stdin.close()
        else:
            child.terminate()
        assert child.wait(BOUND_S) == -signal.SIGTERM
        os.close(writer)


@pytest.mark.parametrize("ending", ["eof", "sigterm"])
def test_engine_child_exits_cleanly_on_sigterm(tmp_path: Path, ending: str) -> None:
    """One line on stdout when it serves, no word on stderr; then either ending gives exit code 0."""
    pipe = subprocess.PIPE
    with subprocess.Popen(child_command(random_config(tmp_path), 0), stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().startswith(b'{"host": "127.0.0.1", "port": ')
        if ending == "eof":
            child.stdin.close()
        else:
            child.terminate()
        assert child.wait(BOUND_S) == 0
        assert (child.stdout.read(), child.stderr.read()) == (b"", b"")
