"""The public API is as small as it was, and its page can be read in ten minutes."""

import re
from pathlib import Path

from stayfast import turns

PAGE = Path(__file__).parents[2] / "docs" / "turns.md"
MOST_NAMES = 25  # a change may lower it
MOST_WORDS = 2000  # ten minutes at 200 a minute; code aside, which is read along


def test_public_names_are_few_and_all_on_the_page() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Every name")[2]
    said = [name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(said) == sorted(turns.__all__)
    assert len(turns.__all__) <= MOST_NAMES


def test_turns_page_can_be_read_in_ten_minutes() -> None:
    prose = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(prose.split()) <= MOST_WORDS
