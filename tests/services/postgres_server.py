"""A real PostgreSQL on a port of loopback, which can be killed, frozen and started again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.postgres import find_programs, server_user
from tests.absent import absent
from tests.ports import free_port
from tests.services.running import START_S, STOP_S, wait_until

SETTINGS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=64MB", "max_connections=60",
            "log_min_messages=warning")
USER = "postgres"


def find_postgres() -> Path:
    """The folder of the programs. Skips without them, but fails on CI."""
    named = os.environ.get("STAYFAST_TEST_POSTGRES")
    if named:
        return Path(named)
    try:
        return find_programs()
    except SetUpFailed as error:
        return absent(str(error))


class PostgresServer:
    """Its data stays on disk over restarts. PostgreSQL refuses to run as root: it is then the user postgres or nobody."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.port = free_port()
        self.url = f"postgres://{USER}@127.0.0.1:{self.port}/postgres"
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._errors = folder / "postgres.log"
        self._user = server_user()
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """An empty database."""
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        subprocess.run([self._programs / "initdb", "-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"],
                       check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=self._folder, user=self._user)

    def start(self) -> None:
        """Returns when it answers."""
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        with self._errors.open("a") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-p", str(self.port), *settings], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, cwd=self._folder, user=self._user, start_new_session=True)
        wait_until(self._answers, START_S, self._errors)

    def kill(self) -> None:
        """As a crash does: all of its processes at once."""
        assert self._process is not None
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(STOP_S)
        wait_until(lambda: all(_has_ended(pid) for pid in pids), STOP_S, self._errors)  # it does not start before

    def stop(self) -> None:
        """At once, but in order."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(STOP_S)

    def freeze(self) -> None:
        """It accepts connections, and answers nothing."""
        assert self._process is not None
        for pid in [self._process.pid, *_children(self._process.pid)]:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        for pid in [self._process.pid, *_children(self._process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def execute(self, sql: str, database: str = "postgres") -> str:
        """The output of psql, which must succeed."""
        done = subprocess.run([self._programs / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p",
                               str(self.port), "-U", USER, "-d", database, "-c", sql], capture_output=True, text=True,
                              check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def database_url(self, name: str) -> str:
        """The address of one of its databases."""
        return f"postgres://{USER}@127.0.0.1:{self.port}/{name}"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._errors.read_text()
        done = subprocess.run([self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False)
        return done.returncode == 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running one. STAYFAST_TEST_POSTGRES names another folder of programs. Its data is not in pytest's folder, which only
    the user who runs the tests may enter.
    """
    programs = find_postgres()
    with TemporaryDirectory(prefix="stayfast-postgres-") as folder:
        server = PostgresServer(programs, Path(folder))
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
