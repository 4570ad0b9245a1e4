"""Programs that these tests ask of the machine."""

import os
import shutil

import pytest


def tool(name: str, package: str) -> str:
    """The program's path. Skips without it, but fails on CI."""
    path = shutil.which(name)
    if path is None:
        missing = f"{name} is not installed (Debian: apt-get install {package})"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path
