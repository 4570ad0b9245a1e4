"""observe.fact_batch: every fact once, in order, at once or a little later."""

import asyncio
from collections.abc import Sequence

from stayfast.core.events import ConnectionReused, Fact, LoopLag
from stayfast.observe.fact_batch import MAX_DELAY_S, MAX_FACTS, FactBatch, FactHandlers
from stayfast.testing import SimLoop
from stayfast.testing.simloop import run


class Told:
    """Keeps what it is told, and in how many parts."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.parts: list[int] = []

    @property
    def handlers(self) -> FactHandlers:
        """For one type only."""
        return {LoopLag: self.take}

    def take(self, facts: Sequence[Fact]) -> None:
        """Take some facts."""
        self.facts += facts
        self.parts.append(len(facts))


def test_batch_few_facts_are_flushed_after_delay() -> None:
    """For WAIT_S, or until somebody wants to read."""
    async def main(loop: SimLoop) -> None:
        one, two = Told(), Told()
        batch = FactBatch(one, two)
        facts = [LoopLag(n) for n in range(5)]
        for fact in facts[:3]:
            batch.emit(fact)
        assert one.facts == []
        await asyncio.sleep(MAX_DELAY_S)
        assert one.facts == two.facts == facts[:3]
        batch.emit(facts[3])
        batch.flush()
        batch.flush()
        batch.emit(facts[4])
        await asyncio.sleep(MAX_DELAY_S)
        assert one.facts == facts
        assert one.parts == [3, 1, 1]

    run(main)


def test_batch_passes_each_type_to_its_handlers() -> None:
    """Also to a listener that comes later; a type that nobody handles is dropped."""
    async def main(loop: SimLoop) -> None:
        one, late = Told(), Told()
        batch = FactBatch(one)
        batch.emit(LoopLag(1))
        batch.add_listener(late)
        for fact in (LoopLag(2), ConnectionReused("u"), LoopLag(3)):
            batch.emit(fact)
        batch.flush()
        assert one.facts == [LoopLag(1), LoopLag(2), LoopLag(3)]
        assert late.facts == [LoopLag(2), LoopLag(3)]
        assert (one.parts, late.parts) == ([1, 2], [2])

    run(main)


def test_batch_full_is_flushed_at_once() -> None:
    """They come by the dozen, and those left over in their time."""
    async def main(loop: SimLoop) -> None:
        told = Told()
        batch = FactBatch(told)
        for n in range(MAX_FACTS * 2 + 1):
            batch.emit(LoopLag(n))
        assert told.parts == [MAX_FACTS, MAX_FACTS]
        await asyncio.sleep(MAX_DELAY_S)
        assert told.parts == [MAX_FACTS, MAX_FACTS, 1]
        assert told.facts == [LoopLag(n) for n in range(MAX_FACTS * 2 + 1)]

    run(main)
