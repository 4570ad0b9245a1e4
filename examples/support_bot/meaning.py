"""Search by meaning: vectors of the embedder that the gateway's semantic cache uses. Needs the extra `semantic`.

Passages are embedded once, some seconds of one core, and their vectors kept in a file by what they are made of: a page that
was edited is embedded anew, the others are not.
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
from stayfast.stores.batched_embedder import Batched
from stayfast.stores.embedder import EmbedderConfig

LEAST_COSINE = 0.3
N_AT_ONCE = 16


class Meaning:
    """Passages by their vectors; opens as `opened` says. One loop's."""

    def __init__(self, passages: Sequence[Passage], rows: NDArray[np.float32], embedder: Batched) -> None:
        self._passages = passages
        self._rows = rows
        self._embedder = embedder

    async def find(self, question: str, at_most: int = 8) -> list[Passage]:
        """Passages that are about the same, the nearest first. Raises NoEmbedder."""
        near = self._rows @ (await self._embedder.embed([question]))[0]
        return [self._passages[n] for n in np.argsort(-near)[:at_most] if near[n] >= LEAST_COSINE]

    def close(self) -> None:
        """No more questions."""
        self._embedder.close()


def opened(passages: Sequence[Passage], cache_dir: Path) -> Meaning:
    """Load the embedder and the vectors, made where they are not kept yet. Blocks. Raises NoEmbedder, saying what to do."""
    config = EmbedderConfig(max_tokens=64)
    encoder = minilm.load(config, str(cache_dir))
    with closing(sqlite3.connect(cache_dir / "support_bot.sqlite")) as kept:
        kept.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, row BLOB NOT NULL)")
        texts = {_key(encoder.id, one): f"{one.heading}: {one.text}" for one in passages}
        known = dict(kept.execute("SELECT key, row FROM vectors"))
        new = [key for key in texts if key not in known]
        for begin in range(0, len(new), N_AT_ONCE):
            some = new[begin:begin + N_AT_ONCE]
            rows = encoder.embed_all([texts[key] for key in some])
            made = {key: row.tobytes() for key, row in zip(some, rows, strict=True)}
            known |= made
            with kept:
                kept.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", made.items())
    rows = np.stack([np.frombuffer(known[_key(encoder.id, one)], dtype=np.float32) for one in passages])
    return Meaning(passages, rows, Batched(encoder, config, SystemClock()))


def _key(embedder: str, passage: Passage) -> str:
    return sha256(f"{embedder}\n{passage.heading}\n{passage.text}".encode()).hexdigest()
