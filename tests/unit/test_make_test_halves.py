"""The two halves of `make test`, which do not change the effect of `-m`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "tests/server/test_cli.py"  # has tests of both halves


def collected(*options: str) -> set[str]:
    """The tests that pytest would run of one file."""
    done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-n", "0", FILE, *options], cwd=ROOT,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith(FILE)}


def test_serial_and_parallel_halves_partition_all_tests() -> None:
    """Each test is in one."""
    alone, others = collected("--serial", "only"), collected("--serial", "none")
    assert alone
    assert others
    assert not alone & others
    assert alone | others == collected()


@pytest.mark.parametrize("half", ["only", "none"])
def test_halves_with_marker_select_only_marked_tests(half: str) -> None:
    """As in `make test ARGS="-m serial"`: one half is all of it, the other is empty."""
    assert collected("--serial", half, "-m", "serial") == (collected("-m", "serial") if half == "only" else set())
