"""stores.batched_embedder with texts that hang: what it refuses, until when callers wait, and that it recovers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.core.clock import SystemClock
from stayfast.policy.batching.cost import MIN_BATCHES
from stayfast.stores import batched_embedder
from stayfast.stores.batched_embedder import BatchedEmbedder
from stayfast.stores.embedder import EmbedderBusy, EmbedderConfig, EmbedderStuck, EmbeddingExpired, TextNotEncodable

HANGING = ("h" * 30, "h" * 31, "h" * 32)


class Hanging:
    """Tokens are lengths of words. A batch with a word of 30 letters or more hangs until `release`."""

    id = "hanging"
    n_dims = 2
    can_pad = True

    def __init__(self) -> None:
        self.release = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.n_hung = 0

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        return [len(word) for word in text.split()], True

    def encode(self, batch: list[list[int]]) -> NDArray[np.float32]:
        self.gate.wait(5)
        if any(max(ids) >= 30 for ids in batch):
            self.n_hung += 1
            self.release.wait(30)
        return np.ones((len(batch), 2), np.float32)


def on(check: Callable[[BatchedEmbedder, Hanging], Awaitable[None]]) -> None:
    """Run a check with an embedder that has learned what a batch costs: an overrun is noticed after 0.25 s."""
    async def main() -> None:
        model = Hanging()
        embedder = BatchedEmbedder(model, EmbedderConfig(), SystemClock())
        try:
            async with asyncio.timeout(20):
                for n in range(MIN_BATCHES):
                    await embedder.embed([" ".join("a" * (n + 1))])
                await check(embedder, model)
        finally:
            model.release.set()
            embedder.close()

    asyncio.run(main())


async def hang(embedder: BatchedEmbedder, n: int) -> list["asyncio.Task[NDArray[np.float32]]"]:
    """Texts that hang, one after the other, once each holds a thread for longer than it may."""
    found = []
    for number, text in enumerate(HANGING[:n], 1):
        found.append(asyncio.ensure_future(embedder.embed([text])))
        while embedder.n_overrun_threads < number:
            await asyncio.sleep(0.01)
    return found


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_embedder, "GIVE_UP_S", 0.3)


def test_embedder_two_hanging_texts_leave_a_thread_for_others() -> None:
    async def check(embedder: BatchedEmbedder, model: Hanging) -> None:
        hung = await hang(embedder, 2)
        assert len(await embedder.embed(["b bb"])) == 1
        assert not embedder.is_stuck
        for one in hung:
            with pytest.raises(TextNotEncodable):
                await one

    on(check)


def test_embedder_hanging_text_that_is_sent_again_takes_no_other_thread() -> None:
    """SDKs repeat a request that took too long: first too early, then it is known as broken."""
    async def check(embedder: BatchedEmbedder, model: Hanging) -> None:
        deadline_at = SystemClock().now() + 0.4
        first = asyncio.ensure_future(embedder.embed([HANGING[0]], deadline_at))
        with pytest.raises(EmbeddingExpired):
            await first
        with pytest.raises(EmbedderBusy) as busy:
            await embedder.embed([HANGING[0]])
        assert busy.value.retry_after_s == batched_embedder.GIVE_UP_S
        await asyncio.sleep(0.5)
        with pytest.raises(TextNotEncodable):
            await embedder.embed([HANGING[0]])
        assert model.n_hung == 1

    on(check)


def test_embedder_three_hanging_texts_end_waiting_callers_by_their_deadline() -> None:
    """Before the last one is given up, too."""
    async def check(embedder: BatchedEmbedder, model: Hanging) -> None:
        hung = await hang(embedder, 3)
        clock = SystemClock()
        deadline_at = clock.now() + 0.1
        with pytest.raises(EmbeddingExpired):
            await embedder.embed(["b bb"], deadline_at)
        assert clock.now() - deadline_at < 0.25
        await asyncio.wait(hung)

    on(check)


def test_embedder_three_hanging_texts_refuse_all_others_at_once() -> None:
    """Those that wait without a deadline are failed; a restart is the advice."""
    async def check(embedder: BatchedEmbedder, model: Hanging) -> None:
        hung = await hang(embedder, 3)
        waiting = asyncio.ensure_future(embedder.embed(["b bb"]))
        with pytest.raises(EmbedderStuck):
            await waiting
        assert embedder.is_stuck
        assert not embedder.can_embed_within(10.0)
        assert embedder.n_overrun_threads == 3
        with pytest.raises(EmbedderStuck, match="restarted"):
            await embedder.embed(["c"])
        assert embedder.counts.n_refused == 1
        assert embedder.n_waiting_tokens == 1  # the last one that hangs
        await asyncio.wait(hung)

    on(check)


def test_embedder_stuck_works_again_when_the_texts_end() -> None:
    async def check(embedder: BatchedEmbedder, model: Hanging) -> None:
        await asyncio.wait(await hang(embedder, 3))
        assert embedder.is_stuck
        model.release.set()
        while embedder.n_overrun_threads:
            await asyncio.sleep(0.01)
        assert len(await embedder.embed(["b bb"])) == 1
        assert embedder.n_waiting_tokens == 0

    on(check)


def test_embedder_hanging_text_in_a_batch_holds_two_threads_and_its_companions_none() -> None:
    async def check(embedder: BatchedEmbedder, model: Hanging) -> None:
        model.gate.clear()
        tasks = [asyncio.ensure_future(embedder.embed([text])) for text in ("a aa", "b bb", HANGING[0] + " b", "c cc")]
        await asyncio.sleep(0.05)
        model.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, TextNotEncodable) for one in found] == [False, False, True, False]
        assert embedder.n_overrun_threads == model.n_hung == 2

    on(check)
