"""The difference of two versions of a prompt."""

from stayfast.core.prompt_versions import PromptHunk
from stayfast.wire.prompt_diff import compare_heads
from tests.unit.wire.head_rig import chat, head

SECRET = "Xylophone"
BEFORE = head(chat(f"One.\n{SECRET}\nThree.\nDay 2026-11-23.\nFive."))
AFTER = head(chat(f"One.\nTwo!\n{SECRET}\nThree.\nDay 2026-11-24.\n"))
NAMES = ("a" * 64, "b" * 64)


def test_compare_without_text_has_positions_and_kinds_only() -> None:
    found = compare_heads(BEFORE, AFTER, NAMES, has_text=False)
    assert found.hunks == (PromptHunk("text", 3, 0, 3, 1), PromptHunk("text", 5, 2, 6, 1))
    assert (found.before, found.n_hunks, found.text, found.diff) == (NAMES[0], 2, None, None)
    assert SECRET not in repr(found)


def test_compare_changed_date_is_named() -> None:
    found = compare_heads(head(chat("Be kind.\nDay 2026-11-23.")), head(chat("Be kind.\nDay 2026-11-24.")), NAMES,
                          has_text=False)
    assert found.hunks == (PromptHunk("a date", 3, 1, 3, 1),)


def test_compare_with_text_is_a_unified_diff() -> None:
    found = compare_heads(BEFORE, AFTER, NAMES, has_text=True)
    assert found.diff is not None
    assert found.diff[:2] == (f"--- {NAMES[0]}", f"+++ {NAMES[1]}")
    assert {"+Two!", "-Day 2026-11-23.", "+Day 2026-11-24.", f" {SECRET}"} <= set(found.diff)
    assert found.text is not None
    assert found.text[1:3] == ("One.", "Two!")


def test_compare_with_nothing_has_no_hunks() -> None:
    assert compare_heads(None, AFTER, NAMES, has_text=False).hunks is None
