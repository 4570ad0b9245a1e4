"""Every proof that there is stands in the README's table and in docs/proofs.md, and no other."""

import re

from stayfast.lab.claims.registry import claims
from tests.docs.pages import ROOT


def names_in_first_column(text: str) -> list[str]:
    """The code in the first cells of tables."""
    return [name for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)]


def test_readme_names_every_proof() -> None:
    """Each once, whatever rows they share."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Proofs")[1].split("\n## ")[0]
    assert sorted(names_in_first_column(table)) == sorted(claims())


def test_proofs_page_has_row_for_every_proof() -> None:
    """With what it claims and how it is taken."""
    page = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
    assert set(claims()) <= set(names_in_first_column(page))
