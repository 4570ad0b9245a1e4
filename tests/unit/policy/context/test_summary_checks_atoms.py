"""Numbers, ids and names: what is missing, invented, or given to another thing."""

import pytest

from stayfast.core.context import Summary, SummaryItem, TurnText
from stayfast.policy.context.summary_checks_atoms import find_invented, find_missing, find_required, find_swapped
from stayfast.policy.context.summary_index import SourceIndex, read_statements


def index_of(*texts: str) -> SourceIndex:
    """Texts of a user, with a turn each."""
    return SourceIndex([TurnText("user", text, n) for n, text in enumerate(texts, 1)])


def facts(*texts: str) -> Summary:
    return Summary(facts=tuple(SummaryItem(text) for text in texts))


@pytest.mark.parametrize(
    ("texts", "required"),
    [
        (("It costs 1,250 EUR.", "1250 EUR is much."), ["1,250 EUR"]),
        (("It costs 1,250 EUR.", "Fine."), []),
        (("We are 8 people.", "8 people, yes."), []),
        (("The bus takes 20 minutes.", "20 minutes by bus, fine."), ["20 minutes"]),
        (("I waited 20 minutes.", "A walk of 20 minutes."), []),
        (("See PAY-77.", "PAY-77 is old."), ["PAY-77"]),
        (("On 24 Nov 2026.", "2026-11-24 then."), ["24 Nov 2026"]),
        (("It is 350 EUR.", "No: 370 EUR instead of 350 EUR."), []),
    ],
)
def test_find_required_needs_two_texts(texts: tuple[str, ...], required: list[str]) -> None:
    """Small and common numbers need the same words, too; a value that was replaced is not required."""
    assert [atom.text for atom in find_required(index_of(*texts))] == required


def test_find_required_of_tools_needs_a_reference() -> None:
    """The output of tools repeats itself."""
    tools = [TurnText("tool", "line 4711 of log", n, is_tool_result=True) for n in (1, 2)]
    assert find_required(SourceIndex(tools)) == []
    assert len(find_required(SourceIndex([*tools, TurnText("assistant", "See line 4711.", 3)]))) == 1


def test_find_missing_a_pin_is_enough() -> None:
    """What is pinned is in the summary."""
    index = index_of("It costs 1,250 EUR.", "1250 EUR is much.")
    pinned = [one.atom for one in index.atoms]
    assert [violation.rule for violation in find_missing(index, [], [])] == ["number"]
    assert list(find_missing(index, [], pinned)) == []


@pytest.mark.parametrize(
    ("fact", "rules"),
    [
        ("price = 1250 EUR", []),
        ("price (EUR) = 1250", []),
        ("price = 1250", ["unit"]),
        ("price = 1300 EUR", ["invented"]),
        ("three rooms", []),
        ("3 rooms", []),
        ("4 rooms", ["invented"]),
        ("rooms in 2026", []),
        ("on Nov 24", []),
        ("on Nov 25", ["invented"]),
        ("room of 30 seconds", ["unit"]),
        ("`run --fast`", ["invented"]),
        ("at conf.yaml", []),
    ],
)
def test_find_invented_numbers_dates_and_code(fact: str, rules: list[str]) -> None:
    """Written words are numbers; a unit may stand in the key; a part of a path is known."""
    index = index_of("It costs 1,250 EUR.", "We need three rooms on 2026-11-24, and 30.", "See /srv/conf.yaml")
    assert [violation.rule for violation in find_invented(index, read_statements(facts(fact)))] == rules


@pytest.mark.parametrize(
    ("statements", "n"),
    [
        (("lamp = 120 EUR", "desk = 450 EUR"), 0),
        (("desk = 450 EUR; lamp = 120 EUR",), 0),
        (("lamp = 450 EUR", "desk = 120 EUR"), 1),
        (("the desk for 120 EUR and the lamp for 450 EUR",), 1),
    ],
)
def test_find_swapped_numbers_by_the_words_around_them(statements: tuple[str, ...], n: int) -> None:
    """The order of the facts does not matter."""
    index = index_of("I paid 120 EUR for the lamp.", "The desk cost me 450 EUR.")
    assert len(list(find_swapped(index, read_statements(facts(*statements))))) == n


def test_find_missing_a_bare_number_is_another_one() -> None:
    """95 guests are not 95 seconds, unless the clause names the unit."""
    index = index_of("The read timeout is 95 seconds.", "A read timeout of 95 s. We are 95 guests.")

    def missing(fact: str) -> list[str]:
        return [violation.item for violation in find_missing(index, read_statements(facts(fact)), [])]

    assert missing("95 guests") == ["95 seconds"]
    assert missing("read timeout (seconds) = 95") == []


def test_find_invented_unit_of_the_same_turn_counts() -> None:
    """A bare 46 of another turn does not excuse a dropped unit."""
    index = index_of("The job takes 46 days.", "There are 46 rows.")
    kept = Summary(facts=(SummaryItem("46 rows", 2),))
    assert list(find_invented(index, read_statements(kept))) == []
    dropped = Summary(facts=(SummaryItem("job takes 46", 1),))
    assert [violation.rule for violation in find_invented(index, read_statements(dropped))] == ["unit"]
