"""The source as clauses that share words, and what its tool calls did."""

from stayfast.core.context import Summary, SummaryItem, TurnText
from stayfast.policy.context.summary_clauses import split_clauses
from stayfast.policy.context.summary_index import SourceIndex, is_call, read_statements

SOURCE = [
    TurnText("user", "Book the blue room. Book the green boat.", 1),
    TurnText("assistant", 'book_room({"room": "blue"})', 1),
    TurnText("assistant", 'book_boat({"boat": "green"})', 1),
    TurnText("tool", "Booked.", 1, is_tool_result=True),
    TurnText("tool", "Error: storm", 1, is_tool_result=True, is_error=True),
]


def test_index_events_are_calls_with_their_results() -> None:
    """Parallel calls are matched by order; a result shows the state."""
    events = SourceIndex(SOURCE).events
    assert [(event.name, event.state, event.turn) for event in events] == [
        ("book_room", "done", 1),
        ("book_boat", "failed", 1),
    ]
    assert "storm" in events[1].about


def test_index_overlaps_rare_words_count_more() -> None:
    """`room` tells more than `book`, which each clause has."""
    index = SourceIndex(SOURCE)
    [clause] = split_clauses("the room was booked")
    shares = {other.text: share for share, other in index.overlaps(clause.stems)}
    assert shares["Book the blue room."] > shares["Book the green boat."]


def test_read_statements_of_each_section() -> None:
    """Items keep their turn and state."""
    summary = Summary(
        facts=(SummaryItem("a = 1", 2),), ids=("x_1",), status=(SummaryItem("run", 3, "failed"),), narrative="It ran."
    )
    assert [(one.section, one.clause.turn, one.state) for one in read_statements(summary)] == [
        ("fact", 2, ""),
        ("id", None, ""),
        ("status", 3, "failed"),
        ("narrative", None, ""),
    ]


def test_is_call_of_texts() -> None:
    """A sentence with brackets is no call."""
    assert is_call('f({"a": 1})')
    assert not is_call("We met (all of us)")
