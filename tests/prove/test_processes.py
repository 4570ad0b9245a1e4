"""The process harness: errors of servers that do not start, and the end of every server."""

import asyncio
import os
from typing import Any

import pytest
import uvloop

from stayfast.lab.harness import processes as harness
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.processes import Processes, gateway_settings

pytestmark = pytest.mark.sockets
NOWHERE = "http://127.0.0.1:9"  # nobody listens there
HELLO = "import time; print('http://127.0.0.1:1', flush=True); "
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def is_gone(pid: int) -> bool:
    """Whether the process no longer exists, not even as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_processes_start_shipped_commands() -> None:
    """A simulator and a gateway start, answer, report their CPU, and end with the processes."""

    async def main() -> list[int]:
        async with Processes() as processes:
            sim = await processes.start_simulator({"fast": {"preset": "instant"}}, 1)
            gateway = await processes.start_gateway(gateway_settings({"fast": f"{sim.url}/fast/v1"}))
            assert (await sim.get("/_sim/counts"))["providers"]["fast"]["n_asked"] == 0
            assert await gateway.get("/livez")
            assert 0 < gateway.cpu_s() < 60
            with pytest.raises(SetUpFailed, match="GET /nowhere answered 404"):
                await gateway.get("/nowhere")
            return [sim.process.pid, gateway.process.pid]

    assert all(is_gone(pid) for pid in uvloop.run(main()))


def test_processes_failed_start_reports_output() -> None:
    """Servers that had started before are ended."""

    async def main(pids: list[int]) -> None:
        async with Processes() as processes:
            pids.append((await processes.start_bare_proxy(NOWHERE)).process.pid)
            await processes.start_gateway({"routes": {"m": {"upstreams": ["nobody"]}}})

    pids: list[int] = []
    with pytest.raises(SetUpFailed, match=r"(?s)stayfast serve --config .* did not start.*nobody"):
        uvloop.run(main(pids))
    assert is_gone(pids[0])


def test_processes_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "START_WITHIN_S", 0.2)

    async def main() -> Processes:
        async with Processes() as processes:
            with pytest.raises(SetUpFailed, match="did not start"):
                await processes.start("-c", "import time; time.sleep(60)")
        return processes

    [process] = uvloop.run(main()).children
    assert is_gone(process.pid)


def test_processes_claim_raises_ends_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped servers, and servers that ignore SIGTERM, are ended, too."""
    monkeypatch.setattr(harness, "STOP_WITHIN_S", 0.5)

    async def main(pids: list[int]) -> None:
        async with Processes() as processes:
            floor = await processes.start_bare_proxy(NOWHERE)
            deaf = await processes.start("-c", IGNORES + HELLO + "time.sleep(60)")
            pids += [floor.process.pid, deaf.process.pid]
            floor.freeze()
            raise ValueError("in the middle of it")

    pids: list[int] = []
    with pytest.raises(ValueError, match="in the middle"):
        uvloop.run(main(pids))
    assert [is_gone(pid) for pid in pids] == [True, True]


@pytest.mark.parametrize("is_up", [True, False], ids=["while it runs", "while it starts"])
def test_processes_claim_cancelled_ends_servers(is_up: bool) -> None:
    """Both a running server and one that is starting."""

    async def claim(processes: Processes, started: asyncio.Event) -> None:
        async with processes:
            await processes.start("-c", (HELLO if is_up else "import time; ") + "time.sleep(60)")
            started.set()
            await asyncio.sleep(60)

    async def main() -> Processes:
        processes, started = Processes(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(claim(processes, started))
            while not (started.is_set() if is_up else processes.children):
                await asyncio.sleep(0.01)
            task.cancel()
        assert task.cancelled()
        return processes

    [process] = uvloop.run(main()).children
    assert is_gone(process.pid)


def test_processes_ignore_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of workers would change the measurement."""
    monkeypatch.setenv("STAYFAST_WORKERS", "4")
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("KEPT", "yes")

    async def main() -> None:
        async with Processes() as processes:
            await processes.start("-c", "import os; print(sorted(os.environ))")

    with pytest.raises(SetUpFailed) as failed:
        uvloop.run(main())
    assert "'KEPT'" in str(failed.value)
    assert "STAYFAST" not in str(failed.value)
    assert "'PORT'" not in str(failed.value)


def test_processes_cancelled_start_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child exists, and the call that created it has not returned yet."""

    async def main() -> None:
        made: list[asyncio.subprocess.Process] = []
        is_made, may_return = asyncio.Event(), asyncio.Event()
        real = asyncio.create_subprocess_exec

        async def slow(*arguments: str, **more: Any) -> asyncio.subprocess.Process:
            made.append(await real(*arguments, **more))
            is_made.set()
            await may_return.wait()
            return made[0]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
        async with Processes() as processes:
            starting = asyncio.ensure_future(processes.start("-c", HELLO + "time.sleep(60)"))
            await is_made.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            asyncio.get_running_loop().call_soon(may_return.set)
        assert is_gone(made[0].pid)

    uvloop.run(main())
