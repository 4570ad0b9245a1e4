"""The servers of a proof: a simulator, a gateway, a bare proxy, each a process on a free loopback port.

They are started by the commands that a user types, so a proof measures what is shipped. They end with the proof, also when
it fails or is interrupted.
"""

import asyncio
import http.client
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.simulated import ProviderConfig
from stayfast.server.auth import new_key
from stayfast.settings import read_environment

MODEL = "m"  # the name of the one route in most proofs
START_WITHIN_S = 20.0
STOP_WITHIN_S = 5.0
ANSWER_WITHIN_S = 10.0
ONE_CORE = "only one core: the measured servers share it, and CPU per request is higher"  # where `reserve_core` fails
MAX_LINE_BYTES = 4 * 1024 * 1024  # of a server's output
_URL = re.compile(rb"http://127\.0\.0\.1:\d+")
_RUNS_JOBS = re.compile(rb"runs jobs of")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ALL_THREADS = 2  # in the id of another process's CPU clock: the time of all its threads


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running process. `url` has no path."""

    url: str
    process: asyncio.subprocess.Process

    def cpu_s(self) -> float:
        """CPU seconds used by all threads. NaN if the system has no such clock (not Linux)."""
        return _process_cpu_s(self.process.pid)

    def tree_cpu_s(self) -> float:
        """CPU seconds used by the process and its children, if it has any."""
        return self.cpu_s() + self.children_cpu_s()

    def children_cpu_s(self) -> float:
        """CPU seconds used by the running children."""
        return sum(_process_cpu_s(pid) for pid in children_of(self.process.pid))

    def first_thread_cpu_s(self) -> float:
        """CPU seconds of the first thread, which runs a gateway's event loop."""
        return _cpu_s(f"/proc/{self.process.pid}/task/{self.process.pid}/stat")

    def freeze(self) -> None:
        """Stop the process (SIGSTOP): the kernel still accepts connections, and no request is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue a stopped process."""
        self.process.send_signal(signal.SIGCONT)

    async def get(self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at a path. Raises SetUpFailed."""
        return json.loads(await self.read(path, method, json.dumps(body) if body is not None else None))

    async def read(self, path: str, method: str = "GET", body: str | None = None) -> bytes:
        """The body at a path. Raises SetUpFailed."""
        return await asyncio.to_thread(_read, self, path, method, body)

    def connect(self) -> http.client.HTTPConnection:
        """A blocking connection."""
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_WITHIN_S)


def _process_cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _ALL_THREADS)  # finer than the ticks of /proc
    except OSError:
        return _cpu_s(f"/proc/{pid}/stat")


def _cpu_s(stat_file: str) -> float:
    try:
        fields = Path(stat_file).read_text().rpartition(")")[2].split()
    except OSError:
        return nan
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Processes:
    """Starts servers and ends them. `async with Processes() as processes`."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="stayfast-prove-")
        self.children: list[asyncio.subprocess.Process] = []
        self._spawning: set[asyncio.Task[asyncio.subprocess.Process]] = set()
        self._readers: set[asyncio.Task[None]] = set()
        self._cores: frozenset[int] = frozenset()  # this process's cores before `reserve_core`
        self._n_files = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        if self._spawning:
            await asyncio.wait(self._spawning)
        running = [process for process in self.children if process.returncode is None]
        try:
            for process in running:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    for process in running:
                        await process.wait()
        finally:
            stubborn = [process for process in running if process.returncode is None]
            for process in stubborn:
                process.kill()
            for task in self._readers:
                task.cancel()
            self._directory.cleanup()
            if self._cores:
                os.sched_setaffinity(0, self._cores)
        for process in stubborn:
            await process.wait()

    async def start_simulator(self, providers: Mapping[str, Any], seed: int) -> ServerProcess:
        """`stayfast sim` with these providers; each answers at `{url}/NAME/v1`."""
        file = self.write_file({"providers": {name: _provider(config) for name, config in providers.items()}})
        return await self.start("-m", "stayfast", "sim", "--config", file, "--port", "0", "--seed", str(seed), "--json")

    async def start_gateway(self, settings: Mapping[str, Any]) -> ServerProcess:
        """`stayfast serve` with these settings."""
        return await self.start("-m", "stayfast", "serve", "--config", self.write_file(settings), "--port", "0")

    def reserve_core(self, *measured: ServerProcess) -> bool:
        """Pin the measured servers to the first core, and this process and all others to the rest, until the servers end.

        Returns False if that is impossible (not Linux, or only one core).
        """
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(cores) < 2:
            return False
        self._cores = frozenset(cores)
        os.sched_setaffinity(0, cores[1:])
        pids = {server.process.pid for server in measured}
        for process in self.children:
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores[:1] if process.pid in pids else cores[1:])
        return True

    async def start_bare_proxy(self, upstream: str) -> ServerProcess:
        """A bare proxy in front of `upstream` (a URL)."""
        return await self.start("-m", "stayfast.lab.harness.loopback", upstream)

    async def start_canned_upstream(self) -> ServerProcess:
        """An upstream that answers each request at once with the same whole answer."""
        return await self.start("-m", "stayfast.lab.harness.loopback")

    def write_file(self, content: Mapping[str, Any]) -> str:
        """Write a settings file, which is deleted with the processes. Returns its path."""
        self._n_files += 1
        path = Path(self._directory.name) / f"{self._n_files}.yaml"
        path.write_text(json.dumps(content, default=dict))  # JSON is YAML
        return str(path)

    async def start_worker(self, settings: Mapping[str, Any]) -> ServerProcess:
        """`stayfast work` with these settings. Its `url` is no address."""
        return await self.start("-m", "stayfast", "work", "--config", self.write_file(settings), ready=_RUNS_JOBS)

    async def start(self, *arguments: str, ready: re.Pattern[bytes] = _URL) -> ServerProcess:
        """Run this Python with `arguments`, and wait until it prints the URL on which it listens, or what `ready` matches.
        Raises SetUpFailed.
        """
        spawning = asyncio.get_running_loop().create_task(asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, limit=MAX_LINE_BYTES, env=_server_environment()))
        self._spawning.add(spawning)
        spawning.add_done_callback(self._add_spawned)
        process = await asyncio.shield(spawning)  # a cancelled spawn would leave a child that is never ended
        output = process.stdout
        assert output is not None
        printed = bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_WITHIN_S):
                while line := await output.readline():
                    printed += line
                    if (found := ready.search(line)) is not None:
                        self._drain(output)
                        return ServerProcess(found[0].decode(), process)
        raise SetUpFailed(f"`{shlex.join(('python', *arguments))}` did not start:\n{printed.decode(errors='replace')}")

    def _add_spawned(self, spawning: asyncio.Task[asyncio.subprocess.Process]) -> None:
        self._spawning.discard(spawning)
        if not spawning.cancelled() and spawning.exception() is None:
            self.children.append(spawning.result())

    def _drain(self, output: asyncio.StreamReader) -> None:
        """Read and discard the server's output, or it would block on a full pipe."""
        task = asyncio.get_running_loop().create_task(_read_to_end(output))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)


async def _read_to_end(output: asyncio.StreamReader) -> None:
    while await output.read(1 << 16):
        pass


def _server_environment() -> dict[str, str]:
    """The environment without the variables that change a server's settings."""
    return {name: value for name, value in read_environment().items() if name != "PORT" and not name.startswith("STAYFAST_")}


def _read(server: ServerProcess, path: str, method: str, body: str | None) -> bytes:
    connection = server.connect()
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise SetUpFailed(f"{method} {path}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if answer.status >= 300:
        raise SetUpFailed(f"{method} {path} answered {answer.status}: {content[:200].decode(errors='replace')}")
    return content


def _provider(config: ProviderConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    """A provider as in a settings file: its seed, and all fields that differ from the defaults."""
    if not isinstance(config, ProviderConfig):
        return config
    fields, defaults = msgspec.to_builtins(config), msgspec.to_builtins(ProviderConfig())
    return {name: value for name, value in fields.items() if name == "seed" or value != defaults[name]}


def children_of(pid: int) -> list[int]:
    """The child processes of a process; empty if it has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def gateway_settings(upstreams: Mapping[str, str], **route: Any) -> dict[str, Any]:
    """Settings of a gateway with one route, "m", to OpenAI-compatible upstreams. upstreams: base URLs by name."""
    return {
        "upstreams": {name: {"kind": "openai", "base_url": url, "key": "none", "probe": False, "apis": ["chat"]}
                      for name, url in upstreams.items()},
        "routes": {MODEL: {"upstreams": list(upstreams), **route}},
    }


def create_keys(tenants: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """API keys for tenants: the secrets, and their digests for `server.keys`, both by tenant."""
    pairs = {tenant: new_key(os.urandom(24)) for tenant in tenants}
    return ({tenant: secret for tenant, (secret, _) in pairs.items()},
            {tenant: digest for tenant, (_, digest) in pairs.items()})
