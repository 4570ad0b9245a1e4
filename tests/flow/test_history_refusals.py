"""What a small model is given, and what becomes of the turns around one that it cannot summarize."""

from stayfast.testing import SimLoop, run
from tests.flow.history_rig import HistoryRig, as_chat, chat_of, letters, say, summary_in

SHORT = "NARRATIVE: " + "All of it is about the harbour and the weather at sea. " * 3
BAD_TURN = 4


def summarize_all_but_one(prompt: str) -> str:
    """It invents an amount where one turn is among them."""
    return "NARRATIVE: It costs 9,990 EUR." if letters(BAD_TURN) in prompt else SHORT


def test_history_turns_before_a_refused_one_are_summarized() -> None:
    """The refused part is made again in halves; the turn itself, and what follows, stays as it is."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, summarize=summarize_all_but_one)
        await rig.send(chat_of(8))
        await rig.settle()
        assert f'covers="t1..t{BAD_TURN}"' in summary_in(await rig.send(chat_of(9)))
        assert len(rig.small.bodies) <= 10
    run(main)


def test_history_prompt_lists_what_the_summary_must_have() -> None:
    """An id that two messages name."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        messages = [each for n in range(8) for each in say(n, "Where is order 88120-X?" if n in (1, 2) else "")]
        await rig.send(as_chat([*messages, {"role": "user", "content": "Go on, please."}]))
        await rig.settle()
        assert "These must be in the summary:\n- 88120-X" in str(rig.small.bodies[0]["messages"][-1]["content"])
    run(main)
