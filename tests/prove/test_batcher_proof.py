"""The claim about batches of texts holds in a short run, and falls short of broken batchers."""

import asyncio
from math import inf
from threading import Event

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.lab.batching.encoder_sim import LIMITS, PolicyBatcher
from stayfast.lab.claims.batcher import HELD_S, measure_overload, measure_padding, send_with_poison
from stayfast.policy.batching import queue
from stayfast.policy.batching.cost import BatchCost
from stayfast.policy.batching.queue import BatchQueue, PendingText, QueueFull
from tests.prove.running import short_figures

N = 1_500


class WordModel:
    """Tokens are words; all vectors are alike."""

    id = "words"
    n_dims = 2
    can_pad = True

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        return [hash(word) for word in text.split()], True

    def encode(self, batch: list[list[int]]) -> NDArray[np.float32]:
        return np.ones((len(batch), 2), np.float32)


def fail() -> None:
    raise RuntimeError("poison")


def test_padding_claim_holds() -> None:
    assert short_figures(measure_padding(N, 1)) == []


def test_padding_claim_without_buckets_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BUCKETS", (10**9,))
    monkeypatch.setattr(queue, "MAX_WASTE", 1.0)
    monkeypatch.setattr(BatchCost, "tokens_worth_a_batch", property(lambda cost: inf))
    monkeypatch.setattr("stayfast.lab.claims.batcher.PolicyBatcher", wide_batcher)
    short = short_figures(measure_padding(N, 1))
    assert "most padding of a batch, at both loads" in short
    assert "busy: p99 of short texts, of that of one by one" in short


def wide_batcher() -> PolicyBatcher:
    return PolicyBatcher(LIMITS._replace(max_batch_tokens=8 * 256))


def test_overload_claim_holds() -> None:
    assert short_figures(measure_overload(1)) == []


@pytest.mark.parametrize("retry_after_s", [0.05, 0.2])
def test_overload_claim_with_one_time_for_all_falls_short(monkeypatch: pytest.MonkeyPatch, retry_after_s: float) -> None:
    refuse = BatchQueue.refuse

    def refuse_at_once(self: BatchQueue[PendingText], lengths: list[int], now: float) -> QueueFull | None:
        return QueueFull(retry_after_s) if refuse(self, lengths, now) is not None else None

    monkeypatch.setattr(BatchQueue, "refuse", refuse_at_once)
    assert any("Retry-After" in name for name in short_figures(measure_overload(1)))


def test_overload_claim_without_a_bound_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchQueue, "refuse", lambda self, lengths, now: None)
    assert any("late or never" in name for name in short_figures(measure_overload(1)))


def test_poison_claim_without_splits_counts_the_companions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(send_with_poison(WordModel(), fail, 1))[0] == 1
    monkeypatch.setattr("stayfast.lab.claims.batcher.HANG_S", 0.2)
    monkeypatch.setattr(BatchQueue, "split", lambda self, texts: None)
    assert asyncio.run(send_with_poison(WordModel(), fail, 1))[0] > 1


def test_poison_claim_that_hangs_holds_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an overrun, its whole batch and all behind it wait."""
    def hang() -> None:
        Event().wait(2 * HELD_S)

    _, times_s = asyncio.run(send_with_poison(WordModel(), hang, 1))
    assert sum(seconds >= HELD_S for seconds in times_s) == 0
    monkeypatch.setattr(queue, "OVERRUN", inf)
    _, times_s = asyncio.run(send_with_poison(WordModel(), hang, 1))
    assert sum(seconds >= HELD_S for seconds in times_s) > 0
