"""Clauses, and the numbers, ids and names in them."""

from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.context.summary_clauses import Clause, split_clauses


def one(text: str) -> Clause:
    """The only clause of a text."""
    [clause] = split_clauses(text)
    return clause


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Order 8812-X at /srv/app/conf.yaml", [("id", "8812-X"), ("id", "/srv/app/conf.yaml")]),
        (
            "see https://x.example/a?b=1, or mail a.b@x.example.",
            [("id", "https://x.example/a?b=1"), ("id", "a.b@x.example")],
        ),
        ("call run_tests or loadFile in main.py", [("id", "run_tests"), ("id", "loadFile"), ("id", "main.py")]),
        ("with 3.11.4 of it, #1234, PAY-77", [("id", "3.11.4"), ("id", "#1234"), ("id", "PAY-77")]),
        ("it took 30s and 512MB, 10k rows", [("number", "30s"), ("number", "512MB"), ("number", "10k")]),
        ("cost $1.5M or 1,200 EUR, not 40 %", [("number", "$1.5M"), ("number", "1,200 EUR"), ("number", "40 %")]),
        ("on 24 Nov 2026 at 14:30", [("date", "24 Nov 2026"), ("number", "14:30")]),
        ("we met Anna Schmidt and Bob", [("name", "Anna Schmidt"), ("name", "Bob")]),
        ("it has 45 racks and -5 °C", [("number", "45"), ("number", "-5 °C")]),
    ],
)
def test_split_clauses_finds_numbers_ids_and_names(text: str, expected: list[tuple[str, str]]) -> None:
    """Each with its unit, and nothing of the words around it."""
    assert [(atom.kind, atom.text) for clause in split_clauses(text) for atom in clause.atoms] == expected


def test_split_clauses_a_range_shares_its_unit() -> None:
    """10 to 20 ms are 10 ms and 20 ms."""
    assert [atom.quantity and atom.quantity.dimension for atom in one("takes 10 to 20 ms").atoms] == ["time", "time"]


def test_split_clauses_words_around_a_number_are_weighted_by_nearness() -> None:
    """A comma separates two things more than a word does."""
    first, second = one("spend 1,200 EUR for travel, 300 EUR for food").arounds
    assert first["trave"] > first["food"]
    assert second["food"] > second["trave"]


def test_split_clauses_at_contrast_and_at_the_end_of_sentences() -> None:
    """A negation holds for its clause; a decimal point ends nothing."""
    found = list(split_clauses("- Never deploy on Friday, but test it. It costs 1.5 EUR; is that fine?"))
    assert [clause.n_negations for clause in found] == [1, 0, 0, 0]
    assert [clause.is_question for clause in found] == [False, False, False, True]


@given(st.text(max_size=200))
def test_split_clauses_of_any_text_never_raises(text: str) -> None:
    """Any text has clauses."""
    assert all(clause.text for clause in split_clauses(text))


@pytest.mark.parametrize("unit", ["a.", "a@", "1:", "a/", "a-", "never 1 at most ", " ", "\n ", "Aa ", "1, "])
def test_split_clauses_of_a_long_sentence_takes_no_longer_per_character(unit: str) -> None:
    """A client's text blocks no other request: these took up to 36 s for 20 kB."""
    text = (unit * 20_000)[:20_000]
    began_at = thread_time()
    list(split_clauses(text))
    assert thread_time() - began_at < 2.0


def test_split_clauses_of_a_long_sentence_finds_all_numbers() -> None:
    """Also those behind the first piece."""
    text = " ".join(f"berth {number}x" for number in range(1000, 1500))
    assert len([atom for clause in split_clauses(text) for atom in clause.atoms]) == 500
