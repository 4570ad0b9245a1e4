"""The text of a conversation's turns, and the summary that stands for older ones."""

from typing import Literal

import msgspec

State = Literal["done", "failed", "open"]


class TurnText(msgspec.Struct, frozen=True, gc=False):
    """One text of a turn. `role`: system, user, assistant or tool; the arguments of a call are text of the assistant."""

    role: str
    text: str
    turn: int = 0  # from 1 in the client's own body; 0: before the first turn
    is_tool_result: bool = False
    is_error: bool = False  # a result that reports a failure


class SummaryItem(msgspec.Struct, frozen=True, gc=False):
    """One fact, or one step with its state. `turn`: the turn it comes from, or None."""

    text: str
    turn: int | None = None
    state: State | None = None  # of items of the section STATUS


class Summary(msgspec.Struct, frozen=True, gc=False):
    """What stands for the turns `covers[0]` to `covers[1]`, both included and counted from 1.

    `pinned`: verbatim clauses, which only grow from summary to summary. `digest`: hexadecimal SHA-256 of the turns, from
    `Turns.digest_of`. `made_by`: such as `route/small@2026-11-22`.
    """

    pinned: tuple[str, ...] = ()
    facts: tuple[SummaryItem, ...] = ()
    ids: tuple[str, ...] = ()
    status: tuple[SummaryItem, ...] = ()
    narrative: str = ""
    covers: tuple[int, int] = (1, 1)
    digest: str = ""
    made_by: str = ""


class Violation(msgspec.Struct, frozen=True, gc=False):
    """A rule that a summary breaks. `item` is content of a client: it may go to the model, never to a log."""

    rule: str
    item: str
