"""The parent and its workers: real processes, small ones that speak the lifeline and write down what happens to them."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stayfast.cli.listening import notify_systemd
from stayfast.core.clock import SystemClock
from stayfast.workers.channels import ParentChannel, encode_frame
from stayfast.workers.supervisor import (
    EXIT_BAD_SETTINGS,
    EXIT_WORKERS_FAIL,
    Restarts,
    Supervisor,
    WorkersConfig,
    reserve_port,
)

WORKER = """
import os, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from stayfast.workers.channels import ParentChannel
journal, mode = sys.argv[1:]
def note(word):
    with open(journal, "a") as file:
        file.write(f"{word} {os.getpid()}\\n")
line = ParentChannel.from_stdin()
if mode.isdigit():
    note("failed")
    sys.exit(int(mode))
n_terms = 0
stop = threading.Event()
def term(*_):
    global n_terms
    n_terms += 1
    note(f"term{n_terms}")
    if mode in ("good", "late") or (mode == "slow" and n_terms == 2):
        stop.set()
signal.signal(signal.SIGTERM, term)
signal.signal(signal.SIGHUP, lambda *_: note(f"reload:{line.config_snapshot.decode()}"))
line.watch(0.3)
while mode == "late" and not os.path.exists(journal + ".go"):
    stop.wait(0.01)
line.send_ready()
note(f"ready:{line.config_snapshot.decode()}")
while not stop.wait(0.02):
    pass
note("end")
"""
PARENT = """
import asyncio, sys
from stayfast.core.clock import SystemClock
from stayfast.workers.supervisor import Supervisor, WorkersConfig
supervisor_of = lambda: Supervisor(WorkersConfig(2, 1.0), lambda n: [sys.executable, *sys.argv[1:]], lambda: b"one", print,
                                   SystemClock(), on_ready=lambda: None, on_stopping=lambda: None)
async def main():
    return await supervisor_of().run()
sys.exit(asyncio.run(main()))
"""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to be so, for 20 seconds at most."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come to be")


class Rig:
    """A supervisor under test, the journal of its workers and what it reported."""

    def __init__(self, folder: Path, config: WorkersConfig, modes: list[str], log: list[str] | None = None) -> None:
        self.path = folder / "journal"
        self.reports: list[str] = []
        self.calls: list[str] = log if log is not None else []
        self.briefing: bytes | None = b"one"
        self.modes = modes
        self.supervisor = Supervisor(
            config, self.command, self.reload, self.reports.append, SystemClock(),
            on_ready=lambda: self.calls.append("ready"), on_stopping=lambda: self.calls.append("stopping"),
            companions=[self.companion()])

    def command(self, n: int) -> list[str]:
        """The command line of a worker in its mode."""
        return [sys.executable, "-c", WORKER, str(self.path), self.modes[n]]

    def reload(self) -> bytes:
        """The settings, or what is wrong with them."""
        if self.briefing is None:
            raise ValueError("f.yaml:1:1: wrong")
        return self.briefing

    @contextlib.asynccontextmanager
    async def companion(self) -> AsyncIterator[None]:
        """Something that runs once beside all workers."""
        self.calls.append("companion up")
        yield
        self.calls.append("companion down")

    def journal(self) -> list[str]:
        """What workers wrote, without their process ids."""
        return [line.split()[0] for line in self.lines()]

    def lines(self) -> list[str]:
        """What workers wrote."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def run(self, scenario: Callable[[], object]) -> int:
        """Run the supervisor with a scenario beside it; its exit status."""
        async def both() -> int:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self.supervisor.run())
                told = scenario()
                if asyncio.iscoroutine(told):
                    await told
            return running.result()

        return asyncio.run(both())


def config_of(n_workers: int, *, margin_s: float = 10.0, max_failed_starts: int = 5) -> WorkersConfig:
    """Quick restarts."""
    return WorkersConfig(n_workers, drain_s=0.2, margin_s=margin_s, restart_base_s=0.01, restart_cap_s=0.02,
                         max_failed_starts=max_failed_starts)


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("exits", "waits"), [
    ([(1, 0.1, False)] * 3, [0.5, 1.0, None]),
    ([(EXIT_BAD_SETTINGS, 0.1, False)], [None]),
    ([(3, 0.1, False)], [None]),
    ([(EXIT_BAD_SETTINGS, 0.1, True)], [0.5]),
    ([(-9, 1.0, True)] * 5, [0.5, 1.0, 2.0, 4.0, 4.0]),
    ([(-9, 1.0, True), (-9, 99.0, True), (-9, 1.0, True)], [0.5, 0.5, 1.0]),
    ([(1, 0.1, False), (1, 0.1, False), (-9, 1.0, True), (1, 0.1, False)], [0.5, 1.0, 2.0, 4.0]),
])
def test_restarts_wait_doubles_until_give_up(exits: list[tuple[int, float, bool]], waits: list[float | None]) -> None:
    """Waits double up to the cap, start afresh after a healthy life, and end for what cannot start."""
    config = WorkersConfig(1, 1.0, restart_base_s=0.5, restart_cap_s=4.0, healthy_after_s=10.0, max_failed_starts=3)
    restarts = Restarts(config)
    assert [restarts.wait_after(status, lived_s, was_ready=ready) for status, lived_s, ready in exits] == waits


def test_supervisor_starts_and_drains_workers(tmp_path: Path) -> None:
    """All workers get the briefing, readiness is told once, SIGTERM reaches all, the companion outlives them."""
    rig = Rig(tmp_path, config_of(2), ["good", "good"])

    async def scenario() -> None:
        await until(lambda: rig.journal().count("ready:one") == 2 and "ready" in rig.calls)
        os.kill(os.getpid(), signal.SIGTERM)

    assert rig.run(scenario) == 0
    assert sorted(rig.journal()) == ["end", "end", "ready:one", "ready:one", "term1", "term1"]
    assert rig.calls == ["companion up", "ready", "stopping", "companion down"]
    assert rig.reports == []


def test_supervisor_restarts_crashed_worker(tmp_path: Path) -> None:
    """kill -9 of one worker: another takes its place, and the rest never notice."""
    rig = Rig(tmp_path, config_of(2), ["good", "good"])

    async def scenario() -> None:
        await until(lambda: rig.journal().count("ready:one") == 2)
        rig.briefing = b"two"
        rig.supervisor.reload()
        await until(lambda: rig.journal().count("reload:two") == 2)
        os.kill(int(rig.lines()[0].split()[1]), signal.SIGKILL)
        await until(lambda: "ready:two" in rig.journal())
        rig.supervisor.stop()

    assert rig.run(scenario) == 0
    assert len(rig.reports) == 1
    assert "was ended by SIGKILL; restart in 0.01 s" in rig.reports[0]
    assert rig.calls.count("ready") == 1


def test_supervisor_wrong_settings_are_not_loaded(tmp_path: Path) -> None:
    """SIGHUP with a wrong file: the reason is reported, nobody reloads; mended, everybody does."""
    rig = Rig(tmp_path, config_of(1), ["good"])

    async def scenario() -> None:
        await until(lambda: "ready:one" in rig.journal())
        rig.briefing = None
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: bool(rig.reports))
        rig.briefing = b"three"
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "reload:three" in rig.journal())
        rig.supervisor.stop()

    assert rig.run(scenario) == 0
    assert rig.reports == ["the settings are wrong and were not loaded; the old ones stay:\nf.yaml:1:1: wrong"]
    assert rig.journal() == ["ready:one", "reload:three", "term1", "end"]


def test_supervisor_unchanged_reload_is_reported(tmp_path: Path) -> None:
    """The parent says so, because no worker has anything to say."""
    rig = Rig(tmp_path, config_of(1), ["good"])

    async def scenario() -> None:
        await until(lambda: "ready:one" in rig.journal())
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: bool(rig.reports))
        rig.supervisor.stop()

    assert rig.run(scenario) == 0
    assert rig.reports == ["SIGHUP: the settings have not changed"]
    assert rig.journal() == ["ready:one", "term1", "end"]


def test_supervisor_reload_before_worker_is_ready_is_not_lost(tmp_path: Path) -> None:
    """A worker that started with the old settings gets the new ones as soon as it can take the signal."""
    rig = Rig(tmp_path, config_of(2), ["good", "late"])

    async def scenario() -> None:
        await until(lambda: rig.journal() == ["ready:one"])
        rig.briefing = b"two"
        rig.supervisor.reload()
        await until(lambda: "reload:two" in rig.journal())
        (tmp_path / "journal.go").touch()
        await until(lambda: rig.journal().count("reload:two") == 2)
        rig.supervisor.stop()

    assert rig.run(scenario) == 0
    # the late worker writes down that it was ready, and with what, only after it has told its parent, who may be quicker
    journal = sorted(line.replace("ready:two", "ready:one") for line in rig.journal())
    assert journal == ["end", "end", "ready:one", "ready:one", "reload:two", "reload:two", "term1", "term1"]


def test_supervisor_worker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    """After the last attempt the parent says so, stops the others and exits with a status of its own."""
    rig = Rig(tmp_path, config_of(2, max_failed_starts=3), ["good", "1"])
    assert rig.run(lambda: None) == EXIT_WORKERS_FAIL
    assert rig.journal().count("failed") == 3
    assert rig.reports[-1] == "worker 1 exited with 1 and cannot be started; giving up"
    assert rig.calls[-2:] == ["stopping", "companion down"]


def test_supervisor_final_exit_status_is_passed_on(tmp_path: Path) -> None:
    """A worker that finds its settings wrong is not started again."""
    rig = Rig(tmp_path, config_of(1), [str(EXIT_BAD_SETTINGS)])
    assert rig.run(lambda: None) == EXIT_BAD_SETTINGS
    assert rig.journal() == ["failed"]


def test_supervisor_second_stop_reaches_workers(tmp_path: Path) -> None:
    """A worker that drains for long is told a second time, which is its sign to abort."""
    rig = Rig(tmp_path, config_of(1), ["slow"])

    async def scenario() -> None:
        await until(lambda: "ready:one" in rig.journal())
        rig.supervisor.stop()
        await until(lambda: "term1" in rig.journal())
        rig.supervisor.stop()

    assert rig.run(scenario) == 0
    assert rig.journal() == ["ready:one", "term1", "term2", "end"]
    assert rig.calls.count("stopping") == 1


def test_supervisor_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    """After the drain's limit and a margin nothing is left, and the status says that it was not clean."""
    rig = Rig(tmp_path, config_of(1, margin_s=0.1), ["deaf"])

    async def scenario() -> None:
        await until(lambda: "ready:one" in rig.journal())
        rig.supervisor.stop()

    assert rig.run(scenario) == 1
    assert rig.reports == ["1 workers did not stop in time and were killed", "worker 0 was ended by SIGKILL while stopping"]


def test_supervisor_stop_ends_wait_before_restart(tmp_path: Path) -> None:
    """A parent that is told to stop does not sit out its back-off."""
    config = WorkersConfig(1, drain_s=0.2, restart_base_s=600, restart_cap_s=600)
    rig = Rig(tmp_path, config, ["1"])

    async def scenario() -> None:
        await until(lambda: bool(rig.reports))
        rig.supervisor.stop()

    assert rig.run(scenario) == 0
    assert rig.reports == ["worker 0 exited with 1; restart in 600 s"]


@pytest.mark.parametrize("mode", ["good", "deaf"])
def test_workers_end_with_killed_parent(tmp_path: Path, mode: str) -> None:
    """kill -9 of the parent: workers drain by themselves, and one that hangs is gone soon after."""
    journal = tmp_path / "journal"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "-c", WORKER, str(journal), mode])

    async def scenario() -> None:
        await until(lambda: journal.exists() and journal.read_text().count("ready") == 2)
        pids = [int(line.split()[1]) for line in journal.read_text().splitlines()]
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
        await until(lambda: not any(is_alive(pid) for pid in pids))

    try:
        asyncio.run(scenario())
    finally:
        parent.kill()
        parent.wait()
    assert journal.read_text().count("term1") == 2


def test_parent_channel_reads_split_frames() -> None:
    """A briefing arrives whole from any split; the line's end before the first one is an error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for byte in encode_frame(b"settings"):
            ours.sendall(bytes([byte]))
        assert ParentChannel(theirs).config_snapshot == b"settings"
        ours.sendall(encode_frame(b"more")[:5])
        ours.close()
        with pytest.raises(EOFError):
            ParentChannel(theirs)


@pytest.mark.sockets
def test_reserve_reserves_port_for_sharing() -> None:
    """Port 0 becomes a free one; workers may listen there, a second gateway may not."""
    with reserve_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        for _ in range(2):
            with socket.socket() as worker:
                worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                worker.bind(("127.0.0.1", port))
                worker.listen()
                with pytest.raises(OSError, match="in use") as caught:
                    reserve_port("127.0.0.1", port)
                assert caught.value.errno == errno.EADDRINUSE
    reserve_port("127.0.0.1", port).close()


def test_notify_sends_to_service_manager(tmp_path: Path) -> None:
    """One datagram to the named socket, abstract or in the file system; without one, or with a dead one, nothing."""
    for address in (str(tmp_path / "n"), f"@stayfast-test-{os.getpid()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind("\0" + address[1:] if address[0] == "@" else address)
            notify_systemd(address, "READY=1")
            assert manager.recv(64) == b"READY=1"
    notify_systemd(None, "READY=1")
    notify_systemd(str(tmp_path / "nobody"), "READY=1")


@pytest.mark.parametrize("change", [{"n_workers": 0}, {"drain_s": -1}, {"restart_base_s": 0}, {"restart_base_s": 99},
                                    {"max_failed_starts": 0}, {"margin_s": -1}])
def test_workers_config_invalid_values_are_rejected(change: dict[str, Any]) -> None:
    """A config out of its range cannot be made."""
    with pytest.raises(ValueError, match="must"):
        replace(WorkersConfig(1, drain_s=1), **change)


def test_reserve_any_address_includes_ipv4() -> None:
    """On `::`: one who listens there over IPv4 alone is in the way, and told of before any worker starts."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6 that takes IPv4 too")
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            reserve_port("::", other.getsockname()[1])
    with reserve_port("::", 0) as held:
        assert not held.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
