"""Typed events of turns that are served: as they come, late patches, and coming back after a cut."""

import asyncio

import msgspec
import pytest

from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.core.types import Api, EventsOptions, Outcome
from stayfast.testing import SimLoop, run
from stayfast.turns import Answer, TurnRequest, budget, current_budget, served, step
from stayfast.wire.request_body import decode
from tests.flow.rig import chat, read, text_of
from tests.turns.served_rig import Serving, breaks, quiet, some, three, told

TYPED, LATE = EventsOptions(), EventsOptions(late=True)


async def late(asked: TurnRequest, a: Answer) -> None:
    """An answer after a tenth of a second, and what comes after it."""
    async with budget(0.5) as b:
        found = await b.gather(quick=asyncio.sleep(0.05, "q"), slow=step(asyncio.sleep, 1.0, "s", cap=5), by=0.1,
                               late=asked.late)
        for name, straggler in found.late.items():
            a.put_later(name, straggler)
        a.write(found.done["quick"])


def test_typed_events_up_to_the_final_one() -> None:
    async def main(loop: SimLoop) -> bytes:
        serving = Serving(loop, three)
        return await read(await serving.ask(events=TYPED))

    events = told(run(main))
    assert [event[:2] for event in events] == [
        (1, "prefix"), (2, "progress"), (3, "delta"), (4, "progress"), (5, "delta"), (6, "final")]
    assert events[-1][2] == {"outcome": "ok"}


def test_late_patches_follow_the_final_event_on_request() -> None:
    async def main(loop: SimLoop, wish: EventsOptions) -> tuple[list[str], float, float]:
        serving = Serving(loop, late, resume_s=0.0)
        events = told(await read(await serving.ask(events=wish)))
        at = loop.now()
        await quiet()
        assert serving.served.n_running == 0
        return [name for _, name, _ in events], at, loop.now()

    names, at, _ = run(lambda loop: main(loop, LATE))
    assert names == ["patch", "delta", "final", "patch"]
    assert at == pytest.approx(1.0, abs=0.01)
    names, at, _ = run(lambda loop: main(loop, TYPED))
    assert names == ["patch", "delta", "final"]
    assert at == pytest.approx(0.1, abs=0.01)


def test_plain_client_gets_text_only() -> None:
    async def main(loop: SimLoop) -> tuple[bytes, float]:
        body = await read(await Serving(loop, late).ask())
        return body, loop.now()

    body, at = run(main)
    assert text_of(body) == "q"
    assert b"event:" not in body
    assert b"patch" not in body
    assert at == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("events", [TYPED, LATE])
def test_typed_events_of_a_failing_turn_end_with_final_and_error(events: EventsOptions) -> None:
    """Before any event it is a plain error."""
    async def main(loop: SimLoop) -> tuple[list[str], str]:
        serving = Serving(loop, breaks)
        with pytest.raises(UpstreamFailed):
            await serving.ask(events=events)
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "midway"}]}
        reply = await serving.ask(decode(Api.CHAT, msgspec.json.encode(body)), events=events, request_id="req_2")
        names = told(await some(reply, 2))
        with pytest.raises(UpstreamFailed) as failed:
            await read(reply)
        return [f"{name} {data.get('outcome', '')}" for _, name, data in names], failed.value.code

    assert run(main) == (["delta ", "final failed"], "upstream_raised")


def test_typed_events_need_a_stream() -> None:
    """Whoever asks for a whole answer is told so."""
    async def main(loop: SimLoop) -> Rejected:
        with pytest.raises(Rejected) as refused:
            await Serving(loop, three).ask(chat(stream=False), events=TYPED)
        return refused.value

    assert run(main).param == "stream"


def test_resume_gets_the_missed_events_once() -> None:
    """Also after the end."""
    n_runs: list[int] = []

    async def desk(asked: TurnRequest, a: Answer) -> None:
        n_runs.append(1)
        await three(asked, a)

    async def main(loop: SimLoop) -> tuple[list[int], list[int], Serving]:
        serving = Serving(loop, desk)
        reply = await serving.ask(events=TYPED)
        assert [event[0] for event in told(await some(reply, 2))] == [1, 2]
        reply.close()
        await asyncio.sleep(0.15)
        first = told(await read(await serving.ask(events=EventsOptions(after=2))))
        second = told(await read(await serving.ask(events=EventsOptions(after=4))))
        return [event[0] for event in first], [event[0] for event in second], serving

    first, second, serving = run(main)
    assert (first, second) == ([3, 4, 5, 6], [5, 6])
    assert n_runs == [1]
    assert [attempt.outcome for attempt in serving.attempts] == [Outcome.IGNORED, Outcome.SUCCESS, Outcome.SUCCESS]


def test_turn_without_readers_is_cancelled_after_resume_s() -> None:
    """Other tenants never find it."""
    async def desk(asked: TurnRequest, a: Answer) -> None:
        a.write_prefix("Let me see. ")
        await asyncio.sleep(99)

    async def main(loop: SimLoop) -> None:
        serving = Serving(loop, desk, resume_s=5.0)
        reply = await serving.ask(events=TYPED, tenant="acme", total_s=60)
        await some(reply, 1)
        reply.close()
        await asyncio.sleep(4.9)
        assert (serving.served.n_running, len(serving.served.resumable)) == (1, 1)
        for tenant, request_id in (("other", "req_1"), ("acme", "req_2"), (None, "req_1")):
            with pytest.raises(Rejected) as refused:
                await serving.ask(events=EventsOptions(after=1), tenant=tenant, request_id=request_id)
            assert (refused.value.status, refused.value.code) == (404, "turn_not_kept")
        with pytest.raises(Rejected) as refused:
            await serving.ask(events=EventsOptions(after=7), tenant="acme")
        assert (refused.value.status, refused.value.param) == (400, "last-event-id")
        await asyncio.sleep(0.2)
        assert (serving.served.n_running, len(serving.served.resumable)) == (0, 0)

    run(main)


def test_resumed_turn_reports_each_step_once() -> None:
    async def desk(asked: TurnRequest, a: Answer) -> None:
        a.write_prefix("Let me see. ")
        for name in ("first", "second", "third"):
            await current_budget().run(asyncio.sleep, 0.2, name=name)
        a.write("Done.")

    async def main(loop: SimLoop) -> list[list[tuple[str, str]]]:
        serving = Serving(loop, desk)
        reply = await serving.ask(events=TYPED)
        await some(reply, 1)
        await asyncio.sleep(0.3)
        reply.close()
        await read(await serving.ask(events=EventsOptions(after=1)))
        return [[(row.name, row.outcome) for row in attempt.steps] for attempt in serving.attempts]

    assert run(main) == [[("first", "ok"), ("second", "running")], [("second", "ok"), ("third", "ok")]]


def test_resumable_turns_above_the_text_limit_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MAX_TURN_CHARS", 150)

    async def desk(asked: TurnRequest) -> str:
        return "x" * 60

    async def main(loop: SimLoop) -> list[int]:
        serving = Serving(loop, desk)
        for n in range(5):
            await read(await serving.ask(events=TYPED, request_id=str(n)))
        await quiet()
        found = []
        for n in range(5):
            try:
                await read(await serving.ask(events=EventsOptions(after=1), request_id=str(n)))
            except Rejected:
                continue
            found.append(n)
        await asyncio.sleep(20)
        assert (len(serving.served.resumable), serving.served.resumable.n_chars) == (0, 0)
        return found

    assert run(main) == [3, 4]


def test_resumable_turns_above_the_count_limit_drop_the_oldest() -> None:
    async def desk(asked: TurnRequest, a: Answer) -> None:
        a.write_prefix("Let me see. ")
        await asyncio.sleep(99)

    async def main(loop: SimLoop) -> tuple[int, int]:
        serving = Serving(loop, desk, resume_s=50.0)
        for request_id in ["same", "same", *[str(n) for n in range(1000)]]:
            reply = await serving.ask(events=TYPED, request_id=request_id, total_s=60)
            reply.close()
        await quiet()
        return len(serving.served.resumable), serving.served.n_running

    assert run(main) == (1000, 1000)
