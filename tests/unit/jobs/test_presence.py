"""Which workers of a machine are alive."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from stayfast.jobs.presence import WorkerPresence

HOLD = """\
import sys, time
from pathlib import Path
from stayfast.jobs.presence import WorkerPresence
presence = WorkerPresence(Path(sys.argv[1]), sys.argv[2])
presence.announce()
print(presence.worker, flush=True)
time.sleep(60)
"""


def dead(presence: WorkerPresence) -> list[str]:
    """The dead workers, which are forgotten."""
    with presence.dead_workers() as found:
        return found


def test_presence_of_a_killed_process_is_found_once(tmp_path: Path) -> None:
    """The kernel has dropped its lock; living workers and those of other hosts are not found."""
    mine = WorkerPresence(tmp_path, "host")
    mine.announce()
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "host"], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "host2"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert other.stdout is not None
        worker = child.stdout.readline().strip()
        other.stdout.readline()
        assert dead(mine) == []
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        (prefix,) = dead(mine)
        assert worker.startswith(prefix)
        assert dead(mine) == []
    finally:
        for process in (child, other):
            process.kill()
            process.communicate()
    mine.leave()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("host+")] == []


def test_presence_is_found_again_if_the_recovery_fails(tmp_path: Path) -> None:
    """A store that is down must not make the jobs wait for their leases."""
    gone = WorkerPresence(tmp_path, "host")
    gone.announce()
    (path,) = tmp_path.iterdir()
    copy = path.with_name("host+0123.worker")
    copy.write_bytes(b"")  # nobody holds a lock on it
    mine = WorkerPresence(tmp_path, "host")
    try:
        with mine.dead_workers():
            raise OSError
    except OSError:
        assert dead(mine) == ["host:0123:"]
    gone.leave()


def test_presence_without_a_writable_folder_does_no_harm(tmp_path: Path) -> None:
    """The lease alone protects the jobs."""
    (tmp_path / "file").write_text("in the way")
    presence = WorkerPresence(tmp_path / "file" / "workers")
    presence.announce()
    assert dead(presence) == []
    presence.leave()
