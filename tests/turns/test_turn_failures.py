"""Values that an answer rejects at the call that writes them, so that no reader fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stayfast.turns.answer import Answer
from stayfast.turns.events import DeltaEvent, FinalEvent
from tests.turns.rig import read_all


@pytest.mark.parametrize(("write", "kind", "says"), [
    (lambda a: a.write(b"x"), TypeError, r"a\.write: its text must be text, not bytes"),
    (lambda a: a.write(None), TypeError, "not NoneType"),
    (lambda a: a.write_prefix([]), TypeError, r"a\.write_prefix: .* not list"),
    (lambda a: a.report_progress("kb", object()), TypeError, r"a\.report_progress: its status must be text"),
    (lambda a: a.cite(7), TypeError, r"a\.cite: its source must be text"),
    (lambda a: a.cite("kb", "0"), ValueError, "start='0', end=None: character offsets of the text"),
    (lambda a: a.cite("kb", 5, 2), ValueError, "start is not after end"),
    (lambda a: a.mark_degraded("kb", None), TypeError, r"a\.mark_degraded: its reason must be text"),
    (lambda a: a.put(5, 1), TypeError, r"a\.put: its name must be text"),
    (lambda a: a.put("x", deep(101)), ValueError, "nested more than 100 deep"),
    (lambda a: a.put("x", deep(5000)), ValueError, "cannot be encoded as JSON|nested more than 100 deep"),
    (lambda a: a.put_later("x", None), TypeError, r"None is not a late step: write a\.put_later\('x', found\.late")])
def test_answer_write_of_a_wrong_type_raises(write: Callable[[Any], None], kind: type[Exception],
                                                            says: str) -> None:
    """Nothing is written; later writes work."""
    async def main() -> None:
        async with Answer() as a:
            with pytest.raises(kind, match=says):
                write(a)
            a.write("x")
        assert [event.payload for event in await read_all(a)] == [DeltaEvent("x"), FinalEvent("ok")]
        assert a.state == {}

    asyncio.run(main())


def deep(n: int) -> Any:
    """So many lists in one another."""
    value: Any = 1
    for _ in range(n):
        value = [value]
    return value


def test_answer_lone_surrogates_are_replaced() -> None:
    async def main() -> None:
        async with Answer() as a:
            a.report_progress("kb\ud83d", "\ud83d")
            a.cite("\ud83d")
            a.mark_degraded("\ud83d", "\ud83d")
            a.put("\ud83d", 1)
            a.put("deep", deep(100))
            a.put("deep", [deep(99), 1])
        assert b"".join([event.sse() for event in await read_all(a)]).count(b"?") == 6 + 1  # `missing` names the part
        assert a.state["?"] == 1

    asyncio.run(main())
