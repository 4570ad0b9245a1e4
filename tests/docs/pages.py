"""The pages that people read, and what is inside them."""

import re
from collections.abc import Iterator
from pathlib import Path

from stayfast.settings.providers import all_providers

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DIGEST = "sha256:" + "0" * 64
REFERENCE = re.compile(r"\$\{(\w+)")
PROVIDER = re.compile(r"\b(?:provider|kind): ([\w-]+)")
_SPAN = re.compile(r"`([^`\n]+)`")


def pages() -> list[Path]:
    """README, CONTRIBUTING, CHANGELOG and everything in docs."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of a page in one of these languages."""
    for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def fences(page: Path) -> list[str]:
    """What follows the opening fence of each block, in whatever form Markdown takes; "~~~" for a fence of that form."""
    found = []
    is_open = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = re.match(r"\s*(```+|~~~+)(.*)$", line)
        if fence is None:
            continue
        is_open = not is_open
        if is_open:
            found.append(fence[2] if line.startswith("```") else line)
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """The code inside a page's sentences."""
    return _SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page))}


def variables_for(text: str) -> dict[str, str]:
    """An environment with all that a settings file refers to: a digest where one is meant, else some text."""
    known = {"DIGEST": DIGEST, "STORE": "postgres://user@host/database"}
    rows = [all_providers().get(name) for name in PROVIDER.findall(text)]
    names = {*REFERENCE.findall(text), *(row.key_variable for row in rows if row is not None and row.key_variable)}
    return {name: known.get(name.rpartition("_")[2], "something") for name in names}
