"""Deletion of summaries, their stores, and reloads."""

import asyncio
from random import Random

import msgspec

from stayfast.compose.context import history_steps
from stayfast.compose.system import build
from stayfast.policy.context.history import HistoryConfig
from stayfast.settings.upstreams import MemoryStoreSettings
from stayfast.testing import SimLoop, run
from tests.flow.history_rig import CONFIG, HistoryRig, chat_of, summary_in


def test_delete_conversation_by_session_deletes_its_summaries_only() -> None:
    """Another session's stays; a second deletion finds nothing."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        for name in ("s-1", "s-2"):
            await rig.send(chat_of(8, first=f"hello from {name[-1] * 3}"), "acme", name)
        await rig.settle()
        together = rig.system.together
        assert await together.delete_conversation("s-1", "beta") is None
        assert await together.delete_conversation("s-1", "acme") == b'{"deleted":1,"gone":[],"unconfirmed":[]}'
        assert await together.delete_conversation("s-1", None) is None
        assert summary_in(await rig.send(chat_of(9, first="hello from 222"), "acme", "s-2")) != ""
        assert summary_in(await rig.send(chat_of(9, first="hello from 111"), "acme", "s-1")) == ""
    run(main)


def test_delete_conversation_by_the_id_in_the_notes_needs_no_session() -> None:
    """The id that `explain` shows."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8))
        await rig.settle()
        await rig.send(chat_of(9))
        name = rig.done[-1].notes[-1].rpartition("conversation ")[2].rstrip(")")
        assert len(name) == 32
        assert await rig.system.together.delete_conversation(name, None) is not None
        assert summary_in(await rig.send(chat_of(9))) == ""
    run(main)


def test_delete_conversation_discards_a_summary_in_the_making() -> None:
    """It is not stored when the model answers."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        rig.small.delay_s = 3.0
        await rig.send(chat_of(8), None, "s-1")
        assert await rig.system.together.delete_conversation("s-1", None) is not None
        await rig.settle(10.0)
        listed = msgspec.json.decode(await rig.system.together.histories())["data"][0]
        assert listed["summaries"] == {"deleted": 1}
        assert listed["summaries_in_memory"] == 0
    run(main)


def test_delete_conversation_discards_pinned_clauses_in_memory() -> None:
    """They are words of users, which outlived the conversation."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop, HistoryConfig("trim", allowance_tokens=1000))
        await rig.send(chat_of(14, first="Never deploy on a Friday evening."), "acme", "s-1")
        [(_, step)] = history_steps(rig.gateway.router.routes)
        assert len(step.state.pins) == 1
        await rig.system.together.delete_conversation("s-1", "acme")
        assert len(step.state.pins) == 0
    run(main)


def test_histories_count_and_show_no_text() -> None:
    """`GET /admin/conversations` and metrics."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8))
        await rig.settle()
        await rig.send(chat_of(9))
        listed = await rig.system.together.histories()
        metrics = (await rig.system.together.metrics()).decode()
        data = msgspec.json.decode(listed)["data"]
        assert [(each["route"], each["summaries"]) for each in data] == [("m", {"adopted": 1})]
        assert data[0]["summaries_in_memory"] == 1
        assert 'stayfast_history_requests_total{route="m",result="summarized"} 1' in metrics
        assert 'stayfast_history_summaries_total{route="m",result="adopted"} 1' in metrics
        assert "harbour" not in metrics + listed.decode()
    run(main)


def test_history_after_a_reload_is_still_known() -> None:
    """With equal memory; also if another setting of the history changed."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8))
        await rig.settle()
        rig.system = build(rig.settings, rig.observers, {}, loop, Random(2), old=rig.system)
        rig.gateway = rig.system.gateway
        assert summary_in(await rig.send(chat_of(9))) != ""
    run(main)


def test_history_in_a_named_store_is_shared_and_survives_its_loss() -> None:
    """A store that is emptied, as by an outage, is an empty one: raw turns, and a new summary."""
    async def main(loop: SimLoop) -> None:
        history = HistoryConfig("summarize", allowance_tokens=1000, by="small", store="s")
        rig = HistoryRig(loop, history, stores={"s": MemoryStoreSettings(max_bytes=1_000_000)})
        await rig.send(chat_of(8))
        await rig.settle()
        assert summary_in(await rig.send(chat_of(9))) != ""
        await rig.system.stores["s"].purge()
        assert summary_in(await rig.send(chat_of(9))) == ""
        await rig.settle()
        assert summary_in(await rig.send(chat_of(10))) != ""
    run(main)


def test_history_expires() -> None:
    """After `ttl_s` the turns are raw again."""
    async def main(loop: SimLoop) -> None:
        rig = HistoryRig(loop)
        await rig.send(chat_of(8))
        await asyncio.sleep(CONFIG.ttl_s + 10)
        assert summary_in(await rig.send(chat_of(9))) == ""
    run(main)
