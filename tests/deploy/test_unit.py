"""deploy/stayfast.service, read by systemd's own tools. tests/docs/test_operations.py reads the rest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stayfast.server.config import ServerConfig
from tests.docs.pages import ROOT
from tests.services.tools import tool

UNIT = ROOT / "deploy" / "stayfast.service"
SOCKET = UNIT.with_suffix(".socket")
MAX_EXPOSURE = 2.0  # systemd's own scale: 0 is best, 10 worst


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [tool("systemd-analyze", "systemd"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60,
                          env={"SYSTEMD_LOG_LEVEL": "info", "LC_ALL": "C", "PATH": "/usr/bin:/bin"})


def test_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    """No unknown key, no wrong value; its programs are looked for where this test puts them."""
    program = tmp_path / "stayfast"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "stayfast.service"
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/stayfast/bin/stayfast", str(program)))
    assert complaints(copy) == []
    (tmp_path / SOCKET.name).write_bytes(SOCKET.read_bytes())
    assert complaints(tmp_path / SOCKET.name) == []
    copy.write_text(copy.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))
    assert len(complaints(copy)) == 1


def test_unit_socket_has_the_usual_port_and_the_name_of_its_service() -> None:
    """A socket unit starts the service of its own name; the watchdog's restart is a failure in systemd's terms."""
    assert SOCKET.stem == UNIT.stem
    (address,) = re.findall(r"^ListenStream=(.*)$", SOCKET.read_text(encoding="utf-8"), re.MULTILINE)
    assert int(address) == ServerConfig().port
    service = UNIT.read_text(encoding="utf-8")
    assert "\nRestart=on-failure\n" in service
    assert re.search(r"^WatchdogSec=\d+$", service, re.MULTILINE)
    assert "\nRuntimeDirectory=stayfast\n" in service  # docs/operations.md puts server.unix_socket there


def complaints(unit: Path) -> list[str]:
    """Of `systemd-analyze verify`, about this unit."""
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    return [line for line in (done.stdout + done.stderr).splitlines() if "stayfast" in line]


def test_unit_exposure_has_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """What systemd rates as exposed, as a number."""
    rating = analyze("security", "--offline=true", "--no-pager", str(UNIT)).stdout
    (found,) = re.findall(r"Overall exposure level for stayfast.service: ([\d.]+)", rating)
    with capsys.disabled():
        sys.stdout.write(f"\nsystemd unit: exposure {found}\n")
    assert float(found) <= MAX_EXPOSURE
