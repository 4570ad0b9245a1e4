"""Negations, limits and states of a summary."""

import pytest

from stayfast.core.context import Summary, SummaryItem, TurnText
from stayfast.policy.context.summary_checks_claims import (
    find_denied,
    find_lost_errors,
    find_turned_limits,
    find_wrong_states,
)
from stayfast.policy.context.summary_index import SourceIndex, read_statements

RULES = SourceIndex(
    [
        TurnText("user", text, n)
        for n, text in enumerate(
            (
                "Leave the legacy module alone, don't edit it.",
                "Totals must not include refunds.",
                "The tracing flag must not be enabled.",
                "Never merge a change without review.",
                "Is the beta module fine?",
                "We use the blue database.",
                "Use at most 5 workers. At least 7 days of logs.",
            ),
            1,
        )
    ]
)


@pytest.mark.parametrize(
    ("fact", "is_denied"),
    [
        ("do not edit the legacy module", False),
        ("edit the legacy module", True),
        ("legacy module: no changes", False),
        ("totals without refunds", False),
        ("totals with refunds", True),
        ("tracing flag stays disabled", False),
        ("tracing flag is enabled", True),
        ("never merge a change without review", False),
        ("merge a change without review", True),
        ("the blue database is used", False),
        ("the blue database is not used", True),
        ("the beta module is not fine", False),
        ("elephants are grey", False),
    ],
)
def test_find_denied_by_polarity(fact: str, *, is_denied: bool) -> None:
    """Other words with the same meaning pass; a question says nothing."""
    found = list(find_denied(RULES, read_statements(Summary(facts=(SummaryItem(fact),)))))
    assert bool(found) is is_denied


@pytest.mark.parametrize(
    ("fact", "is_turned"),
    [
        ("up to 5 workers", False),
        ("no more than 5 workers", False),
        ("at least 5 workers", True),
        ("5 workers", False),
        ("at most 7 days", True),
        ("minimum of 7 days", False),
    ],
)
def test_find_turned_limits_by_the_words_before_a_number(fact: str, *, is_turned: bool) -> None:
    """An upper bound is no lower one."""
    assert bool(list(find_turned_limits(RULES, read_statements(Summary(narrative=fact))))) is is_turned


STEPS = SourceIndex(
    [
        TurnText("user", "Go.", 1),
        TurnText("assistant", 'book_room({"room": "blue"})', 1),
        TurnText("tool", "Booked.", 1, is_tool_result=True),
        TurnText("assistant", 'book_room({"room": "green"})', 1),
        TurnText("tool", "Error: taken", 1, is_tool_result=True, is_error=True),
        TurnText("assistant", "The letter was sent. The visit is still to be planned.", 1),
    ]
)


@pytest.mark.parametrize(
    ("item", "is_wrong"),
    [
        (SummaryItem("blue room", 1, "done"), False),
        (SummaryItem("blue room", 1, "failed"), True),
        (SummaryItem("green room", 1, "failed"), False),
        (SummaryItem("green room", 1, "done"), True),
        (SummaryItem("letter", None, "done"), False),
        (SummaryItem("letter", None, "failed"), True),
        (SummaryItem("plan the visit", None, "open"), False),
        (SummaryItem("plan the visit", None, "done"), True),
    ],
)
def test_find_wrong_states_of_steps(item: SummaryItem, *, is_wrong: bool) -> None:
    """Results of tools and reports of the assistant are the evidence."""
    assert bool(list(find_wrong_states(STEPS, read_statements(Summary(status=(item,)))))) is is_wrong


@pytest.mark.parametrize(
    ("narrative", "is_wrong"),
    [
        ("Booking the blue room succeeded.", False),
        ("Booking the green room succeeded.", True),
        ("The sky was confirmed.", False),
        ("The green room was reserved in the book.", True),
        ("The user wanted to book the green room.", False),
    ],
)
def test_find_wrong_states_of_the_narrative(narrative: str, *, is_wrong: bool) -> None:
    """Against the results of tools alone."""
    assert bool(list(find_wrong_states(STEPS, read_statements(Summary(narrative=narrative))))) is is_wrong


@pytest.mark.parametrize(
    ("narrative", "is_wrong"),
    [
        ("The customer was charged 25.95 EUR for the coffee machine.", False),
        ("The coffee machine was returned.", True),
        ("A return of the coffee machine was created.", True),
    ],
)
def test_find_wrong_states_of_what_a_message_reports(narrative: str, *, is_wrong: bool) -> None:
    """A tool that failed with the same thing later is another matter."""
    index = SourceIndex(
        [
            TurnText("user", "You charged me 25.95 EUR for the coffee machine.", 1),
            TurnText("assistant", 'create_return({"item": "coffee machine"})', 2),
            TurnText("tool", "Error: too late", 2, is_tool_result=True, is_error=True),
        ]
    )
    assert bool(list(find_wrong_states(index, read_statements(Summary(narrative=narrative))))) is is_wrong


@pytest.mark.parametrize(
    ("item", "n_lost"),
    [
        (SummaryItem("green room", None, "failed"), 0),
        (SummaryItem("no vacancy", 1, "failed"), 0),
        (SummaryItem("visit", 1, "open"), 1),
        (SummaryItem("green room", 1, "done"), 1),
    ],
)
def test_find_lost_errors_of_tools(item: SummaryItem, n_lost: int) -> None:
    """A failed step of the turn reports it; an open step needs its words."""
    assert len(list(find_lost_errors(STEPS, read_statements(Summary(status=(item,)))))) == n_lost
