"""The answer of a turn: what readers get, from the start, late, slow and after a cut; what comes after the end."""

import asyncio
import json
import re
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.testing import SimLoop, run
from stayfast.turns import budget, step
from stayfast.turns.answer import Answer
from stayfast.turns.budget import OutOfTime
from stayfast.turns.events import (
    AnswerEvent,
    DeltaEvent,
    FinalEvent,
    PatchEvent,
    PrefixEvent,
    SnapshotEvent,
    event_text,
    parse_last_event_id,
    to_json_value,
)
from stayfast.turns.patch import apply_patch
from stayfast.wire.sse import EventSplitter
from tests.turns.rig import fails, read_all, takes

TEXTS = st.text(max_size=4) | st.sampled_from(["\n", "\r\n", "data: x\n\n", "\u2028", "id: 9"])
WRITES = st.lists(st.one_of(
    st.tuples(st.just("write"), TEXTS), st.tuples(st.just("put"), st.sampled_from("ab"), st.integers(0, 2)),
    st.tuples(st.just("cite"), TEXTS), st.tuples(st.just("mark_degraded"), TEXTS, TEXTS),
    st.tuples(st.just("report_progress"), TEXTS, TEXTS)), max_size=30)


class Client:
    """Somebody who reads server-sent events, and holds what a page would show."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.state: dict[str, Any] = {}
        self.n_degraded = self.n_finals = 0
        self._splitter = EventSplitter()

    def read(self, data: bytes) -> None:
        """What came from the socket."""
        for block in self._splitter.feed(data):
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
            assert set(fields) == {"id", "event", "data"}
            self.ids.append(int(fields["id"]))
            self._told(fields["event"], json.loads(fields["data"]))

    def _told(self, name: str, data: dict[str, Any]) -> None:
        match name:
            case "prefix" | "delta":
                self.text += data["text"]
            case "patch":
                self.state = apply_patch(self.state, data["patch"])
            case "snapshot":
                self.text, self.state = data["text"], data["state"]
                self.n_degraded = len(data["degraded"])
            case "degraded":
                self.n_degraded += 1
            case "final":
                self.n_finals += 1


async def written(writes: list[Any], n_kept: int) -> Answer:
    """An answer of these calls."""
    async with Answer(n_kept) as a:
        for name, *arguments in writes:
            getattr(a, name)(*arguments)
    return a


@given(WRITES, st.integers(1, 12), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 9))
def test_reader_that_reconnects_gets_the_same_text_and_state(writes: list[Any], n_kept: int, cuts: list[int],
                                                             n_bytes: int) -> None:
    """At any event and with any limit: increasing ids, one final event."""
    async def main() -> None:
        a = await written(writes, n_kept)
        client = Client()
        for n_read in [*cuts, 1000]:
            reader = a.read(parse_last_event_id(str(client.ids[-1]) if client.ids else ""))
            for _ in range(n_read):
                event = await anext(reader, None)
                if event is None:
                    break
                data = event.sse()
                for at in range(0, len(data), n_bytes):
                    client.read(data[at:at + n_bytes])
        assert client.ids == sorted(set(client.ids))
        assert (client.text, client.state, client.n_finals) == (a.text, a.state, 1)
        assert client.n_degraded == sum(name == "mark_degraded" for name, *_ in writes)
        assert len(await read_all(a)) <= n_kept + 2

    asyncio.run(main())


@given(st.text(max_size=8) | st.integers(-9, 10**18 - 1).map(str))
def test_last_event_id_of_any_text_is_parsed_or_raises_value_error(said: str) -> None:
    try:
        seen = parse_last_event_id(said)
    except ValueError:
        seen = -1
    assert seen == (int(said.strip() or 0) if re.fullmatch(r"\s*[0-9]*\s*", said) else -1)


@pytest.mark.parametrize("said", ["x", "-1", "1.0", "1" * 19, "\u0661"])
def test_last_event_id_that_is_wrong_names_the_header(said: str) -> None:
    with pytest.raises(ValueError, match="Last-Event-ID: must be the id of an event"):
        parse_last_event_id(said)


def test_reader_gets_each_event_when_it_is_written() -> None:
    """Two readers; abandoning one does not affect the other."""
    async def main(loop: SimLoop) -> None:
        came: list[tuple[float, str]] = []

        async def read(late_s: float) -> None:
            await asyncio.sleep(late_s)
            reader = a.read()
            while (event := await anext(reader, None)) is not None:
                came.append((loop.now(), event.payload.name))

        a = Answer()
        async with asyncio.TaskGroup() as readers:
            readers.create_task(read(0))
            readers.create_task(read(0.15))
            leaving = readers.create_task(read(0))
            async with a:
                a.write_prefix("Hello. ")
                await asyncio.sleep(0.1)
                leaving.cancel()
                a.write("It has ")
                a.write("")
                await asyncio.sleep(0.1)
                a.write("left.")
        assert came == [(0, "prefix"), (0, "prefix"), (0.1, "delta"), (0.15, "prefix"), (0.15, "delta"),
                        (0.2, "delta"), (0.2, "final"), (0.2, "delta"), (0.2, "final")]
        assert a.text == "Hello. It has left."
        assert "".join(map(event_text, await read_all(a))) == a.text

    run(main)


def test_put_later_result_follows_as_a_patch() -> None:
    """Only for readers with late=True."""
    async def main(loop: SimLoop) -> None:
        a = Answer()
        async with budget(10) as afterwards:
            async with budget(1) as b, a:
                found = await b.gather(by=0.5, late=afterwards, news=step(takes, 0.1, "new"),
                                       weather=step(takes, 3.0, "rain"), tide=step(fails, 2.0))
                for name, straggler in found.late.items():
                    a.put_later(name, straggler)
                a.write("It is open.")
            plain = await read_all(a)
            assert loop.now() == 0.5
            final = plain[-1].payload
            assert final == FinalEvent("ok", "", ("weather", "tide"), ("weather", "tide"))
            assert a.state == {"weather": {"status": "pending"}, "tide": {"status": "pending"}}
            reader = a.read(plain[-1].id, late=True)
            assert (await anext(reader)).payload == PatchEvent([
                {"op": "replace", "path": "/tide/status", "value": "failed"},
                {"op": "add", "path": "/tide/elapsed_ms", "value": 2000}])
            assert loop.now() == 2.0
            weather = await anext(reader)
            assert loop.now() == 3.0
            assert isinstance(weather.payload, PatchEvent)
            assert {"op": "add", "path": "/weather/value", "value": "rain"} in weather.payload.patch
            assert [event async for event in reader] == []
            assert a.is_over
            await a.wait_settled()
            assert loop.now() == 3.0
        assert await read_all(a) == plain

    run(main)


def test_wait_settled_waits_until_the_outer_budget_ends() -> None:
    async def main(loop: SimLoop) -> Any:
        async with budget(4) as afterwards:
            async with budget(1) as b, Answer() as a:
                found = await b.gather(by=0.5, late=afterwards, weather=step(takes, 100.0), tide=step(takes, 2.0, 7))
                for name, straggler in found.late.items():
                    a.put_later(name, straggler)
            await a.wait_settled()
            assert loop.now() == pytest.approx(4.0)
        return a.state

    assert run(main) == {"weather": {"status": "timeout", "elapsed_ms": 4000},
                         "tide": {"status": "ok", "value": 7, "elapsed_ms": 2000}}


def test_put_later_step_that_never_ends_gets_a_status() -> None:
    """A result that is not JSON has the status failed."""
    async def main(_: SimLoop) -> None:
        a = Answer()
        async with budget(4) as afterwards, budget(1) as b, a:
            found = await b.gather(by=0.5, late=afterwards, weather=step(takes, 100.0), odd=step(takes, 0.7))
            for name, straggler in found.late.items():
                a.put_later(name, straggler)
        events = await read_all(a, late=True)
        assert [event.payload.name for event in events] == ["patch", "patch", "final", "patch", "patch"]
        assert a.state["weather"] == {"status": "cancelled", "elapsed_ms": 500}
        assert a.state["odd"]["status"] == "cancelled"

        async with budget(4) as b, Answer() as a:
            found = await b.gather(odd=step(takes, 0.2, object()), need=0, by=0.1, late=b)
            a.put_later("odd", found.late["odd"])
            with pytest.raises(ValueError, match="'odd' is already pending"):
                a.put_later("odd", found.late["odd"])
            await asyncio.sleep(1)
            assert a.state["odd"] == {"status": "failed", "detail": "its result cannot be encoded as JSON",
                                      "elapsed_ms": 200}
            a.put_later("again", found.late["odd"])
            assert a.state["again"]["status"] == "failed"

    run(main)


@pytest.mark.parametrize(("error", "how", "detail"), [
    (ValueError("a secret"), "failed", "ValueError"), (OutOfTime(), "timeout", ""),
    (asyncio.CancelledError(), "cancelled", "")])
def test_answer_of_a_failing_block_has_one_final_event_with_the_class(error: BaseException, how: str, detail: str) -> None:
    async def main() -> None:
        a = Answer()

        async def turn() -> None:
            async with a:
                a.write("It")
                raise error

        with pytest.raises(type(error)):
            await turn()
        events = await read_all(a)
        assert [event.payload for event in events] == [DeltaEvent("It"), FinalEvent(how, detail)]
        assert b"secret" not in events[-1].sse()

    asyncio.run(main())


def test_answer_out_of_time_has_the_outcome_timeout() -> None:
    """By its budget, an outer one, or a step; a cancellation has the outcome cancelled."""
    async def ended(a: Answer, *, total: float = 9.0, inner: float = 9.0) -> None:
        async with budget(total), budget(inner), a:
            await asyncio.sleep(60)

    async def capped(a: Answer) -> None:
        async with budget(9.0) as b:
            await b.run(ended, a, cap=0.05)

    async def left(a: Answer) -> None:
        async with asyncio.timeout(0.05):
            await ended(a)

    async def main(_: SimLoop) -> list[str]:
        hows = []
        for turn in (partial(ended, total=0.05), partial(ended, inner=0.05), capped, left):
            a = Answer()
            with pytest.raises(TimeoutError):
                await turn(a)
            final = (await read_all(a))[-1].payload
            assert isinstance(final, FinalEvent)
            hows.append(final.outcome)
        return hows

    assert run(main) == ["timeout", "timeout", "timeout", "cancelled"]


def test_slow_reader_continues_from_a_snapshot() -> None:
    """The final event and late patches are never folded."""
    async def main() -> None:
        async with Answer(2) as a:
            reader = a.read()
            a.write_prefix("A")
            assert (await anext(reader)).payload == PrefixEvent("A")
            a.put("n", 1)
            for text in "bcdef":
                a.write(text)
            snapshot = await anext(reader)
            assert snapshot == AnswerEvent(5, SnapshotEvent("Abcd", {"n": 1}))
            assert [event_text(await anext(reader)) for _ in range(2)] == ["e", "f"]
        assert [event.payload for event in await read_all(a, 7)] == [FinalEvent("ok")]
        assert [event.id for event in await read_all(a)] == [5, 6, 7, 8]

    asyncio.run(main())


def test_event_text_of_a_snapshot_is_the_unsent_rest() -> None:
    async def main() -> None:
        async with Answer(2) as a:
            reader, given = a.read(), ""
            for text in ("It ", "has ", "left ", "the ", "house ", "at ", "nine."):
                a.write_prefix(text)
                a.report_progress("writing", text)
                if text in ("It ", "the "):
                    given += event_text(await anext(reader), len(given))
            async for event in reader:
                given += event_text(event, len(given))
                if given == a.text:
                    break
        assert given == "It has left the house at nine."
        late = ""
        async for event in a.read():
            late += event_text(event, len(late))
        assert late == a.text

    asyncio.run(main())


def test_answer_wrong_use_raises_with_the_correction() -> None:
    async def main() -> None:
        a = Answer()
        with pytest.raises(RuntimeError, match="async with Answer"):
            a.write("too early")
        async with a:
            with pytest.raises(ValueError, match="a object that cannot be encoded as JSON"):
                a.put("x", object())
            with pytest.raises(ValueError, match="Last-Event-ID: there is no event 7 yet"):
                a.read(7)
            a.write("half of a pair: \ud83d")
            assert a.text == "half of a pair: ?"
        for write in (a.write_prefix, a.write):
            with pytest.raises(RuntimeError, match=r"a\.put_later"):
                write("too late")
        with pytest.raises(RuntimeError, match="written once"):
            await a.__aenter__()
        with pytest.raises(ValueError, match="max_events=0"):
            Answer(0)
        assert repr(a) == "<Answer: 2 events, final, 0 pending>"

    asyncio.run(main())


def test_put_copies_the_value() -> None:
    async def main() -> None:
        mine = {"items": [1]}
        async with Answer() as a:
            a.put("cart", mine)
            mine["items"].append(2)
            a.put("cart", mine)
            a.put("cart", mine)
        assert [event.payload for event in await read_all(a)][:-1] == [
            PatchEvent([{"op": "add", "path": "/cart", "value": {"items": [1]}}]),
            PatchEvent([{"op": "add", "path": "/cart/items/1", "value": 2}])]
        assert to_json_value((1, 2)) == [1, 2]

    asyncio.run(main())
