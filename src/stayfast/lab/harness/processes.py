"""The servers of a proof: a simulator, a gateway, a bare proxy, each its own process on a free loopback port.

They are the very commands that a user types, so a proof measures what is shipped. They end with the proof, also when it
fails or is interrupted.
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
from collections.abc import Mapping
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
from stayfast.settings import environment

MODEL = "m"  # of the one route of most proofs
START_WITHIN_S = 20.0
STOP_WITHIN_S = 5.0
ANSWER_WITHIN_S = 10.0
MAX_LINE_BYTES = 4 * 1024 * 1024  # of what a server prints
_URL = re.compile(rb"http://127\.0\.0\.1:\d+")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ALL_THREADS = 2  # in the id of another process's CPU clock: the time of all its threads


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One running process. `url` is without a path."""

    url: str
    process: asyncio.subprocess.Process

    def cpu_s(self) -> float:
        """Seconds of CPU that all threads have used. NaN where the system does not tell (not Linux)."""
        try:
            return time.clock_gettime(~self.process.pid << 3 | _ALL_THREADS)  # finer than the ticks of /proc
        except OSError:
            return _cpu_s(f"/proc/{self.process.pid}/stat")

    def first_thread_cpu_s(self) -> float:
        """The same of the first thread, on which a gateway's loop runs."""
        return _cpu_s(f"/proc/{self.process.pid}/task/{self.process.pid}/stat")

    def freeze(self) -> None:
        """Stop the process: the kernel still takes connections, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    async def get(self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at a path. Raises SetUpFailed."""
        return json.loads(await self.read(path, method, json.dumps(body) if body is not None else None))

    async def read(self, path: str, method: str = "GET", body: str | None = None) -> bytes:
        """The body at a path. Raises SetUpFailed."""
        return await asyncio.to_thread(_read, self, path, method, body)

    def connect(self) -> http.client.HTTPConnection:
        """A connection of the standard library's, which blocks."""
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_WITHIN_S)


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
        self._processes: list[asyncio.subprocess.Process] = []
        self._spawning: set[asyncio.Task[asyncio.subprocess.Process]] = set()
        self._readers: set[asyncio.Task[None]] = set()
        self._cores: frozenset[int] = frozenset()  # this process's own, where `set_apart` has taken some away
        self._n_files = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        if self._spawning:
            await asyncio.wait(self._spawning)
        running = [process for process in self._processes if process.returncode is None]
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

    async def simulator(self, providers: Mapping[str, Any], seed: int) -> ServerProcess:
        """`stayfast sim` with these providers; each answers at `{url}/NAME/v1`."""
        file = self.written({"providers": {name: _provider(config) for name, config in providers.items()}})
        return await self.start("-m", "stayfast", "sim", "--config", file, "--port", "0", "--seed", str(seed), "--json")

    async def gateway(self, settings: Mapping[str, Any]) -> ServerProcess:
        """`stayfast serve` with these settings."""
        return await self.start("-m", "stayfast", "serve", "--config", self.written(settings), "--port", "0")

    def set_apart(self, *measured: ServerProcess) -> bool:
        """Give the measured servers a core of their own, this process and the others the rest, until they end.

        Returns False where that cannot be had: not Linux, or one core only.
        """
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(cores) < 2:
            return False
        self._cores = frozenset(cores)
        os.sched_setaffinity(0, cores[1:])
        pids = {server.process.pid for server in measured}
        for process in self._processes:
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores[:1] if process.pid in pids else cores[1:])
        return True

    async def baseline_proxy(self, upstream: str) -> ServerProcess:
        """The bare proxy in front of `upstream` (a URL)."""
        return await self.start("-m", "stayfast.lab.harness.loopback", upstream)

    async def canned_upstream(self) -> ServerProcess:
        """An upstream that gives every request the same whole answer at once."""
        return await self.start("-m", "stayfast.lab.harness.loopback")

    def written(self, content: Mapping[str, Any]) -> str:
        """The path of a file with this content, which is deleted with the processes."""
        self._n_files += 1
        path = Path(self._directory.name) / f"{self._n_files}.yaml"
        path.write_text(json.dumps(content, default=dict))  # JSON is YAML
        return str(path)

    async def start(self, *arguments: str) -> ServerProcess:
        """Run this Python on `arguments`; it is up when it prints where it listens. Raises SetUpFailed with its output."""
        spawning = asyncio.get_running_loop().create_task(asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, limit=MAX_LINE_BYTES, env=_variables()))
        self._spawning.add(spawning)
        spawning.add_done_callback(self._spawned)
        process = await asyncio.shield(spawning)  # cancelled half-way, it would leave a child that is in no list
        output = process.stdout
        assert output is not None
        printed = bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_WITHIN_S):
                while line := await output.readline():
                    printed += line
                    if (found := _URL.search(line)) is not None:
                        self._drain(output)
                        return ServerProcess(found[0].decode(), process)
        raise SetUpFailed(f"`{shlex.join(('python', *arguments))}` did not start:\n{printed.decode(errors='replace')}")

    def _spawned(self, spawning: asyncio.Task[asyncio.subprocess.Process]) -> None:
        self._spawning.discard(spawning)
        if not spawning.cancelled() and spawning.exception() is None:
            self._processes.append(spawning.result())

    def _drain(self, output: asyncio.StreamReader) -> None:
        """Read and forget what it prints, its log lines above all, or it would wait for a reader."""
        task = asyncio.get_running_loop().create_task(_to_the_end(output))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)


async def _to_the_end(output: asyncio.StreamReader) -> None:
    while await output.read(1 << 16):
        pass


def _variables() -> dict[str, str]:
    """The environment, less what would change the settings of a server."""
    return {name: value for name, value in environment().items() if name != "PORT" and not name.startswith("STAYFAST_")}


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
    """A provider as a settings file has it: its seed, and what differs from the defaults."""
    if not isinstance(config, ProviderConfig):
        return config
    fields, usual = msgspec.to_builtins(config), msgspec.to_builtins(ProviderConfig())
    return {name: value for name, value in fields.items() if name == "seed" or value != usual[name]}


def gateway_settings(upstreams: Mapping[str, str], **route: Any) -> dict[str, Any]:
    """Settings of a gateway with one route, "m", to upstreams that speak OpenAI's protocol at these URLs."""
    return {
        "upstreams": {name: {"kind": "openai", "base_url": url, "key": "none", "probe": False, "apis": ["chat"]}
                      for name, url in upstreams.items()},
        "routes": {MODEL: {"upstreams": list(upstreams), **route}},
    }
