"""When the path is run for nobody, and when not."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from stayfast.compose.twin import Twin
from stayfast.compose.warming import AT_LEAST, LONGEST_PAUSE_S, LOOK_S, Warming, waited_s
from stayfast.core.events import PathWarmed
from stayfast.server.config import ServerConfig
from stayfast.server.edge import Edge
from stayfast.testing.recording import RecordingSink
from stayfast.testing.simloop import SimLoop, run

PER_S = 100
A_LOOK = int(PER_S * LOOK_S)


class Passes:
    """Notes when it was asked; `how` is what a pass does."""

    def __init__(self, loop: SimLoop, how: Callable[[], None] = lambda: None) -> None:
        self._loop = loop
        self._how = how
        self.asked_at: list[float] = []
        self.n_made = 0

    def make(self) -> "Passes":
        """One for all."""
        self.n_made += 1
        return self

    async def ask(self) -> None:
        """A pass."""
        self.asked_at.append(self._loop.now())
        self._how()

    def n_from(self, since_s: float) -> int:
        """Passes that began at or after that time of the simulation."""
        return sum(at >= since_s for at in self.asked_at)


class Rig:
    """An edge with `rps` requests a second, what is told of it, and the clock of its process."""

    def __init__(self, loop: SimLoop, per_s: int = PER_S) -> None:
        self.loop = loop
        self.edge: Edge = Twin(loop, Random(1), self._note).edge
        self.edge.current.config = ServerConfig(keep_warm_per_s=per_s)
        self.sink = self.edge.sink = RecordingSink()
        self.errors: list[BaseException] = []
        self.waited_s = 0.0
        self.cpu_share = 0.0

    def now(self) -> float:
        """See `Clock`."""
        return self.loop.now()

    def wall(self) -> float:
        """See `Clock`."""
        return self.loop.wall()

    def cpu(self) -> float:
        """So much of a core is used all the time."""
        return self.cpu_share * self.loop.now()

    def _note(self, error: BaseException) -> None:
        self.errors.append(error)

    async def go(self, passes: Passes, rps: float, seconds: float) -> None:
        """So long."""
        warming = self.loop.create_task(Warming(self.edge, self, passes.make, lambda: self.waited_s).run())
        await self.ask(rps, seconds)
        warming.cancel()

    async def ask(self, rps: float, seconds: float) -> None:
        """Real requests, evenly."""
        for _ in range(int(seconds * (rps or 1))):
            await asyncio.sleep(1 / (rps or 1))
            self.edge.n_served += bool(rps)


def _passes(rps: float, seconds: float = 10.0, per_s: int = PER_S) -> Passes:
    async def main(loop: SimLoop) -> Passes:
        passes = Passes(loop)
        rig = Rig(loop, per_s)
        await rig.go(passes, rps, seconds)
        assert sum(told.n_passes for told in rig.sink.of(PathWarmed)) >= len(passes.asked_at) - A_LOOK
        return passes

    return run(main)


def test_passes_are_made_only_while_requests_come_and_come_rarely() -> None:
    """For a look after the start; then only while enough came in the last one, none under load, none where it is off."""
    start = len(_passes(rps=0).asked_at)
    assert A_LOOK - 2 <= start <= A_LOOK
    assert len(_passes(rps=1.9).asked_at) == start
    assert 700 <= len(_passes(rps=20).asked_at) <= 820  # of 1,000 gaps, the 200 in which a request came are warm without
    assert len(_passes(rps=1000).asked_at) <= 2
    assert _passes(rps=20, per_s=0).asked_at == []


def test_it_begins_and_ends_within_two_looks() -> None:
    """Of the first requests, and of the last."""
    async def main(loop: SimLoop) -> None:
        rig, passes = Rig(loop), Passes(loop)
        warming = loop.create_task(Warming(rig.edge, loop, passes.make, lambda: 0.0).run())
        await asyncio.sleep(10)
        begun_at = loop.now()
        assert passes.n_from(begun_at - 9) == 0
        await rig.ask(20, 1.0)
        assert passes.n_from(begun_at) > 0
        assert min(at for at in passes.asked_at if at >= begun_at) <= begun_at + 2 * LOOK_S + AT_LEAST / 20
        ended_at = loop.now()
        await asyncio.sleep(60)
        assert passes.asked_at[-1] <= ended_at + 2 * LOOK_S
        warming.cancel()

    run(main)


def test_a_core_that_others_use_is_left_alone() -> None:
    """A thread that had to wait for its core pauses, longer each time, and not at all where it no longer has to."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)

        def waits() -> None:
            rig.waited_s += 0.001

        passes = Passes(loop, waits)
        began_at = loop.now()
        await rig.go(passes, rps=20, seconds=110)
        assert len(passes.asked_at) <= 7 * A_LOOK  # one look at the start, two after each pause
        looks = [at for before, at in zip(passes.asked_at, passes.asked_at[1:], strict=False) if at - before > 1]
        assert [at - began_at for at in looks] == pytest.approx([5.5, 26.0, 107.0], abs=0.5)  # 5, 20, 80 s
        free = Passes(loop)
        await rig.go(free, rps=20, seconds=10)
        assert len(free.asked_at) > 700

    run(main)


def test_some_milliseconds_are_no_sign() -> None:
    """Anything may take the core for a moment."""
    async def main(loop: SimLoop) -> int:
        rig = Rig(loop)

        def waits() -> None:
            if len(passes.asked_at) % 200 == 100:
                rig.waited_s += 0.015

        passes = Passes(loop, waits)
        await rig.go(passes, rps=20, seconds=10)
        return len(passes.asked_at)

    assert run(main) > 700


def test_pauses_are_short_again_after_two_good_seconds() -> None:
    """And not before: a core that is wanted every second now and then is not asked for more often than one always wanted."""
    assert _pauses(n_good=100) == 3  # of 5, 20 and 80 s
    assert _pauses(n_good=300) >= 5  # of 5 s, each


def _pauses(n_good: int) -> int:
    """Within a minute, where the thread has to wait once in so many passes, of which there are 80 a second."""
    async def main(loop: SimLoop) -> int:
        rig = Rig(loop)

        def waits() -> None:
            if len(passes.asked_at) % n_good == 0:
                rig.waited_s += 0.1

        passes = Passes(loop, waits)
        await rig.go(passes, rps=20, seconds=60)
        ends = [*passes.asked_at[1:], loop.now()]
        return sum(end - at > 1 for at, end in zip(passes.asked_at, ends, strict=True))

    return run(main)


def test_a_busy_process_is_left_alone() -> None:
    """With half of the core used, its path is warm."""
    async def main(loop: SimLoop) -> list[int]:
        n_passes = []
        for share in (0.4, 0.6):
            rig, passes = Rig(loop), Passes(loop)
            rig.cpu_share = share
            await rig.go(passes, rps=20, seconds=10)
            n_passes.append(len(passes.asked_at))
        return n_passes

    less, more = run(main)
    assert less > 700
    assert more < less / 2  # 2 s, 5 s of pause, 2 s


def test_what_fails_is_told_once_and_tried_again_much_later() -> None:
    """A pass that raises, one that never ends, and a twin that cannot be made."""
    def broken() -> None:
        raise RuntimeError

    async def main(loop: SimLoop) -> None:
        for passes in (Passes(loop, broken), Endless(loop), Unmade(loop)):
            rig = Rig(loop)
            await rig.go(passes, rps=20, seconds=LONGEST_PAUSE_S - 10)
            assert len(rig.errors) == 1
            assert len(passes.asked_at) <= 1

            again = Rig(loop)
            n_made = passes.n_made
            await again.go(passes, rps=20, seconds=LONGEST_PAUSE_S + 10)
            assert (passes.n_made, len(again.errors)) == (n_made + 2, 2)

    run(main)


class Endless(Passes):
    """A pass without an answer."""

    async def ask(self) -> None:
        """Hangs."""
        await super().ask()
        await asyncio.get_running_loop().create_future()


class Unmade(Passes):
    """A twin that cannot be made."""

    def make(self) -> "Passes":
        """Raises."""
        super().make()
        raise OSError


def test_how_long_this_thread_waited() -> None:
    """It never goes back, here and where nobody counts it."""
    before_s = waited_s()
    assert 0.0 <= before_s <= waited_s()
