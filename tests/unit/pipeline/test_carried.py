"""A call that is awaited so that it can be left, and gone on with by somebody else."""

import asyncio
import gc
from typing import Any

import pytest

from stayfast.pipeline.carried import Step, carry, go_on

N_TOLD = 50


class Listeners:
    """A carrier whose call is wanted by others, or not; what it takes goes on in a task of its own."""

    def __init__(self, *, are_there: bool) -> None:
        self.are_there = are_there
        self.went_on: asyncio.Task[Any] | None = None

    def is_wanted(self) -> bool:
        """See `Carrier`."""
        return self.are_there

    def take(self, call: Step, waits_for: Any) -> None:
        """See `Carrier`."""
        self.went_on = asyncio.ensure_future(go_on(call, waits_for))


async def turns(told: list[str]) -> str:
    """Waits for nothing but turns of the loop."""
    for n in range(3):
        await asyncio.sleep(0)
        told.append(str(n))
    return "done"


def test_a_turn_of_the_loop_is_a_wait_too() -> None:
    """And a call can be left there: it goes on with the next turn, and nothing runs twice."""
    async def main() -> tuple[str, str, list[str]]:
        told: list[str] = []
        first = await carry(turns([]), Listeners(are_there=True))
        listeners = Listeners(are_there=True)
        task = asyncio.ensure_future(carry(turns(told), listeners))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert listeners.went_on is not None
        return first, await listeners.went_on, told

    assert asyncio.run(main()) == ("done", "done", ["0", "1", "2"])


async def stubborn(told: list[str], gate: "asyncio.Future[str]") -> str:
    """Is told of its first cancellation, and waits again."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        told.append("cancelled")
    return await gate


def test_the_reason_of_a_cancellation_arrives() -> None:
    """Whoever cancels a Task that leaves its call to others says why, and who awaited the call hears it."""
    async def main() -> None:
        listeners = Listeners(are_there=True)
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def waits() -> str:
            return await gate

        task = asyncio.ensure_future(carry(waits(), listeners))
        await asyncio.sleep(0)
        task.cancel("a drain")
        with pytest.raises(asyncio.CancelledError, match="a drain"):
            await task
        gate.set_result("done")
        assert listeners.went_on is not None
        assert await listeners.went_on == "done"

    asyncio.run(main())


def test_what_nobody_else_wants_is_told() -> None:
    """It may wait again, and from then on it can still be left."""
    async def main() -> tuple[list[str], str]:
        told: list[str] = []
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        listeners = Listeners(are_there=False)
        task = asyncio.ensure_future(carry(stubborn(told, gate), listeners))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        listeners.are_there = True
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not gate.cancelled()
        gate.set_result("late")
        assert listeners.went_on is not None
        return told, await listeners.went_on

    assert asyncio.run(main()) == (["cancelled"], "late")


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_turn_after_a_wait_that_failed_is_another_wait(is_cancelled: bool) -> None:
    """A call that is left there goes on with the turn, and hears nothing of the old wait a second time."""
    async def call(told: list[str], waits_for: "asyncio.Future[None]") -> str:
        try:
            await waits_for
        except (OSError, asyncio.CancelledError) as why:
            told.append(type(why).__name__)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    async def main() -> tuple[list[str], str]:
        told: list[str] = []
        waits_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        listeners = Listeners(are_there=True)
        task = asyncio.ensure_future(carry(call(told, waits_for), listeners))
        await asyncio.sleep(0)
        if is_cancelled:
            waits_for.cancel()
        else:
            waits_for.set_exception(OSError())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert listeners.went_on is not None
        return told, await listeners.went_on

    assert asyncio.run(main()) == (["CancelledError" if is_cancelled else "OSError"], "done")


def test_what_was_told_is_not_kept() -> None:
    """An error and the frames that it went through are a cycle, for as long as one of them knows it."""
    def fails() -> "asyncio.Future[None]":
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failing.set_exception, OSError())
        return failing

    async def call() -> None:
        try:
            await fails()
        except OSError:
            await asyncio.sleep(0)

    async def main() -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(N_TOLD):
                await carry(call(), Listeners(are_there=True))
            return gc.collect()
        finally:
            gc.enable()

    assert asyncio.run(main()) < N_TOLD


@pytest.mark.parametrize("is_told_before", [False, True])
def test_who_closes_it_closes_the_call(is_told_before: bool) -> None:
    """In its first wait, and in one after it was told of something."""
    ended: list[str] = []

    class Wait:
        _asyncio_future_blocking = False

        def __await__(self) -> Any:
            yield self

        def cancelled(self) -> bool:
            return False

    async def call() -> None:
        try:
            try:
                await Wait()
            except ValueError:
                await Wait()
        finally:
            ended.append("closed")

    held = call()  # which else would be closed with its last reference
    carried = carry(held, Listeners(are_there=False))
    carried.send(None)
    if is_told_before:
        carried.throw(ValueError())
    carried.close()
    assert ended == ["closed"]


def test_its_own_error_is_its_own() -> None:
    """A cancellation that the call raises by itself is no reason to go on with it, whoever listens."""
    async def call() -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def main() -> None:
        listeners = Listeners(are_there=True)
        with pytest.raises(asyncio.CancelledError):
            await carry(call(), listeners)
        assert listeners.went_on is None

    asyncio.run(main())
