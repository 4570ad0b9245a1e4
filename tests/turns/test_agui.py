"""AG-UI's view of a turn: their words, in an order that their clients take."""

import asyncio
from contextlib import suppress
from typing import Any

from stayfast.testing import SimLoop, run
from stayfast.turns import budget, step
from stayfast.turns.agui import AgUiEncoder
from stayfast.turns.answer import Answer
from stayfast.turns.patch import apply_patch
from tests.turns.rig import takes


async def said(a: Answer, after: int = 0) -> list[dict[str, Any]]:
    """All that one client is sent."""
    run_of = AgUiEncoder("thread", "run")
    sent = run_of.start()
    async for event in a.read(after, late=True):
        sent += run_of.encode(event)
    return [*sent, *run_of.finish()]


def checked(sent: list[dict[str, Any]]) -> tuple[str, Any]:
    """Text and state as such a client would have them; it refuses what is out of order."""
    state: Any = None
    texts: dict[str, str] = {}
    is_open = None
    assert sent[0]["type"] == "RUN_STARTED"
    assert sent[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    for one in sent[1:-1]:
        match one["type"]:
            case "TEXT_MESSAGE_START":
                assert is_open is None
                is_open = one["messageId"]
                assert is_open not in texts
                texts[is_open] = ""
            case "TEXT_MESSAGE_CONTENT":
                assert one["messageId"] == is_open
                assert one["delta"]
                texts[one["messageId"]] += one["delta"]
            case "TEXT_MESSAGE_END":
                assert one["messageId"] == is_open
                is_open = None
            case "MESSAGES_SNAPSHOT":
                assert is_open is None
                texts = {message["id"]: message["content"] for message in one["messages"]}
            case "STATE_SNAPSHOT":
                state = one["snapshot"]
            case "STATE_DELTA":
                state = apply_patch(state, one["delta"])
            case kind:
                assert kind == "CUSTOM"
    assert is_open is None
    return "".join(texts.values()), state


def test_agui_run_finishes_after_the_late_patch() -> None:
    """Its text and state are the turn's."""
    async def main(_: SimLoop) -> None:
        a = Answer()
        async with budget(10) as afterwards:
            async with budget(1) as b, a:
                a.write_prefix("Let me see. ")
                a.report_progress("weather", "searching")
                found = await b.gather(by=0.5, late=afterwards, weather=step(takes, 3.0, "rain"))
                a.put_later("weather", found.late["weather"])
                a.mark_degraded("weather", "late")
                a.cite("page 3", 0, 4)
                a.write("It is open.")
            sent = await said(a)
        text, state = checked(sent)
        assert text == a.text
        assert state == a.state
        assert state["weather"]["value"] == "rain"
        customs = [one["name"] for one in sent if one["type"] == "CUSTOM"]
        assert customs == ["stayfast.progress", "stayfast.degraded", "stayfast.citation", "stayfast.final"]

    run(main)


def test_agui_snapshot_for_a_late_reader_and_error_for_a_failed_turn() -> None:
    """No event follows the error."""
    async def main() -> None:
        a = Answer(2)
        with suppress(LookupError):
            async with a:
                for text in "abcd":
                    a.write(text)
                    a.put("n", text)
                raise LookupError("a secret")
        sent = await said(a)
        assert checked(sent) == ("abcd", {"n": "d"})
        assert sent[-1] == {"type": "RUN_ERROR", "message": "The turn failed.", "code": "LookupError"}

    asyncio.run(main())
