"""The Python in the pages runs, in order, each page as one program."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks

PAGES = ["docs/turns.md", "docs/turns-agents.md", "docs/turns-events.md", "docs/turns-served.md"]


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_of_page_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What it asserts holds."""
    page = ROOT / name
    run(page)
    assert "broke the budget" not in capsys.readouterr().out


def test_page_with_failing_assertion_is_found(tmp_path: Path) -> None:
    """An assertion of a page that does not hold fails."""
    page = tmp_path / "page.md"
    page.write_text("```python\na = 1\n```\nand\n```python\nassert a == 2\n```\n")
    with pytest.raises(AssertionError):
        run(page)


def run(page: Path) -> None:
    """All its blocks of Python, as one program."""
    names: dict[str, Any] = {"__name__": "page"}
    texts = list(blocks(page, "python"))
    assert texts
    for text in texts:
        exec(compile(text, str(page), "exec"), names)
