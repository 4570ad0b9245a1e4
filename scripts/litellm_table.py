"""Writes the table of docs/coming-from-litellm.md anew from the importer's own."""

import sys
from pathlib import Path

from stayfast.settings.litellm_import.known import count_known, table_lines

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-litellm.md"
BEGIN, END = "<!-- settings: make docs -->\n", "<!-- end -->\n"


def renew(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(table_lines()) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    text = renew(PAGE.read_text(encoding="utf-8"))
    sys.stdout.write(f"{PAGE.name}: {count_known()} settings\n")
    PAGE.write_text(text, encoding="utf-8")
