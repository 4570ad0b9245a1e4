"""Importing does nothing: no socket, no thread, no file, no warning, and it is quick."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
ASYNCIO_S = 0.08  # CPU of importing it, where the limits below were set

IMPORT_ALL = """
import pkgutil, sys, threading
import numpy  # its own import sets a variable, for itself
import azure.identity, botocore.session, google.auth.aws, google.auth.compute_engine, requests  # theirs open sockets
touched = []
def audit(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.spawn", "os.posix_spawn", "os.putenv")):
        touched.append(event)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        touched.append(f"{event} {arguments[0]}")
sys.addaudithook(audit)
sys.dont_write_bytecode = True
import stayfast
for module in pkgutil.walk_packages(stayfast.__path__, "stayfast."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
print(threading.active_count(), sorted(set(touched)), len([name for name in sys.modules if name.startswith("stayfast.")]))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees nothing of our environment."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False,
                          env={"PYTHONPATH": str(SRC), "PATH": os.defpath})


def test_importing_every_module_does_nothing() -> None:
    """With warnings as errors and an empty environment: one thread, nothing opened, started or written."""
    done = python("-W", "error", "-c", IMPORT_ALL)
    assert done.stderr == ""
    n_threads, touched, n_modules = done.stdout.split(" ", 1)[0], done.stdout.split(" ", 1)[1].rsplit(" ", 1)[0], \
        int(done.stdout.rsplit(" ", 1)[1])
    assert (n_threads, touched) == ("1", "[]")
    assert n_modules > 40


@pytest.mark.serial
@pytest.mark.parametrize(("module", "limit_s"), [("stayfast", 0.1), ("stayfast.cli", 0.15), ("stayfast.settings", 0.6)])
def test_importing_is_quick(module: str, limit_s: float) -> None:
    """CPU of the best of five fresh interpreters, start-up included; a machine on which asyncio takes longer has longer."""
    slowness = max(1.0, import_s("asyncio") / ASYNCIO_S)
    assert import_s(module) < limit_s * slowness


def import_s(module: str) -> float:
    """The least of five."""
    best_s = 9.0
    for _ in range(5):
        before = os.times()
        assert python("-c", f"import {module}").returncode == 0
        after = os.times()
        best_s = min(best_s, after.children_user + after.children_system - before.children_user - before.children_system)
    return best_s


WITHOUT_EXTRAS = """
import sys
for extra in ("numpy", "tokenizers", "onnx", "onnxruntime", "usearch", "wordllama", "bpe_openai", "jsonschema_rs"):
    sys.modules[extra] = None
from stayfast.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("words", "status", "shown"), [
    (["prove", "--list"], 0, "classify"),
    (["classify", "show", "x.npz"], 1, "numpy is not installed; pip install '.[classify]'"),
    (["cache", "eval", "--classes", "x.csv"], 1, "is not installed; pip install '.[semantic]'"),
])
def test_command_without_extras_runs_or_names_them(words: list[str], status: int, shown: str) -> None:
    done = python("-c", WITHOUT_EXTRAS, *words)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert shown in done.stdout + done.stderr
