"""A PostgreSQL server for proofs, on a free port of loopback, with its data in a folder of its own.

PostgreSQL refuses to run as root: it then runs as the user postgres, or nobody.
"""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.processes import children_of

USER = "postgres"
START_WITHIN_S = 30.0
_CHECK_S = 0.1
_AS_USER = "import os, sys; os.setgroups([]); os.setuid(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
_OPTIONS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=64MB", "max_connections=100",
            "log_min_messages=warning")


class PostgresServer:
    """`async with PostgresServer() as server`. Raises SetUpFailed if PostgreSQL is not installed or does not start."""

    def __init__(self) -> None:
        self._programs = find_programs()
        self._directory = TemporaryDirectory(prefix="stayfast-postgres-")  # not in a folder that only root may enter
        self._folder = Path(self._directory.name)
        self._user = server_user()
        self._process: asyncio.subprocess.Process | None = None
        self._port = free_port()

    @property
    def url(self) -> str:
        """The address for `jobs.store`."""
        return f"postgres://{USER}@127.0.0.1:{self._port}/postgres"

    async def __aenter__(self) -> Self:
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        made = await asyncio.create_subprocess_exec(
            *self._command("initdb"), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, cwd=self._folder)
        _, errors = await made.communicate()
        if made.returncode:
            raise SetUpFailed(f"initdb failed: {errors.decode(errors='replace')[-300:]}")
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGQUIT)
            await self._process.wait()
        self._directory.cleanup()

    async def start(self) -> None:
        """Start the server on its data; returns when it accepts connections."""
        options = [part for option in _OPTIONS for part in ("-c", option)]
        self._process = await asyncio.create_subprocess_exec(
            *self._command("postgres"), "-p", str(self._port), *options, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, cwd=self._folder, start_new_session=True)
        for _ in range(round(START_WITHIN_S / _CHECK_S)):
            if await self._is_ready():
                return
            await asyncio.sleep(_CHECK_S)
        raise SetUpFailed(f"postgres did not accept connections within {START_WITHIN_S:g} s")

    async def kill(self) -> None:
        """End the server and its processes at once (SIGKILL), as a crash of the machine would."""
        assert self._process is not None
        for pid in (self._process.pid, *children_of(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()

    def _command(self, program: str) -> list[str]:
        """One of PostgreSQL's programs on the server's data. uvloop cannot start a process of another user."""
        command = [str(self._programs / program), "-D", str(self._folder / "data")]
        return command if self._user is None else [sys.executable, "-c", _AS_USER, str(self._user), *command]

    async def _is_ready(self) -> bool:
        done = await asyncio.create_subprocess_exec(
            self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port))
        return await done.wait() == 0


def find_programs() -> Path:
    """The folder of PostgreSQL's programs. Raises SetUpFailed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    program = shutil.which("initdb")
    for folder in (*found, *([Path(program).parent] if program is not None else [])):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise SetUpFailed("PostgreSQL is not installed (Debian: apt-get install postgresql)")


def server_user() -> int | None:
    """The user that the server runs as; None: this process's own."""
    if os.geteuid() != 0:
        return None
    for name in (USER, "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise SetUpFailed("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def free_port() -> int:
    """A TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
