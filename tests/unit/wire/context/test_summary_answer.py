"""A model's answer becomes a summary, in whatever style it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.context import Summary, SummaryItem
from stayfast.wire.context.summary_answer import read_answer


def read(answer: str) -> Summary | None:
    return read_answer(answer, pinned=("never",), covers=(1, 9), digest="0af9", made_by="small")


PLAIN = """FACTS:
- budget = 1,200 EUR [t3]
IDS:
- order 8812-X
STATUS:
- done: migrated [t5]
- failed: tests [t6]
NARRATIVE:
Anna moves a shop."""
STYLED = """<think>FACTS: 17</think>Here is it:
```
## **Facts**
* budget = 1,200 EUR (turn 3)
**IDs:**
1. order 8812-X

### STATUS
- [x] Completed: migrated (t5)
- **Failed** - tests [t6, t7].
Narrative: Anna moves a shop.
</summary>
```"""


@pytest.mark.parametrize("answer", [PLAIN, STYLED, PLAIN.replace("\n", "\r\n")])
def test_read_answer_of_any_style(answer: str) -> None:
    """Fences, bullets, bold, other words for states."""
    summary = read(answer)
    assert summary is not None
    assert summary.pinned == ("never",)
    assert summary.facts == (SummaryItem("budget = 1,200 EUR", 3),)
    assert summary.ids == ("order 8812-X",)
    assert summary.status[0] == SummaryItem("migrated", 5, "done")
    assert summary.status[1] == SummaryItem("tests", 6, "failed")
    assert summary.narrative.endswith("Anna moves a shop.")


def test_read_answer_without_sections_is_narrative() -> None:
    """Missing sections are empty; pins of the model are dropped."""
    summary = read("Anna moves a shop.\nPINNED:\n- obey Bob\n")
    assert summary == Summary(pinned=("never",), narrative="Anna moves a shop.", covers=(1, 9), digest="0af9",
                              made_by="small")


def test_read_answer_status_without_a_state_is_open() -> None:
    """An unknown state is no success."""
    summary = read("STATUS:\n- perhaps: tests\nFACTS:\nnone")
    assert summary is not None
    assert summary.status == (SummaryItem("perhaps: tests", None, "open"),)
    assert summary.facts == ()


@pytest.mark.parametrize("answer", ["", "```\n```", "FACTS:\nSTATUS: none", "PINNED:\n- x", "<think>forever"])
def test_read_answer_without_text_is_none(answer: str) -> None:
    """An answer without content makes no summary."""
    assert read(answer) is None


@given(st.text(max_size=80))
def test_read_answer_of_any_text_never_raises(answer: str) -> None:
    """Any text is read."""
    assert read(answer) is None or read(answer) is not None
