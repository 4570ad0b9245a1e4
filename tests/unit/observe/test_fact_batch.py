"""observe.fact_batch: every fact once, in order, at once or a little later."""

import asyncio
from collections.abc import Sequence

from stayfast.core.events import Fact, LoopLag
from stayfast.observe.fact_batch import MAX_DELAY_S, MAX_FACTS, FactBatch
from stayfast.testing import SimLoop
from stayfast.testing.simloop import run


class Told:
    """Keeps what it is told, and in how many parts."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.parts: list[int] = []

    def consume(self, facts: Sequence[Fact]) -> None:
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
