"""Semantic search with the embedder of the gateway's semantic cache. Needs the extra `semantic`.

Passages are embedded once, which takes seconds of one core. Vectors are stored in a file by the hash of their passage, so
only edited passages are embedded again.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.support_bot.passages import Passage
from stayfast.core.clock import SystemClock
from stayfast.stores import onnx_embedder as minilm
from stayfast.stores.batched_embedder import BatchedEmbedder
from stayfast.stores.embedder import EmbedderConfig

MIN_COSINE = 0.3
BATCH_SIZE = 16


class Meaning:
    """Passages with their vectors; create it with `open_meaning`. Single loop."""

    def __init__(self, passages: Sequence[Passage], rows: NDArray[np.float32], embedder: BatchedEmbedder) -> None:
        self._passages = passages
        self._rows = rows
        self._embedder = embedder

    async def find(self, question: str, at_most: int = 8) -> list[Passage]:
        """Similar passages, the nearest first. Raises NoEmbedder."""
        near = self._rows @ (await self._embedder.embed([question]))[0]
        return [self._passages[n] for n in np.argsort(-near)[:at_most] if near[n] >= MIN_COSINE]

    def close(self) -> None:
        self._embedder.close()


def open_meaning(passages: Sequence[Passage], cache_dir: Path) -> Meaning:
    """Load the embedder and the vectors; missing vectors are computed. Blocks. Raises NoEmbedder with the remedy."""
    config = EmbedderConfig(max_tokens=64)
    encoder = minilm.load_encoder(config, str(cache_dir))
    with closing(sqlite3.connect(cache_dir / "support_bot.sqlite")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, row BLOB NOT NULL)")
        texts = {_key(encoder.id, one): f"{one.heading}: {one.text}" for one in passages}
        known = dict(database.execute("SELECT key, row FROM vectors"))
        new = [key for key in texts if key not in known]
        for begin in range(0, len(new), BATCH_SIZE):
            batch = new[begin:begin + BATCH_SIZE]
            rows = encoder.embed_all([texts[key] for key in batch])
            vectors = {key: row.tobytes() for key, row in zip(batch, rows, strict=True)}
            known |= vectors
            with database:
                database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", vectors.items())
    rows = np.stack([np.frombuffer(known[_key(encoder.id, one)], dtype=np.float32) for one in passages])
    return Meaning(passages, rows, BatchedEmbedder(encoder, config, SystemClock()))


def _key(embedder: str, passage: Passage) -> str:
    return sha256(f"{embedder}\n{passage.heading}\n{passage.text}".encode()).hexdigest()
