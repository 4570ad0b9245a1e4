"""An encoder as an `Embedder`: on threads of its own, several texts at once where that costs nobody time, and none twice."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stayfast.core.clock import Clock
from stayfast.policy.cache.encoder_batching import EncodingPace, PendingText, batch_of
from stayfast.policy.cache.s3fifo import S3Fifo
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder
from stayfast.wire.canonical import text_of

Floats = NDArray[np.float32]


class EncoderModel(Protocol):
    """What `stores.onnx_embedder` loads. `run` is called on another thread."""

    id: str
    n_dims: int

    def tokens(self, text: str) -> tuple[list[int], bool]:
        """The numbers of its tokens as far as they are read, and whether that is all of it."""

    def run(self, batch: list[list[int]]) -> Floats:
        """One row for each text; all have equally many tokens."""


class _Text(PendingText, eq=False):
    ids: list[int]
    vector: "asyncio.Future[Floats]"
    n_askers: int = 0


class Batched:
    """An `Embedder`. One loop's; its threads only run the model."""

    def __init__(self, model: EncoderModel, config: EmbedderConfig, clock: Clock) -> None:
        self.id = model.id
        self.n_dims = model.n_dims
        self.n_embedded = 0  # texts, of which were
        self.n_batches = 0
        self._model = model
        self._config = config
        self._clock = clock
        self._pace = EncodingPace()
        self._known: S3Fifo[Floats] = S3Fifo(config.cache_bytes)
        self._read: tuple[str, list[int], bool] = ("", [], True)  # the last text, its tokens, and whether they are all
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="embed")
        self._n_running = 0
        self._coming: dict[bytes, _Text] = {}
        self._waiting: dict[_Text, None] = {}  # oldest first

    def fits(self, left_s: float) -> bool:
        return self._pace.fits(left_s)

    def is_whole(self, text: str) -> bool:
        """Whether all of a text goes into its vector. 1 ms for 700 characters, once; next to nothing for a text of more
        words than tokens are read.
        """
        return len(text.split()) <= self._config.max_tokens and self._tokens(text)[1]

    async def embed(self, texts: Sequence[str]) -> Floats:
        """float32 [len(texts), n_dims], rows of length 1. Raises NoEmbedder where the model fails."""
        keys = [_key_of(text) for text in texts]
        rows = {key: self._known.get(key) for key in keys}
        coming = {key: self._ask(key, text) for key, text in zip(keys, texts, strict=True) if rows[key] is None}
        self._begin()
        try:
            for key, one in coming.items():
                rows[key] = await asyncio.shield(one.vector)  # others may wait for the same
        finally:
            for key, one in coming.items():
                self._leave(key, one)
        found = [row for key in keys if (row := rows[key]) is not None]
        return np.stack(found) if found else np.empty((0, self.n_dims), dtype=np.float32)

    def close(self) -> None:
        """No more texts; what runs on a thread is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, key: bytes, text: str) -> _Text:
        """A text on its way; the one that another asker waits for already, if it is the same."""
        pending = self._coming.get(key)
        if pending is None:
            ids = self._tokens(text)[0]
            pending = _Text(len(ids), self._clock.now(), ids, asyncio.get_running_loop().create_future())
            self._coming[key] = pending
            self._waiting[pending] = None
        pending.n_askers += 1
        return pending

    def _tokens(self, text: str) -> tuple[list[int], bool]:
        """As `EncoderModel.tokens`, and not again for who asks whether a text is whole and embeds it then."""
        if self._read[0] != text:
            self._read = (text, *self._model.tokens(text))
        return self._read[1:]

    def _leave(self, key: bytes, pending: _Text) -> None:
        """One asker less: it has the vector, or does not want it any more."""
        pending.n_askers -= 1
        if not pending.n_askers:
            del self._coming[key]
            self._waiting.pop(pending, None)
            if not pending.vector.cancel() and not pending.vector.exception():
                row = pending.vector.result()
                self._known.put(key, row, row.nbytes)

    def _begin(self) -> None:
        """As many batches as there are free threads."""
        while self._waiting and self._n_running < self._config.threads:
            batch = batch_of(self._waiting, self._clock.now(), self._config.max_batch_tokens, self._config.max_batch_wait_s)
            for text in batch:
                del self._waiting[text]
            try:
                running = asyncio.get_running_loop().run_in_executor(
                    self._threads, self._model.run, [text.ids for text in batch])
            except RuntimeError:  # closed
                _fail(batch, NoEmbedder("the embedder is closed"))
                return
            self._n_running += 1
            running.add_done_callback(partial(self._ran, batch))

    def _ran(self, batch: list[_Text], running: "asyncio.Future[Floats]") -> None:
        self._n_running -= 1
        self.n_batches += 1
        self.n_embedded += len(batch)
        failed = running.cancelled() or running.exception()
        if failed:
            _fail(batch, NoEmbedder(f"the model failed: {type(failed).__name__}"))
        else:
            now = self._clock.now()
            for text, row in zip(batch, running.result(), strict=True):
                self._pace.took(now - text.queued_at)
                if not text.vector.done():
                    text.vector.set_result(row)
        self._begin()

    def __repr__(self) -> str:
        return f"<Batched {self.id}: {self.n_embedded} texts in {self.n_batches} batches, {len(self._waiting)} wait>"


def _key_of(text: str) -> bytes:
    """The same whatever the line ends, accents and white space: vectors are only compared here, never given to a client, and
    most tokenizers of such models do not see how much white space there is.
    """
    return " ".join(text_of(text).split()).encode()


def _fail(batch: list[_Text], why: NoEmbedder) -> None:
    for text in batch:
        if not text.vector.done():
            text.vector.set_exception(NoEmbedder(*why.args))


def floats(row: bytes) -> Floats:
    """A vector out of its bytes."""
    return np.frombuffer(row, dtype=np.float32)
