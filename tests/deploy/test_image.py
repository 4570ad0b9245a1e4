"""deploy/Dockerfile, built from Debian's packages and run as a hardened container; prints its size."""

import json
import re
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.image_rig import USER, Container, Image
from tests.docs.pages import ROOT
from tests.services.tools import tool

MAX_BYTES = 250e6
SETTINGS = """\
server: {host: 127.0.0.1, drain_grace_s: 0}
upstreams: {tiny: {kind: embedded}}
routes: {stayfast-tiny: [tiny]}
"""
UNCHECKED = 1  # PEP 552: the hash is not compared with the source

pytestmark = [pytest.mark.sockets, pytest.mark.serial]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Built once, in about a minute."""
    built = Image(tmp_path_factory.mktemp("image"))
    yield built
    built.remove()


def answer(container: Container) -> str:
    """Text of the embedded model."""
    body = {"model": "stayfast-tiny", "messages": [{"role": "user", "content": "What is TTFT?"}]}
    call = urllib.request.Request(f"{container.url}/v1/chat/completions", json.dumps(body).encode(),
                                  {"content-type": "application/json"})
    with urllib.request.urlopen(call, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
    return text


def test_image_read_only_and_without_root_serves_an_answer(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    """One answer, a health check, no file written outside its folders, a clean stop."""
    check = image.config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    with image.running(SETTINGS) as container:
        alive_s = time.monotonic() - container.started_at
        assert "token" in answer(container)
        assert container.execute(*check[1:], STAYFAST_PORT=container.url.rpartition(":")[2]).returncode == 0
        assert container.execute(*check[1:], STAYFAST_PORT="1").returncode == 1
        write = "import os, sys; print(os.getuid()); open(sys.argv[1], 'w')"
        refused = container.execute("/opt/stayfast/bin/python", "-c", write, "/opt/stayfast/new")
        assert (refused.stdout, "Read-only file system" in refused.stderr) == (f"{USER}\n", True)
        assert container.execute("/opt/stayfast/bin/python", "-c", write, "/var/lib/stayfast/new").returncode == 0
        assert container.execute("/bin/sh", "-c", "true").returncode != 0
        assert container.stop() == 0
    with capsys.disabled():
        sys.stdout.write(f"\nimage: {image.n_bytes / 1e6:.0f} MB, built in {image.build_s:.0f} s, "
                         f"alive after {alive_s:.2f} s\n")


def allowed_calls() -> list[str]:
    """The system calls that deploy/stayfast.service allows, by systemd's own sets."""
    command = [tool("systemd-analyze", "systemd"), "syscall-filter", "--no-pager"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sets = {name: re.findall(r"^ +([@\w-]+)$", text, re.MULTILINE) for name, text in
            re.findall(r"^(@[\w-]+)\n((?: .*\n)+)", listed, re.MULTILINE)}

    def expand(name: str) -> set[str]:
        return set().union(*map(expand, sets[name])) if name.startswith("@") else {name}

    allowed: set[str] = set()
    for sign, name in re.findall(r"^SystemCallFilter=(~?)(@\S+)$", (ROOT / "deploy" / "stayfast.service").read_text(),
                                 re.MULTILINE):
        allowed = allowed - expand(name) if sign else allowed | expand(name)
    return sorted(allowed)


def test_image_with_the_system_calls_of_the_systemd_unit_serves_an_answer(image: Image) -> None:
    """Two workers, the engine and a clean stop need no other. systemd itself cannot run here."""
    calls = allowed_calls()
    assert "accept4" in calls
    assert not {"chown", "mount", "ptrace", "setuid"} & set(calls)
    with image.running(SETTINGS + "workers: 2\n", calls) as container:
        assert "token" in answer(container)
        tried = container.execute("/opt/stayfast/bin/python", "-c", "import os; os.chown('/tmp', -1, -1)")
        assert "Operation not permitted" in tried.stderr
        assert container.stop() == 0


def test_image_size_has_its_bound(image: Image) -> None:
    """With the embedded engine, its model, Redis, PostgreSQL, traces and cloud credentials."""
    assert image.n_bytes < MAX_BYTES


def test_image_config_has_user_signal_and_labels(image: Image) -> None:
    """User, signal, port, volume and labels; no variable or file of the build."""
    config = image.config
    assert (config["User"], config["StopSignal"]) == (f"{USER}:{USER}", "SIGTERM")
    assert (set(config["ExposedPorts"]), set(config["Volumes"])) == ({"8090/tcp"}, {"/var/lib/stayfast"})
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.revision"] == "abc"
    for folder in ("var/lib/stayfast", "var/cache/stayfast"):
        status = (image.files / folder).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (USER, USER, 0o700)
    assert not (image.files / "src").exists()
    assert not (image.files / "opt" / "stayfast" / "bin" / "pip").exists()


def test_image_has_all_bytecode_of_the_package(image: Image) -> None:
    """Python compiles nothing at the start, and compares no times."""
    (package,) = image.files.glob("opt/stayfast/lib/python3.*/site-packages/stayfast")
    sources = [path for path in package.rglob("*.py") if "__pycache__" not in path.parts]
    assert len(sources) > 300
    assert [path.name for path in sources if flags(path) & 0b11 != UNCHECKED] == []


def flags(source: Path) -> int:
    """The flags of its bytecode: bit 0, it has a hash; bit 1, the hash is compared."""
    (compiled,) = source.parent.glob(f"__pycache__/{source.stem}.cpython-*.pyc")
    number: int = struct.unpack("<I", compiled.read_bytes()[4:8])[0]
    return number
