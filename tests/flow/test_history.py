"""Long conversations through the real stages: summaries in place of older turns."""

import asyncio
from itertools import pairwise

import msgspec
import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.context.history import HistoryConfig
from stayfast.testing import SimLoop, run
from tests.flow.history_rig import CONFIG, HistoryRig, as_chat, chat_of, summary_in


def test_history_beyond_the_start_is_summarized_from_the_next_turn_on() -> None:
    """The request that starts the summary is sent as it is; the next one has the summary and the last turns."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        first = await rig.send(chat_of(8))
        await rig.settle()
        second = await rig.send(chat_of(9))
        assert (len(first["messages"]), summary_in(first)) == (1 + 17, "")
        assert 'covers="t1..t6"' in summary_in(second)
        assert second["messages"][0] == {"role": "system", "content": "You are kind."}
        assert len(second["messages"]) < len(first["messages"])
        assert len(rig.small.bodies) == 1
        notes = " ".join(rig.done[-1].notes)
        assert "history: 6 turns as a summary of" in notes
        assert "harbour" not in notes
        assert rig.done[-1].degraded is None
    run(main)


def test_history_uses_the_same_bytes_for_the_same_beginning_until_the_next_summary() -> None:
    """The provider's prompt cache misses once for each summary, not at each turn."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        seen = []
        for n_turns in range(1, 40):
            seen.append(summary_in(await rig.send(chat_of(n_turns))))
            await rig.settle()
        changes = [n for n in range(1, len(seen)) if seen[n] != seen[n - 1]]
        assert 2 <= len(changes) <= 39 / 2
        assert all(later - earlier >= 2 for earlier, later in pairwise(changes))
    run(main)


def test_history_before_a_summary_exists_waits_for_nothing() -> None:
    """A small model that hangs, fails or is not there costs no request anything."""
    async def main(loop: SimLoop) -> None:
        for delay_s, error in ((1e6, None), (0.1, UpstreamFailed("tiny", Fault.RESET, "broken"))):
            rig = HistoryRig(loop)
            rig.small.delay_s, rig.small.error = delay_s, error
            for n_turns in range(6, 30):
                began_at = loop.now()
                sent = await rig.send(chat_of(n_turns))
                assert loop.now() - began_at < 0.11
                assert summary_in(sent) == ""
                await rig.settle(10.0)
            assert rig.done[-1].degraded == "trimmed"
            assert len(rig.large.raw[-1]) < len(chat_of(29).body) * 0.5
            assert len(rig.small.bodies) < 12  # retries of the route included
    run(main)


def test_history_beyond_the_allowance_is_trimmed_in_steps_and_marked() -> None:
    """Mode trim: no model is called."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, HistoryConfig("trim", allowance_tokens=1000))
        sizes = [len((await rig.send(chat_of(n)))["messages"]) for n in range(4, 24)]
        assert max(sizes) < 1 + 2 * 14
        assert rig.small.bodies == []
        marked = [fact.degraded for fact in rig.done]
        assert (marked[0], marked[-1]) == (None, "trimmed")
        assert "turns left out" in " ".join(rig.done[-1].notes)
    run(main)


def test_history_of_a_cancelled_client_is_summarized_all_the_same() -> None:
    """The summary belongs to the conversation, not to the request."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        rig.large.delay_s, rig.small.delay_s = 30.0, 2.0
        task = asyncio.ensure_future(rig.send(chat_of(8)))
        await asyncio.sleep(1.0)
        task.cancel()
        await rig.settle()
        rig.large.delay_s = 0.1
        assert summary_in(await rig.send(chat_of(9))) != ""
    run(main)


def test_history_of_concurrent_requests_is_summarized_once() -> None:
    """Twenty equal requests, one summary."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await asyncio.gather(*(rig.send(chat_of(8)) for _ in range(20)))
        await rig.settle()
        assert len(rig.small.bodies) == 1
    run(main)


def test_history_makes_no_more_summaries_at_a_time_than_allowed() -> None:
    """Further conversations are sent as they are, and tried at a later turn."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        rig.small.delay_s = 5.0
        await asyncio.gather(*(rig.send(chat_of(8, first=f"hello from {chr(97 + n) * 5}")) for n in range(20)))
        assert len(rig.small.bodies) == CONFIG.max_running
    run(main)


def test_history_with_an_invented_number_is_never_adopted() -> None:
    """One re-try names the rule; then turns are left out instead."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, summarize=lambda prompt: "NARRATIVE: The invoice of 99,381 EUR went to Voldemort Holdings.")
        for n_turns in range(7, 20):
            assert summary_in(await rig.send(chat_of(n_turns))) == ""
            await rig.settle()
        assert "Your last summary was rejected" in rig.small.bodies[1]["messages"][-1]["content"]
        assert rig.done[-1].degraded == "trimmed"
        assert "99,381" not in str(rig.large.bodies)
        assert "Voldemort" not in str([fact.notes for fact in rig.done])
    run(main)


def test_history_of_another_tenant_is_not_found() -> None:
    """Equal conversations of two tenants have a summary each."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8), "acme")
        await rig.settle()
        assert summary_in(await rig.send(chat_of(9), "beta")) == ""
        await rig.settle()
        assert summary_in(await rig.send(chat_of(9), "acme")) != ""
        assert len(rig.small.bodies) == 2
    run(main)


def test_history_with_an_edited_turn_has_no_stale_summary() -> None:
    """Neither an edit of the first turn nor of a later one inside the summary finds it; the original still does."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8))
        await rig.settle()
        assert summary_in(await rig.send(chat_of(8, first="something else"))) == ""
        assert summary_in(await rig.send(chat_of(9))) != ""
    run(main)


def test_history_of_two_continuations_shares_the_summary_of_the_beginning() -> None:
    """Branches differ after the covered turns only."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8))
        await rig.settle()
        one = summary_in(await rig.send(chat_of(9, question="what of the boats")))
        other = summary_in(await rig.send(chat_of(9, question="what of the nets")))
        assert one == other != ""
    run(main)


@pytest.mark.parametrize("model", ["m", "small"])
def test_history_of_a_short_conversation_is_not_touched(model: str) -> None:
    """Byte for byte; so is any on a route without a history."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        request = chat_of(2 if model == "m" else 40, model=model)
        await rig.gateway.serve(request, Arrival("req_1", loop.now()))
        upstream = rig.large if model == "m" else rig.small
        assert upstream.raw == [request.body]
    run(main)


def test_history_with_an_image_counts_the_texts_around_it_as_texts() -> None:
    """A megabyte of base64 is 1,600 tokens: it does not make the turns after it free."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, HistoryConfig("trim", allowance_tokens=2500))
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 90_000}}
        chat = msgspec.json.decode(chat_of(60).body)["messages"]
        chat[1]["content"] = [{"type": "text", "text": "what is this"}, image]
        sent = (await rig.send(as_chat(chat)))["messages"]
        assert len(str(sent)) < 20_000
        assert len(sent) > 10
    run(main)
