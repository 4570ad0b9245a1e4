"""An `Embedder` that runs an encoder on its own threads, in batches where that delays no text, and caches vectors."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stayfast.core.clock import Clock
from stayfast.policy.cache.encoder_batching import EncodingPace, PendingText, select_batch
from stayfast.policy.cache.s3fifo import S3Fifo
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder
from stayfast.wire.canonical import normalize_text

Floats = NDArray[np.float32]


class EncoderModel(Protocol):
    """An encoder, such as `stores.onnx_embedder.OnnxEncoder`. `encode` is called on another thread."""

    id: str
    n_dims: int

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        """Its token ids, truncated to the model's limit, and whether that is the whole text."""

    def encode(self, batch: list[list[int]]) -> Floats:
        """One row for each text; all texts have the same number of tokens."""


class _Text(PendingText, eq=False):
    ids: list[int]
    vector: "asyncio.Future[Floats]"
    n_callers: int = 0


class BatchedEmbedder:
    """An `Embedder`. One loop's; its threads only run the model."""

    def __init__(self, model: EncoderModel, config: EmbedderConfig, clock: Clock) -> None:
        self.id = model.id
        self.n_dims = model.n_dims
        self.n_embedded = 0  # texts
        self.n_batches = 0
        self._model = model
        self._config = config
        self._clock = clock
        self._pace = EncodingPace()
        self._cache: S3Fifo[Floats] = S3Fifo(config.cache_bytes)
        self._last_tokens: tuple[str, list[int], bool] = ("", [], True)  # of the last text, for `is_whole` then `embed`
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="embed")
        self._n_running = 0
        self._pending: dict[bytes, _Text] = {}  # waiting or running
        self._waiting: dict[_Text, None] = {}  # oldest first

    def can_embed_within(self, left_s: float) -> bool:
        return self._pace.has_time(left_s)

    def is_whole(self, text: str) -> bool:
        """Takes 1 ms for 700 characters, the first time."""
        return len(text.split()) <= self._config.max_tokens and self._tokens(text)[1]

    async def embed(self, texts: Sequence[str]) -> Floats:
        keys = [_cache_key(text) for text in texts]
        rows = {key: self._cache.get(key) for key in keys}
        pending = {key: self._enqueue(key, text) for key, text in zip(keys, texts, strict=True) if rows[key] is None}
        self._start_batches()
        try:
            for key, text in pending.items():
                rows[key] = await asyncio.shield(text.vector)  # other callers may wait for the same text
        finally:
            for key, text in pending.items():
                self._release(key, text)
        found = [row for key in keys if (row := rows[key]) is not None]
        return np.stack(found) if found else np.empty((0, self.n_dims), dtype=np.float32)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, key: bytes, text: str) -> _Text:
        """Callers of the same text share one entry."""
        pending = self._pending.get(key)
        if pending is None:
            ids = self._tokens(text)[0]
            pending = _Text(len(ids), self._clock.now(), ids, asyncio.get_running_loop().create_future())
            self._pending[key] = pending
            self._waiting[pending] = None
        pending.n_callers += 1
        return pending

    def _tokens(self, text: str) -> tuple[list[int], bool]:
        if self._last_tokens[0] != text:
            self._last_tokens = (text, *self._model.tokenize(text))
        return self._last_tokens[1:]

    def _release(self, key: bytes, pending: _Text) -> None:
        """A caller has the vector, or was cancelled. After the last one, cache the vector or cancel the text."""
        pending.n_callers -= 1
        if not pending.n_callers:
            del self._pending[key]
            self._waiting.pop(pending, None)
            if not pending.vector.cancel() and not pending.vector.exception():
                row = pending.vector.result()
                self._cache.put(key, row, row.nbytes)

    def _start_batches(self) -> None:
        """One batch for each idle thread."""
        while self._waiting and self._n_running < self._config.threads:
            batch = select_batch(self._waiting, self._clock.now(), self._config.max_batch_tokens,
                                 self._config.max_batch_wait_s)
            for text in batch:
                del self._waiting[text]
            try:
                running = asyncio.get_running_loop().run_in_executor(
                    self._threads, self._model.encode, [text.ids for text in batch])
            except RuntimeError:  # closed
                _fail(batch, NoEmbedder("the embedder is closed"))
                return
            self._n_running += 1
            running.add_done_callback(partial(self._finish_batch, batch))

    def _finish_batch(self, batch: list[_Text], running: "asyncio.Future[Floats]") -> None:
        self._n_running -= 1
        self.n_batches += 1
        self.n_embedded += len(batch)
        failed = running.cancelled() or running.exception()
        if failed:
            _fail(batch, NoEmbedder(f"the model failed: {type(failed).__name__}"))
        else:
            now = self._clock.now()
            for text, row in zip(batch, running.result(), strict=True):
                self._pace.add_sample(now - text.queued_at)
                if not text.vector.done():
                    text.vector.set_result(row)
        self._start_batches()

    def __repr__(self) -> str:
        return (f"<BatchedEmbedder {self.id}: {self.n_embedded} texts in {self.n_batches} batches, "
                f"{len(self._waiting)} waiting>")


def _cache_key(text: str) -> bytes:
    """Ignores line ends, the form of accents, and the amount of white space, as most tokenizers of such models do."""
    return " ".join(normalize_text(text).split()).encode()


def _fail(batch: list[_Text], why: NoEmbedder) -> None:
    for text in batch:
        if not text.vector.done():
            text.vector.set_exception(NoEmbedder(*why.args))


def vector_from_bytes(row: bytes) -> Floats:
    """A vector from its bytes."""
    return np.frombuffer(row, dtype=np.float32)
