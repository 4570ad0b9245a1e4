"""An image built by deploy/Dockerfile on bases that Debian's packages make, and containers of it.

No registry of containers is needed: the bases are trees of packages, and runc starts what buildah has built, hardened as in
production. mmdebstrap, buildah and runc need root.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.absent import absent
from tests.docs.pages import ROOT
from tests.ports import free_port
from tests.services.tools import tool

SUITE = "trixie"  # Debian 13, as the Dockerfile's own bases
USER = 65532
# What debian:13-slim has; and what gcr.io/distroless/python3-debian13 has at least: Python, no shell, no OpenMP.
BUILD_TREE = ["--variant=minbase"]
RUN_TREE = ["--variant=extract", "--include=python3-minimal,libpython3-stdlib,tzdata,netbase",
            "--setup-hook=for d in bin sbin lib lib64; do mkdir -p \"$1/usr/$d\"; ln -s \"usr/$d\" \"$1/$d\"; done"]
AUTHORITIES = "/authorities.crt"  # of this machine, whose network may have its own
READ_ONLY = ["ro", "rbind", "nosuid", "nodev"]


def authorities() -> str:
    """The file of certificates that this machine trusts."""
    return ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"


class Image:
    """deploy/Dockerfile, built: its configuration, its files, and its size in bytes."""

    def __init__(self, folder: Path) -> None:
        for name in ("mmdebstrap", "buildah", "runc"):
            tool(name, name)
        if os.geteuid() != 0:
            absent("not root: an image cannot be built")
        self._folder = folder
        self._buildah = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._buildah += ["--storage-driver", "vfs"]
        index = {name: value for name, value in os.environ.items() if name == "PIP_INDEX_URL"}
        self._make_base("build-base", [*BUILD_TREE, f"--customize-hook=upload {authorities()} {AUTHORITIES}"],
                        {"PIP_CERT": AUTHORITIES, **index})
        self._make_base("run-base", RUN_TREE, {})
        started = time.monotonic()
        self._run("build", "--isolation", "chroot", "--network", "host", "--layers=false", "--format", "docker", "--file",
                  str(ROOT / "deploy" / "Dockerfile"), "--build-arg", "BUILD_BASE=localhost/build-base", "--build-arg",
                  "RUNTIME_BASE=localhost/run-base", "--build-arg", "REVISION=abc", "--tag", "localhost/stayfast", str(ROOT))
        self.build_s = time.monotonic() - started
        held = self._run("from", "localhost/stayfast").strip()
        self.files = Path(self._run("mount", held).strip())
        described = json.loads(self._run("inspect", "--type", "image", "localhost/stayfast"))
        self.config: dict[str, Any] = described["Docker"]["config"]
        self.n_bytes = sum(path.lstat().st_size for path in self.files.rglob("*") if not path.is_dir())

    def remove(self) -> None:
        """Free its gigabytes: pytest holds the folders of three runs."""
        shutil.rmtree(self._folder)

    def _run(self, *arguments: str) -> str:
        """What buildah prints."""
        ended = subprocess.run([*self._buildah, *arguments], capture_output=True, text=True, check=False, timeout=600)
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    def _make_base(self, name: str, variant: list[str], variables: dict[str, str]) -> None:
        """An image of Debian packages."""
        tree = self._folder / f"{name}.tar"
        command = ["mmdebstrap", "--mode=root", *variant, SUITE, str(tree)]
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert made.returncode == 0, made.stderr[-4000:]
        held = self._run("from", "scratch").strip()
        self._run("add", "--quiet", held, str(tree), "/")
        for variable, value in variables.items():
            self._run("config", "--env", f"{variable}={value}", held)
        self._run("commit", "--quiet", "--rm", held, f"localhost/{name}")
        tree.unlink()

    @contextmanager
    def running(self, settings: str, system_calls: Sequence[str] = ()) -> "Iterator[Container]":
        """A container of the image's own command, with this settings file. `system_calls`: those allowed, () for all."""
        bundle = self._folder / f"bundle-{time.monotonic_ns()}"
        (bundle / "settings").mkdir(parents=True)
        (bundle / "settings" / "stayfast.yaml").write_text(settings)
        port = free_port()
        (bundle / "config.json").write_text(json.dumps(self._specification(bundle, port, system_calls)))
        container = Container(self, bundle, port)
        try:
            container.wait_until_alive()
            yield container
        finally:
            container.end()

    def _specification(self, bundle: Path, port: int, system_calls: Sequence[str]) -> dict[str, Any]:
        """The run-time specification: read-only root, no capabilities, no new privileges; the network of this machine."""
        ours = subprocess.run(["runc", "spec"], cwd=bundle, capture_output=True, check=False)
        assert ours.returncode == 0, ours.stderr
        specification: dict[str, Any] = json.loads((bundle / "config.json").read_text())
        user, _, group = self.config["User"].partition(":")
        specification["root"] = {"path": str(self.files), "readonly": True}
        specification["process"].update({
            "terminal": False, "user": {"uid": int(user), "gid": int(group)}, "noNewPrivileges": True,
            "capabilities": {}, "args": [*self.config["Entrypoint"], *self.config["Cmd"]],
            "env": [*self.config["Env"], f"STAYFAST_PORT={port}"],
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 1024}]})
        writable = [{"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", *more]}
                    for path, more in (("/tmp", ["mode=1777"]),
                                       ("/var/lib/stayfast", ["mode=0700", f"uid={USER}", f"gid={USER}"]))]
        specification["mounts"] += [*writable, {"destination": "/etc/stayfast", "type": "bind", "options": READ_ONLY,
                                                "source": str(bundle / "settings")}]
        kinds = specification["linux"]["namespaces"]
        specification["linux"]["namespaces"] = [kind for kind in kinds if kind["type"] != "network"]
        if system_calls:
            specification["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
                {"names": list(system_calls), "action": "SCMP_ACT_ALLOW"}]}
        return specification


class Container:
    """One that runs."""

    def __init__(self, image: Image, bundle: Path, port: int) -> None:
        self.image = image
        self.url = f"http://127.0.0.1:{port}"
        self.id = bundle.name
        self._runc = ["runc", "--root", str(bundle / "state")]
        self._log = bundle / "log"
        self.started_at = time.monotonic()
        with self._log.open("wb") as out:
            self._child = subprocess.Popen([*self._runc, "run", "--bundle", str(bundle), self.id], stdout=out, stderr=out)

    def wait_until_alive(self) -> None:
        while True:
            with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(f"{self.url}/livez", timeout=5):
                return
            assert self._child.poll() is None, self.log()
            assert time.monotonic() - self.started_at < 60, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text()

    def execute(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as its user."""
        given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        return subprocess.run([*self._runc, "exec", *given, self.id, *command], capture_output=True, text=True, check=False,
                              timeout=60)

    def stop(self) -> int:
        """Send the image's stop signal; the exit status."""
        number = signal.Signals[self.image.config["StopSignal"]].value
        subprocess.run([*self._runc, "kill", self.id, str(number)], check=True, timeout=60)
        return self._child.wait(60)

    def end(self) -> None:
        subprocess.run([*self._runc, "delete", "--force", self.id], capture_output=True, check=False, timeout=60)
        self._child.wait(60)
