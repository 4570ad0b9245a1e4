"""The parent of worker processes that share a port through SO_REUSEPORT.

The parent serves no requests. It starts the workers, sends each its settings over a `ParentChannel`, forwards signals,
restarts a crashed worker after a wait that doubles from `restart_base_s` to `restart_cap_s`, and gives up if a worker cannot
start. SIGTERM and SIGINT drain; a second one aborts. SIGHUP checks the settings and, if they are valid, sends them to the
workers.
"""

import asyncio
import errno
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass

from stayfast.core.clock import Clock
from stayfast.http.server.listener import ANY_ADDRESS, enable_dual_stack
from stayfast.policy.resilience.retry import backoff_s
from stayfast.workers.channels import READY, encode_frame

EXIT_PORT_IN_USE = 3
EXIT_WORKERS_FAIL = 4
EXIT_BAD_SETTINGS = 78
_FINAL = (EXIT_PORT_IN_USE, EXIT_BAD_SETTINGS)  # a restart cannot help


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """Seconds."""

    n_workers: int
    drain_s: float  # a worker's own limit for its stop
    margin_s: float = 5.0  # in addition, before it is killed
    restart_base_s: float = 0.5
    restart_cap_s: float = 30.0
    healthy_after_s: float = 10.0  # after so long, a crash counts as the first one again
    max_failed_starts: int = 5  # of one worker, in a row, without being ready

    def __post_init__(self) -> None:
        if self.n_workers < 1 or self.max_failed_starts < 1:
            raise ValueError("n_workers and max_failed_starts must be at least 1")
        if self.drain_s < 0 or self.margin_s < 0 or self.healthy_after_s < 0:
            raise ValueError("drain_s, margin_s and healthy_after_s must not be negative")
        if not 0 < self.restart_base_s <= self.restart_cap_s:
            raise ValueError("0 < restart_base_s <= restart_cap_s must hold")


class Restarts:
    """When to restart a worker. No I/O."""

    def __init__(self, config: WorkersConfig) -> None:
        self._config = config
        self._n_crashes = 0
        self._n_failed_starts = 0

    def wait_after(self, status: int, lived_s: float, *, was_ready: bool) -> float | None:
        """Seconds until the restart after an exit with `status`; None: give up."""
        self._n_failed_starts = 0 if was_ready else self._n_failed_starts + 1
        if not was_ready and (status in _FINAL or self._n_failed_starts >= self._config.max_failed_starts):
            return None
        self._n_crashes = 1 if was_ready and lived_s >= self._config.healthy_after_s else self._n_crashes + 1
        return backoff_s(self._n_crashes, self._config.restart_base_s, self._config.restart_cap_s)


class Worker:
    """A running worker process, and the parent's end of its channel."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader,
                 writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._sent = b""
        self.is_ready = False

    @classmethod
    async def start(cls, command: Sequence[str], briefing: bytes, descriptors: Sequence[int]) -> "Worker":
        """Start the process in its own session, so that a terminal's Ctrl-C reaches the parent only, which forwards it.
        descriptors: that it inherits.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(*command, stdin=theirs.fileno(), start_new_session=True,
                                                           pass_fds=tuple(descriptors))
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = cls(process, reader, writer)
        worker._send(briefing)
        return worker

    async def run(self, on_ready: Callable[["Worker"], None]) -> int:
        """Wait for its end; returns its exit status (negative: the signal that ended it)."""
        try:
            with suppress(ConnectionError):
                if await self._reader.readline() == READY:
                    self.is_ready = True
                    on_ready(self)
            return await self._process.wait()
        finally:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    def send_snapshot(self, snapshot: bytes) -> None:
        """Send a config snapshot, if it is new. Not before the worker is ready: it cannot handle the signal earlier."""
        if self.is_ready and snapshot != self._sent:
            self._send(snapshot)

    def send_signal(self, number: signal.Signals) -> None:
        """Forward a signal; does nothing if the process has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _send(self, briefing: bytes) -> None:
        self._sent = briefing
        self._writer.write(encode_frame(briefing))


class Supervisor:
    """The parent. One event loop owns it; `run` is called once."""

    def __init__(self, config: WorkersConfig, command: Callable[[int], Sequence[str]], reload: Callable[[], bytes],
                 report: Callable[[str], None], clock: Clock, *, on_ready: Callable[[], None],
                 on_stopping: Callable[[], None], companions: Sequence[AbstractAsyncContextManager[object]] = (),
                 descriptors: Sequence[int] = ()) -> None:
        """command: makes the command line of worker n. reload: checks the settings and returns the config snapshot, or
        raises ValueError with the reason. report: takes a line for the operator. companions: are entered before the first
        worker starts, and left after the last one has ended. descriptors: of sockets that all workers listen on.
        """
        self._config = config
        self._command = command
        self._reload = reload
        self._report = report
        self._clock = clock
        self._on_ready = on_ready
        self._on_stopping = on_stopping
        self._companions = companions
        self._descriptors = descriptors
        self._briefing = reload()
        self._workers: dict[int, Worker] = {}
        self._ever_ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Run the workers until a signal, or until one cannot start; returns the process's exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        async with AsyncExitStack() as stack:
            for companion in self._companions:
                await stack.enter_async_context(companion)
            async with asyncio.TaskGroup() as tasks:
                runs = [tasks.create_task(self._run_worker(n)) for n in range(self._config.n_workers)]
                tasks.create_task(self._kill_late(runs))
        return self._status

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send this signal to the workers, which drain; called again, they abort."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._on_stopping()
        for worker in self._workers.values():
            worker.send_signal(number if worker.is_ready else signal.SIGTERM)  # else SIGINT would cause a traceback

    def reload(self) -> None:
        """Check the settings again; if they are valid and have changed, send them to all workers."""
        before = self._briefing
        try:
            self.send_snapshot(self._reload())
        except ValueError as error:
            self._report(f"the settings are wrong and were not loaded; the old ones stay:\n{error}")
            return
        if self._briefing == before:
            self._report("SIGHUP: the settings have not changed")

    def send_snapshot(self, snapshot: bytes) -> None:
        """Use this config snapshot for all workers, running and future ones."""
        self._briefing = snapshot
        for worker in self._workers.values():
            worker.send_snapshot(snapshot)

    async def _run_worker(self, n: int) -> None:
        restarts = Restarts(self._config)
        while not self._stopping.is_set():
            began_at = self._clock.now()
            worker = await Worker.start(self._command(n), self._briefing, self._descriptors)
            self._workers[n] = worker
            if self._stopping.is_set():
                worker.send_signal(signal.SIGTERM)
            status = await worker.run(lambda ready: self._became_ready(n, ready))
            del self._workers[n]
            if self._stopping.is_set():
                self._note_end(n, status)
                return
            wait_s = restarts.wait_after(status, self._clock.now() - began_at, was_ready=worker.is_ready)
            if wait_s is None:
                self._give_up(n, status)
                return
            self._report(f"worker {n} {_describe_exit(status)}; restart in {wait_s:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()

    def _became_ready(self, n: int, worker: Worker) -> None:
        worker.send_snapshot(self._briefing)
        was_complete = len(self._ever_ready) == self._config.n_workers
        self._ever_ready.add(n)
        if not was_complete and len(self._ever_ready) == self._config.n_workers:
            self._on_ready()

    def _give_up(self, n: int, status: int) -> None:
        self._report(f"worker {n} {_describe_exit(status)} and cannot be started; giving up")
        self._status = status if status in _FINAL else EXIT_WORKERS_FAIL
        self.stop()

    def _note_end(self, n: int, status: int) -> None:
        if status not in (0, -signal.SIGTERM):  # SIGTERM ends a worker that does not handle signals yet
            self._report(f"worker {n} {_describe_exit(status)} while stopping")
            self._status = self._status or 1

    async def _kill_late(self, runs: Sequence[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        _, late = await asyncio.wait(runs, timeout=self._config.drain_s + self._config.margin_s)
        if late:
            self._report(f"{len(late)} workers did not stop in time and were killed")
        for worker in self._workers.values():
            worker.send_signal(signal.SIGKILL)


def reserve_port(host: str, port: int) -> socket.socket:
    """A socket that reserves host and port (0: a free one) for workers to share, and does not listen itself.

    Raises OSError (EADDRINUSE) if another process listens there, even with SO_REUSEPORT.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    if not hasattr(socket, "SO_REUSEPORT"):
        raise OSError(errno.ENOPROTOOPT, "this system cannot share a port among workers")
    if port != 0:
        with socket.socket(family, kind, protocol) as probe:
            if host == ANY_ADDRESS:
                enable_dual_stack(probe)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    held = socket.socket(family, kind, protocol)
    try:
        if host == ANY_ADDRESS:
            enable_dual_stack(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier process may be in TIME_WAIT
        held.bind(address)
    except OSError:
        held.close()
        raise
    return held


def worker_command(n: int, n_workers: int) -> list[str]:
    """The command line of worker `n`."""
    return [sys.executable, "-m", "stayfast", "serve", "--worker", f"{n}/{n_workers}"]


def _describe_exit(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
