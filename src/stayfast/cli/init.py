"""`stayfast init`: a settings file to begin with."""

import argparse
from pathlib import Path

from stayfast.cli import say
from stayfast.settings import why_not_embedded
from stayfast.settings.starter import starter


def run(arguments: argparse.Namespace) -> int:
    """Write the file; an existing one is overwritten only with --force."""
    path = Path(arguments.file)
    text = starter(is_embedded=why_not_embedded() is None)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        say(f"stayfast init: {path} exists; --force overwrites it")
        return 1
    except OSError as error:
        say(f"stayfast init: {path} cannot be written: {error.strerror}")
        return 1
    say(f"wrote {path}; next: stayfast check {path} && stayfast serve --config {path}")
    return 0
