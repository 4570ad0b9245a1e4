"""Programs that these tests need on the machine."""

import shutil

from tests.absent import absent


def tool(name: str, package: str) -> str:
    """The program's path. Skips without it, but fails on CI."""
    path = shutil.which(name)
    if path is None:
        absent(f"{name} is not installed (Debian: apt-get install {package})")
    return path
