"""One modelled encoder in virtual time, and batchers for it: the policy's, and those that users have today.

The encoder takes START_S for a batch and TOKEN_S for each token of it, padding included. It runs one batch at a time.
"""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Final, NamedTuple, Protocol

from stayfast.policy.batching.queue import BatchQueue, PendingText, QueueLimits, TextBatch

START_S, TOKEN_S = 0.0004, 0.0001  # about MiniLM in int8 on one core
LONG: Final = 256
SHORT: Final = (6, 18)
ONE_LONG_IN: Final = 8
LIMITS: Final = QueueLimits(max_batch_tokens=256, max_waiting_tokens=1 << 30, patience_s=0.02)


class SimulatedText(PendingText, eq=False):
    """done_at: inf until it is encoded."""

    done_at: float = inf

    @property
    def took_s(self) -> float:
        return self.done_at - self.queued_at


class Batcher(Protocol):
    """Decides what an idle encoder runs."""

    def add(self, text: SimulatedText) -> None: ...

    def take(self, now: float) -> list[SimulatedText]:
        """The next batch; empty: wait."""

    def wakes_at(self) -> float:
        """When `take` is to be tried again although nothing arrives; inf: never."""

    def finish(self, batch: Sequence[SimulatedText], seconds: float) -> None: ...


class FixedBatcher:
    """Batches of `size` in order of arrival; an incomplete one starts after `wait_s`. A size of 1: one by one."""

    def __init__(self, size: int, wait_s: float = 0.0) -> None:
        self._size = size
        self._wait_s = wait_s
        self._waiting: list[SimulatedText] = []

    def add(self, text: SimulatedText) -> None:
        self._waiting.append(text)

    def take(self, now: float) -> list[SimulatedText]:
        if len(self._waiting) < self._size and now < self.wakes_at():
            return []
        batch, self._waiting = self._waiting[:self._size], self._waiting[self._size:]
        return batch

    def wakes_at(self) -> float:
        return self._waiting[0].queued_at + self._wait_s if self._waiting else inf

    def finish(self, batch: Sequence[SimulatedText], seconds: float) -> None:
        """Nothing is learned."""


class PolicyBatcher:
    """The policy's queue."""

    def __init__(self, limits: QueueLimits = LIMITS) -> None:
        self.queue: BatchQueue[SimulatedText] = BatchQueue(limits)
        self.worst_waste = 0.0
        self._batch: TextBatch[SimulatedText] | None = None

    def add(self, text: SimulatedText) -> None:
        self.queue.add(text)

    def take(self, now: float) -> list[SimulatedText]:
        self.queue.drop_expired(now)
        self._batch = self.queue.take_batch()
        if self._batch is None:
            return []
        self.worst_waste = max(self.worst_waste, 1.0 - self._batch.n_tokens / self._batch.n_padded)
        return self._batch.texts

    def wakes_at(self) -> float:
        return inf

    def finish(self, batch: Sequence[SimulatedText], seconds: float) -> None:
        if self._batch is not None:
            self.queue.finish(self._batch, seconds)
        self._batch = None


class SimulatedRun(NamedTuple):
    """waste: share of padding in all that was computed."""

    texts: list[SimulatedText]
    waste: float

    def times_s(self, *, short: bool = False) -> list[float]:
        return [text.took_s for text in self.texts if text.n_tokens < LONG or not short]


def draw_texts(n: int, per_s: float, rng: Random) -> list[SimulatedText]:
    """Texts of a Poisson process; each is long with a chance of 1 in ONE_LONG_IN."""
    texts, at = [], 0.0
    for _ in range(n):
        at += rng.expovariate(per_s)
        texts.append(SimulatedText(LONG if rng.randrange(ONE_LONG_IN) == 0 else rng.randint(*SHORT), at))
    return texts


def usual_cost_s() -> float:
    """Of one text that runs alone, on average."""
    short = sum(SHORT) / 2
    return START_S + TOKEN_S * ((ONE_LONG_IN - 1) * short + LONG) / ONE_LONG_IN


def batch_cost_s(batch: Sequence[SimulatedText]) -> float:
    return START_S + TOKEN_S * len(batch) * max(text.n_tokens for text in batch)


def run_encoder(batcher: Batcher, texts: Sequence[SimulatedText]) -> SimulatedRun:
    """Encode texts that arrive at their `queued_at`, in this order."""
    now, number, n_padded, n_tokens = 0.0, 0, 0, 0
    while True:
        while number < len(texts) and texts[number].queued_at <= now:
            batcher.add(texts[number])
            number += 1
        batch = batcher.take(now)
        if not batch:
            next_at = min(texts[number].queued_at if number < len(texts) else inf, batcher.wakes_at())
            if next_at == inf:
                return SimulatedRun(list(texts), 1.0 - n_tokens / n_padded if n_padded else 0.0)
            now = max(now, next_at)
            continue
        seconds = batch_cost_s(batch)
        now += seconds
        for text in batch:
            text.done_at = now
        n_padded += len(batch) * max(text.n_tokens for text in batch)
        n_tokens += sum(text.n_tokens for text in batch)
        batcher.finish(batch, seconds)
