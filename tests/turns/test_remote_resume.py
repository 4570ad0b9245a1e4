"""A turn in another process: a client that reconnects here gets the rest of the answer as it is written."""

import asyncio

import pytest

from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.core.types import EventsOptions
from stayfast.testing import SimLoop, run
from stayfast.turns import Answer, TurnRequest, current_budget
from stayfast.turns.remote_resume import RemoteTurnPart, ResumeRequest
from tests.flow.rig import read
from tests.turns.served_rig import Serving, some, told


async def desk(asked: TurnRequest, a: Answer) -> None:
    """Three words a second apart, and an error after the third for those who want one."""
    for word in ("one", "two", "three"):
        a.write(word)
        await current_budget().run(asyncio.sleep, 1, name=f"after {word}")
    if asked.request_id == "broken":
        raise OSError("away")


async def apart(loop: SimLoop, request_id: str = "req_1") -> tuple[Serving, Serving]:
    """Two processes; a client of the first one is cut off after a word."""
    here = Serving(loop, desk)
    there = Serving(loop, desk, resume_remotely=here.served.find_turn)
    reply = await here.ask(events=EventsOptions(), request_id=request_id, total_s=9)
    await some(reply, 1)
    reply.close()
    return here, there


def test_remote_resume_streams_the_rest() -> None:
    """The turn runs once."""
    async def main(loop: SimLoop) -> tuple[list[tuple[int, str]], list[float], list[Serving]]:
        here, there = await apart(loop)
        reply = await there.ask(events=EventsOptions(after=1), total_s=9)
        at, parts = [loop.now()], [await some(reply, 1)]
        while (chunk := await reply.next()) is not None:
            if chunk.data:
                at.append(loop.now())
                parts.append(chunk.data)
        return [event[:2] for event in told(b"".join(parts))], at, [here, there]

    events, at, both = run(main)
    assert events == [(2, "delta"), (3, "delta"), (4, "final")]
    assert at == pytest.approx([1, 2, 3], abs=0.01)
    assert [[(row.name, row.outcome) for row in serving.attempts[0].steps] for serving in both] == [
        [("after one", "running")], [("after one", "ok"), ("after two", "ok"), ("after three", "ok")]]


def test_remote_resume_of_a_failed_turn_raises_its_failure() -> None:
    async def main(loop: SimLoop) -> tuple[UpstreamFailed, list[str]]:
        _, there = await apart(loop, "broken")
        reply = await there.ask(events=EventsOptions(after=1), request_id="broken", total_s=9)
        names = [name for _, name, _ in told(await some(reply, 3))]
        with pytest.raises(UpstreamFailed) as failed:
            await read(reply)
        return failed.value, names

    failed, names = run(main)
    assert (failed.status, failed.code, names) == (502, "upstream_raised", ["delta", "delta", "final"])
    assert "OSError" in failed.message


@pytest.mark.parametrize(("after", "request_id"), [(1, "other"), (9, "req_1")])
def test_remote_resume_of_an_unknown_turn_is_404(after: int, request_id: str) -> None:
    async def main(loop: SimLoop) -> Rejected:
        _, there = await apart(loop)
        with pytest.raises(Rejected) as refused:
            await there.ask(events=EventsOptions(after=after), request_id=request_id)
        return refused.value

    refused = run(main)
    assert (refused.status, refused.code) == (404, "turn_not_kept")


def test_remote_resume_when_the_other_process_ends_raises() -> None:
    async def main(loop: SimLoop) -> UpstreamFailed:
        here, there = await apart(loop)
        asked = 0

        async def once(sought: ResumeRequest) -> RemoteTurnPart | None:
            nonlocal asked
            asked += 1
            return await here.served.find_turn(sought) if asked < 3 else None

        there.served.resume_remotely = once
        with pytest.raises(UpstreamFailed) as failed:
            await read(await there.ask(events=EventsOptions(after=1), total_s=9))
        return failed.value

    assert run(main).code == "upstream_reset"
