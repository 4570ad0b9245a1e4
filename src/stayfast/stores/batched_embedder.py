"""An `Embedder` that runs an encoder on its own threads, in batches where that delays no text, and caches vectors.

A thread cannot be interrupted. So a batch that overruns (`policy.batching.queue`) is abandoned on its thread: another thread
takes its place, and the texts run alone there; the first of both results counts. A text that failed or overran alone is
remembered, and runs alone from then on. At most MAX_ABANDONED threads are lost at a time; then an overrunning batch is
awaited for GIVE_UP_S. After that the embedder is stuck: texts are refused until a thread returns. A text in the batch of a
hanging one holds none of them, but the hanging one holds two: that of its batch, and that where it runs alone.
"""

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from stayfast.core.clock import Clock
from stayfast.policy.batching.cost import EncodingPace
from stayfast.policy.batching.queue import BatchQueue, PendingText, QueueLimits, TextBatch
from stayfast.policy.cache.s3fifo import S3Fifo
from stayfast.stores.embedder import (
    BatchCounts,
    EmbedderBusy,
    EmbedderConfig,
    EmbedderStuck,
    EmbeddingExpired,
    NoEmbedder,
    TextNotEncodable,
)
from stayfast.wire.canonical import normalize_text

Floats = NDArray[np.float32]
MAX_ABANDONED: Final = 2  # threads
GIVE_UP_S: Final = 5.0  # after an overrun
MAX_SUSPECTS: Final = 256  # texts that run alone


class EncoderModel(Protocol):
    """An encoder, such as `stores.onnx_embedder.OnnxEncoder`. `encode` is called on another thread."""

    id: str
    n_dims: int
    can_pad: bool

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        """Its token ids, truncated to the model's limit, and whether that is the whole text."""

    def encode(self, batch: list[list[int]]) -> Floats:
        """One row for each text. Texts with different numbers of tokens need `can_pad`."""


class _Text(PendingText, eq=False):
    key: bytes = b""
    ids: list[int] = msgspec.field(default_factory=list)
    vector: "asyncio.Future[Floats] | None" = None
    n_callers: int = 0

    @property
    def is_wanted(self) -> bool:
        return self.vector is not None and not self.vector.done()

    def resolve(self, row: Floats) -> None:
        if self.vector is not None and not self.vector.done():
            self.vector.set_result(row)

    def fail(self, why: NoEmbedder) -> None:
        if self.vector is not None and not self.vector.done():
            self.vector.set_exception(why)


class _Run(msgspec.Struct, eq=False):
    """A batch on a thread."""

    batch: TextBatch[_Text]
    began_at: float
    watch: asyncio.TimerHandle | None = None
    has_overrun: bool = False
    is_given_up: bool = False

    @property
    def is_alone(self) -> bool:
        return len(self.batch.texts) == 1


class BatchedEmbedder:
    """An `Embedder`. One loop's; its threads only run the model."""

    def __init__(self, model: EncoderModel, config: EmbedderConfig, clock: Clock) -> None:
        self.id = model.id
        self.n_dims = model.n_dims
        self.counts = BatchCounts()
        self._model = model
        self._config = config
        self._clock = clock
        self._pace = EncodingPace()
        self._cache: S3Fifo[Floats] = S3Fifo(config.cache_bytes)
        self._last_tokens: tuple[str, list[int], bool] = ("", [], True)  # of the last text, for `is_whole` then `embed`
        self._threads = ThreadPoolExecutor(config.threads + MAX_ABANDONED, thread_name_prefix="embed")
        self._running: list[_Run] = []
        self._abandoned: list[_Run] = []
        self._pending: dict[bytes, _Text] = {}  # waiting or running
        self._suspects: dict[bytes, None] = {}
        self._queue: BatchQueue[_Text] = BatchQueue(QueueLimits(
            config.max_batch_tokens, config.max_waiting_tokens, config.max_batch_wait_s, model.can_pad))

    @property
    def n_waiting_tokens(self) -> int:
        """Of the texts that wait or run."""
        return self._queue.n_waiting_tokens + self._queue.n_running_tokens

    @property
    def max_tokens(self) -> int:
        return self._config.max_tokens

    @property
    def n_overrun_threads(self) -> int:
        """Threads whose batch takes longer than it may."""
        return len(self._abandoned) + sum(run.has_overrun for run in self._running)

    @property
    def is_stuck(self) -> bool:
        """All threads are held by batches that were given up."""
        return len(self._running) >= self._config.threads and all(run.is_given_up for run in self._running)

    def can_embed_within(self, left_s: float) -> bool:
        return not self.is_stuck and self._pace.has_time(left_s)

    def is_whole(self, text: str) -> bool:
        """Takes 1 ms for 700 characters, the first time."""
        return len(text.split()) <= self._config.max_tokens and self._tokens(text)[1]

    def count_tokens(self, text: str) -> int:
        return len(self._tokens(text)[0])

    async def embed(self, texts: Sequence[str], deadline_at: float = inf) -> Floats:
        keys = [_cache_key(text) for text in texts]
        rows = {key: self._cache.get(key) for key in keys}
        new = {key: text for key, text in zip(keys, texts, strict=True) if rows[key] is None}
        pending = self._enqueue(new, deadline_at)
        self._start_batches()
        try:
            async with asyncio.timeout_at(deadline_at if deadline_at < inf else None):
                for key, waiting in pending.items():
                    assert waiting.vector is not None
                    rows[key] = await asyncio.shield(waiting.vector)  # other callers may wait for the same text
        except TimeoutError:
            self.counts.n_expired += sum(waiting.is_wanted for waiting in pending.values())
            raise EmbeddingExpired("the deadline passed before the text was embedded") from None
        finally:
            for key, waiting in pending.items():
                self._release(key, waiting)
        found = [row for key in keys if (row := rows[key]) is not None]
        return np.stack(found) if found else np.empty((0, self.n_dims), dtype=np.float32)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, texts: dict[bytes, str], deadline_at: float) -> dict[bytes, _Text]:
        """Callers of the same text share one entry, with the later deadline. Raises NoEmbedder before anything waits."""
        self._refuse_hanging(texts)
        tokens = {key: self._tokens(text)[0] for key, text in texts.items() if key not in self._pending}
        refused = self._queue.refuse(map(len, tokens.values()), self._clock.now())
        if refused is not None:
            self.counts.n_refused += len(tokens)
            if refused.retry_after_s is None:
                raise EmbedderBusy(f"the texts have {sum(map(len, tokens.values()))} tokens, and at most "
                                   f"{self._config.max_waiting_tokens} may wait: send fewer at a time", None)
            raise EmbedderBusy("too many tokens wait for the encoder", refused.retry_after_s)
        n_request = sum(map(len, tokens.values()))
        loop, now, found = asyncio.get_running_loop(), self._clock.now(), dict[bytes, _Text]()
        for key in texts:
            text = self._pending.get(key)
            if text is None:
                ids = tokens[key]
                text = _Text(len(ids), now, deadline_at, n_request, key in self._suspects, key, ids, loop.create_future())
                self._pending[key] = text
                self._queue.add(text)
            text.deadline_at = max(text.deadline_at, deadline_at)
            text.n_callers += 1
            found[key] = text
        return found

    def _refuse_hanging(self, keys: Collection[bytes]) -> None:
        """A client that repeats a text which still hangs would take a thread with each attempt."""
        if self.is_stuck:
            self.counts.n_refused += len(keys)
            raise EmbedderStuck("texts that do not end hold all threads of the encoder; the gateway must be restarted if "
                                "none of them ends")
        if self._abandoned:
            alone = {run.batch.texts[0].key: run for run in (*self._abandoned, *self._running)
                     if run.has_overrun and run.is_alone}
            for run in (alone[key] for key in keys if key in alone and key not in self._pending):
                if run.is_given_up:
                    raise TextNotEncodable("the model does not end with a text")
                raise EmbedderBusy("an earlier request's attempt to encode the same text has not ended", GIVE_UP_S)

    def _tokens(self, text: str) -> tuple[list[int], bool]:
        if self._last_tokens[0] != text:
            self._last_tokens = (text, *self._model.tokenize(text))
        return self._last_tokens[1:]

    def _release(self, key: bytes, text: _Text) -> None:
        """A caller has the vector, or was cancelled. After the last one, cache the vector or cancel the text."""
        text.n_callers -= 1
        if not text.n_callers and text.vector is not None:
            del self._pending[key]
            self._queue.discard(text)
            if not text.vector.cancel() and not text.vector.exception():
                row = text.vector.result()
                self._cache.put(key, row, row.nbytes)

    def _start_batches(self) -> None:
        """One batch for each idle thread."""
        while len(self._queue) and len(self._running) < self._config.threads:
            for text in self._queue.drop_expired(self._clock.now()):
                self.counts.n_expired += 1
                text.fail(EmbeddingExpired("the deadline passed before the text was embedded"))
            batch = self._queue.take_batch()
            if batch is not None and not self._start(batch):
                return

    def _start(self, batch: TextBatch[_Text]) -> bool:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, self._model.encode, [text.ids for text in batch.texts])
        except RuntimeError:
            self._queue.finish(batch, 0.0)
            for text in batch.texts:
                text.fail(NoEmbedder("the embedder is closed"))
            return False
        run = _Run(batch, self._clock.now())
        run.watch = loop.call_later(batch.overrun_s, self._abandon, run)
        self._running.append(run)
        self.counts.add_batch(batch)
        running.add_done_callback(partial(self._finish_batch, run))
        return True

    def _abandon(self, run: _Run) -> None:
        """A batch overruns: run its texts alone on another thread, if one is left."""
        run.has_overrun = True
        may_abandon = len(self._abandoned) < MAX_ABANDONED
        if not run.is_given_up and (run.is_alone or not may_abandon):
            run.watch = asyncio.get_running_loop().call_later(GIVE_UP_S, self._give_up, run)
        if not may_abandon:
            return
        self._running.remove(run)
        self._abandoned.append(run)
        self._queue.finish(run.batch, self._clock.now() - run.began_at)
        self._isolate(run.batch)
        self._start_batches()

    def _give_up(self, run: _Run) -> None:
        """Its callers wait no longer; nobody does where no thread is left."""
        run.is_given_up = True
        if run.is_alone:
            run.batch.texts[0].fail(TextNotEncodable("the model does not end with the text"))
        elif run in self._running:
            self._fail_stuck(run.batch.texts)
        if self.is_stuck:
            self._fail_stuck([text for text in self._pending.values() if text not in run.batch.texts])

    def _fail_stuck(self, texts: Sequence[_Text]) -> None:
        for text in texts:
            self._queue.discard(text)
            text.fail(EmbedderStuck("texts that do not end hold all threads of the encoder"))

    def _isolate(self, batch: TextBatch[_Text]) -> None:
        """Split a broken batch; remember a text that broke alone."""
        if len(batch.texts) == 1:
            self._suspects[batch.texts[0].key] = None
            if len(self._suspects) > MAX_SUSPECTS:
                del self._suspects[next(iter(self._suspects))]
            return
        self.counts.n_splits += 1
        self._queue.split([text for text in batch.texts if text.is_wanted])

    def _finish_batch(self, run: _Run, running: "asyncio.Future[Floats]") -> None:
        batch, now = run.batch, self._clock.now()
        if run.watch is not None:
            run.watch.cancel()
        was_abandoned = run in self._abandoned
        if was_abandoned:
            self._abandoned.remove(run)
        else:
            self._running.remove(run)
            self._queue.finish(batch, now - run.began_at)
        failed = running.cancelled() or running.exception()
        if failed:
            why = TextNotEncodable(f"the model failed: {type(failed).__name__}")
            self._fail_batch(batch, why, was_abandoned=was_abandoned)
        else:
            for text, row in zip(batch.texts, running.result(), strict=True):
                self._pace.add_sample(now - text.queued_at)
                self._queue.discard(text)
                text.resolve(row)
        overrun = next((other for other in self._running if other.has_overrun), None)
        if overrun is not None and was_abandoned:  # a thread has come back
            if overrun.watch is not None:
                overrun.watch.cancel()
            self._abandon(overrun)
        self._start_batches()

    def _fail_batch(self, batch: TextBatch[_Text], why: NoEmbedder, *, was_abandoned: bool) -> None:
        if was_abandoned and len(batch.texts) > 1:
            return  # its texts run alone
        self._isolate(batch)
        if len(batch.texts) == 1:
            batch.texts[0].fail(why)

    def __repr__(self) -> str:
        return (f"<BatchedEmbedder {self.id}: {self.counts.n_texts} texts in {self.counts.n_batches} batches, "
                f"{len(self._queue)} waiting>")


def _cache_key(text: str) -> bytes:
    """Ignores line ends, the form of accents, and the amount of white space, as most tokenizers of such models do."""
    return " ".join(normalize_text(text).split()).encode()


def vector_from_bytes(row: bytes) -> Floats:
    """A vector from its bytes."""
    return np.frombuffer(row, dtype=np.float32)
