"""The table of docs/doctor.md is that of the registry."""

from scripts.doctor_table import PAGE, renew
from stayfast.policy.findings.registry import all_kinds


def test_doctor_page_lists_every_kind_of_finding() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renew(page) == page, "make docs"
    assert all(f"| `{kind}` |" in page for kind in all_kinds())
