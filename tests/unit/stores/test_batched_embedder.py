"""stores.batched_embedder: its queue, with the test's model."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.core.clock import SystemClock
from stayfast.stores.batched_embedder import BatchedEmbedder
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder


class Words:
    """A model whose tokens are a text's words, and whose vectors tell how long they are. `gate` holds it."""

    id = "words"
    n_dims = 2
    can_pad = True

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.n_read = 0
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        """One number a word; six at most."""
        self.n_read += 1
        ids = [len(word) for word in text.split()]
        return ids[:6], len(ids) <= 6

    def encode(self, batch: list[list[int]]) -> NDArray[np.float32]:
        """Their sums."""
        assert self.gate.wait(10)
        self.batches.append(batch)
        if self.is_broken:
            raise RuntimeError("a text that nobody may read in a log")
        return np.array([[sum(ids), 1] for ids in batch], dtype=np.float32)


def on(check: Callable[[BatchedEmbedder, Words], Awaitable[None]], config: EmbedderConfig | None = None) -> None:
    """Run a check with an embedder on such a model."""
    async def main() -> None:
        model = Words()
        embedder = BatchedEmbedder(model, config or EmbedderConfig(), SystemClock())
        try:
            async with asyncio.timeout(10):
                await check(embedder, model)
        finally:
            model.gate.set()
            embedder.close()

    asyncio.run(main())


def test_embedder_rows_have_order_of_texts() -> None:
    """Known ones and new ones, of all lengths; none at all is an empty array."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        await embedder.embed(["a bc"])
        found = await embedder.embed(["abc", "a bc", "abcdef", "ab cdef"])
        assert found[:, 0].tolist() == [3, 3, 6, 6]
        assert found.dtype == np.float32
        assert (await embedder.embed([])).shape == (0, 2)

    on(check)


def test_embedder_caches_vectors() -> None:
    """Also with other white space, around it and within, and other line ends; other words are another text."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        await embedder.embed(["caf\u00e9 one\ntwo"])
        await embedder.embed(["  cafe\u0301 one\r\ntwo\n"])
        assert len(model.batches) == 1
        await embedder.embed(["caf\u00e9  one \t two", "\n\ncaf\u00e9 one two"])
        assert len(model.batches) == 1
        await embedder.embed(["caf\u00e9 onetwo"])
        assert len(model.batches) == 2

    on(check)


def test_embedder_batches_waiting_texts_of_equal_length() -> None:
    """The first goes alone; of those who wait, equal ones share a batch, oldest first."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        model.gate.clear()
        asked = [asyncio.ensure_future(embedder.embed([text])) for text in ("first", "a b", "a b c", "c d", "e f g")]
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(*asked)
        assert [len(batch) for batch in model.batches] == [1, 2, 2]

    on(check, EmbedderConfig(max_batch_wait_s=10))


def test_embedder_cancelled_text_is_not_encoded() -> None:
    """A text whose asker is gone before its turn leaves the queue; the others get theirs."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        model.gate.clear()
        first, gone, other = (asyncio.ensure_future(embedder.embed([text])) for text in ("first", "a b", "c d e"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        await first
        await other
        assert model.batches == [[[5]], [[1, 1, 1]]]
        with pytest.raises(asyncio.CancelledError):
            await gone

    on(check)


def test_embedder_model_failure_raises_without_the_text() -> None:
    """NoEmbedder for the texts of that batch; the next ones are tried again."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        model.is_broken = True
        with pytest.raises(NoEmbedder, match=r"^the model failed: RuntimeError$"):
            await embedder.embed(["a", "b"])
        model.is_broken = False
        assert len(await embedder.embed(["a", "b"])) == 2

    on(check)


def test_embedder_closed_raises() -> None:
    """NoEmbedder, at once."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        embedder.close()
        with pytest.raises(NoEmbedder, match="closed"):
            await embedder.embed(["a"])

    on(check)


def test_embedder_slow_model_does_not_fit_short_time() -> None:
    """What one text took is what the next is expected to take."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        assert embedder.can_embed_within(0.0)
        await embedder.embed(["a"])
        assert embedder.can_embed_within(5.0)
        assert not embedder.can_embed_within(0.0)

    on(check)


def test_embedder_truncated_text_is_not_whole() -> None:
    """A caller can tell before it compares."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        assert embedder.is_whole("one two three")
        assert not embedder.is_whole("one two three four five six seven")

    on(check)


def test_embedder_tokenizes_text_once() -> None:
    """To tell whether it is whole, and to embed it then; one of more words than tokens are read is not read at all."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        for n, text in enumerate(("a bc def", "b", "a bc def"), 1):
            assert embedder.is_whole(text)
            assert (await embedder.embed([text]))[0, 0] == len(text.replace(" ", ""))
            assert model.n_read == n
        assert not embedder.is_whole("a " * 8 + "a")
        assert model.n_read == 3
        assert not embedder.is_whole("a b c d e f g")
        assert model.n_read == 4

    on(check, EmbedderConfig(max_tokens=8))


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 7), ("threads", 0), ("max_batch_tokens", 0),
                                             ("max_batch_wait_s", -1.0),
                                             ("cache_bytes", 1)])
def test_embedder_settings_out_of_bounds_are_rejected(name: str, value: Any) -> None:
    """ValueError with the field."""
    with pytest.raises(ValueError, match=f"^{name} must be"):
        replace(EmbedderConfig(), **{name: value})


def test_embedder_concurrent_callers_of_same_text_share_one_encoding() -> None:
    """All get it; one of them may leave, and the last one that leaves takes it out of the queue."""
    async def check(embedder: BatchedEmbedder, model: Words) -> None:
        model.gate.clear()
        busy = asyncio.ensure_future(embedder.embed(["busy"]))
        await asyncio.sleep(0)
        many = [asyncio.ensure_future(embedder.embed(["a b", "a b "])) for _ in range(20)]
        gone = [asyncio.ensure_future(embedder.embed(["never mind"])) for _ in range(2)]
        await asyncio.sleep(0)
        for task in (many[0], *gone):
            task.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        await busy
        assert [(await task).tolist() for task in many[1:]] == [[[2, 1], [2, 1]]] * 19
        assert model.batches == [[[4]], [[1, 1]]]

    on(check)
