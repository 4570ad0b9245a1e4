"""Writes the table of docs/doctor.md anew from the registry of findings."""

import sys
from pathlib import Path

from stayfast.policy.findings.check import Check
from stayfast.policy.findings.registry import CHECKS, REPORTED

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
BEGIN, END = "<!-- checks: make docs -->\n", "<!-- end -->\n"


def write_table(kinds: tuple[Check, ...]) -> str:
    """One row for each kind, sorted by id."""
    rows = [f"| `{kind.id}` | {kind.title} | {', '.join(f'`{one}`' for one in kind.explains)} |"
            for kind in sorted(kinds, key=lambda kind: kind.id)]
    return "\n".join(["| id | found if | explains |", "|---|---|---|", *rows]) + "\n"


def renew(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(BEGIN)
    tables = f"\n{write_table(CHECKS)}\nReported by the parts themselves:\n\n{write_table(REPORTED)}\n"
    return before + BEGIN + tables + END + rest.split(END)[1]


if __name__ == "__main__":
    text = renew(PAGE.read_text(encoding="utf-8"))
    sys.stdout.write(f"{PAGE.name}: {len(CHECKS)} checks, {len(REPORTED)} reported kinds\n")
    PAGE.write_text(text, encoding="utf-8")
