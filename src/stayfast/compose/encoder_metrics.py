"""Metrics of the encoder's batches."""

from collections.abc import Iterator

from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    ENCODER_BATCHES,
    ENCODER_OVERRUN,
    ENCODER_SPLITS,
    ENCODER_STUCK,
    ENCODER_TEXTS,
    ENCODER_TOKENS,
    ENCODER_WAITING,
)
from stayfast.stores.embedder import Embedders, ServedEmbedder


def _by_use(embedding: Embedders | None) -> Iterator[tuple[str, ServedEmbedder]]:
    """The loaded embedders that count their batches."""
    if embedding is not None:
        yield from embedding.counted.items()


def encoder_counts(embedding: Embedders | None) -> Samples:
    """Counters; none before the encoder is loaded."""
    rows = [(use, embedder.counts) for use, embedder in _by_use(embedding)]
    return {
        ENCODER_TEXTS.name: [((use, result), n) for use, counts in rows for result, n in (
            ("encoded", counts.n_texts), ("expired", counts.n_expired), ("refused", counts.n_refused))],
        ENCODER_BATCHES.name: [((use,), counts.n_batches) for use, counts in rows],
        ENCODER_SPLITS.name: [((use,), counts.n_splits) for use, counts in rows],
        ENCODER_TOKENS.name: [((use, kind), n) for use, counts in rows for kind, n in (
            ("text", counts.n_tokens), ("padding", counts.n_padded - counts.n_tokens))]} if rows else {}


def encoder_gauges(embedding: Embedders | None) -> Samples:
    rows = list(_by_use(embedding))
    return {ENCODER_WAITING.name: [((use,), embedder.n_waiting_tokens) for use, embedder in rows],
            ENCODER_OVERRUN.name: [((use,), embedder.n_overrun_threads) for use, embedder in rows],
            ENCODER_STUCK.name: [((use,), float(embedder.is_stuck)) for use, embedder in rows]} if rows else {}
