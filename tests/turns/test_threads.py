"""Plain functions in real threads."""

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from stayfast.compose.telemetry import thread_rows
from stayfast.core.clock import SystemClock
from stayfast.testing import RecordingSink
from stayfast.turns import StepSkipped, TurnRequest, budget, remaining, step, threads
from stayfast.turns.function import check_turn_function
from stayfast.turns.served import ServedTurn


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What blocks until the test is over."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threads.running_threads():
        thread.join(5)


def interrupted() -> None:
    """Ends the process, or so it thinks."""
    raise KeyboardInterrupt


def test_thread_step_knows_the_deadline_and_raises_its_own_exception(gate: threading.Event) -> None:
    def look_up(name: str) -> tuple[str, float, str]:
        return name, remaining(), threading.current_thread().name

    def fail() -> None:
        raise LookupError("no such page")

    async def main() -> None:
        async with budget(5) as b:
            name, left_s, thread = await b.run(look_up, "ann", name="crm")
            assert name == "ann"
            assert 0 < left_s <= 5
            assert thread == "stayfast-step-crm"
            with pytest.raises(LookupError, match="no such page"):
                await b.run(fail)

    asyncio.run(main())


@pytest.mark.parametrize(("call", "kind"), [
    (lambda: next(iter([])), "StopIteration"), (lambda: sys.exit(3), "SystemExit"), (interrupted, "KeyboardInterrupt")])
def test_step_raising_system_exit_or_stop_iteration_fails_only_itself(gate: threading.Event, call: Callable[[], None],
                                                                      kind: str) -> None:
    async def main() -> None:
        async def calls() -> None:
            call()

        async with budget(5) as b:
            assert await b.run(call, name="plain", fallback="none") == "none"
            with pytest.raises(RuntimeError, match=f"'plain' raised {kind}"):
                await b.run(call, name="plain")
            assert (b.step_runs[0].outcome, b.step_runs[0].detail) == ("failed", kind)
            assert b.step_runs[0].spent_s < 4
            found = await b.gather(quick=asyncio.sleep(0, "q"), asynchronous=calls, made=calls())
            assert (found.done, list(found.missing)) == ({"quick": "q"}, ["asynchronous", "made"])

    asyncio.run(main())


def test_step_cancelled_before_its_start_leaves_no_coroutine(gate: threading.Event) -> None:
    async def main() -> None:
        async with budget(5) as b:
            with pytest.raises(TypeError, match="delay"):
                await b.gather(one=step(asyncio.sleep, 60), two=asyncio.sleep(60), wrong=step(asyncio.sleep))

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert [str(one.message) for one in warned] == []


def test_thread_step_returning_an_awaitable_is_awaited(gate: threading.Event) -> None:
    async def find(question: str) -> str:
        await asyncio.sleep(0)
        return question

    async def main() -> None:
        async with budget(5) as b:
            assert await b.run(lambda: find("Why?"), name="kb") == "Why?"
            found = await b.gather(kb=lambda: find("Why?"), slow=step(lambda: asyncio.sleep(60), cap=0.02))
            assert found.done == {"kb": "Why?"}
            assert b.abandoned == []

    asyncio.run(main())


def test_thread_step_that_hangs_is_abandoned(gate: threading.Event) -> None:
    async def main() -> None:
        async with budget(5) as b:
            assert await b.run(gate.wait, name="stuck", cap=0.05, fallback="gone") == "gone"
        assert b.abandoned == ["stuck"]

    asyncio.run(main())
    assert [(thread.step, thread.is_abandoned, thread.daemon) for thread in threads.running_threads()] == [("stuck", True,
                                                                                                            True)]
    gate.set()
    for thread in threads.running_threads():
        thread.join(5)
    assert threads.running_threads() == []


def test_threads_above_the_limit_skip_the_step(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_THREADS", 2)

    async def main() -> None:
        async with budget(5) as b:
            for name in ("crm", "erp"):
                await b.run(gate.wait, name=name, cap=0.02, fallback=None)
            with pytest.raises(StepSkipped, match="2 threads are busy, 2 of them abandoned, in steps crm, erp"):
                await b.run(gate.wait, name="more")

    asyncio.run(main())


def test_threads_metric_counts_waiting_and_abandoned(gate: threading.Event) -> None:
    async def desk(asked: TurnRequest) -> str:
        return asked.text

    assert thread_rows({}) == {}
    served = {"desk": ServedTurn("desk", check_turn_function("desk:answer", desk), SystemClock(), RecordingSink())}

    async def main() -> None:
        async with budget(5) as b:
            await b.run(gate.wait, name="hangs", cap=0.02, fallback=None)

            def look() -> object:
                return thread_rows(served)

            assert await b.run(look) == {"stayfast_turn_threads": [(("active",), 1), (("abandoned",), 1)]}

    asyncio.run(main())
