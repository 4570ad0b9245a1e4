"""policy.batching.queue: which texts share a batch, and who is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.batching.cost import MIN_BATCHES
from stayfast.policy.batching.queue import (
    BUCKETS,
    FIRST_OVERRUN_S,
    MAX_WASTE,
    STRETCH,
    BatchQueue,
    PendingText,
    QueueLimits,
)

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=60)


def queue_of(*texts: PendingText, max_batch_tokens: int = 256, max_waiting_tokens: int = 1 << 20, patience_s: float = 0.02,
             can_pad: bool = True, per_batch_s: float = 1.0, per_token_s: float = 0.001) -> BatchQueue[PendingText]:
    """A queue whose cost is known: by default padding is cheap."""
    queue: BatchQueue[PendingText] = BatchQueue(QueueLimits(max_batch_tokens, max_waiting_tokens, patience_s, can_pad))
    for n in range(MIN_BATCHES + 8):
        queue.cost.add_batch(50 + 10 * n, per_batch_s + per_token_s * (50 + 10 * n))
    for text in texts:
        queue.add(text)
    return queue


def drain(queue: BatchQueue[PendingText]) -> list[list[PendingText]]:
    batches = []
    while (batch := queue.take_batch()) is not None:
        batches.append(batch.texts)
        queue.finish(batch, 1.0)
    return batches


def lengths(batches: list[list[PendingText]]) -> list[list[int]]:
    return [[text.n_tokens for text in batch] for batch in batches]


@given(LENGTHS, st.integers(1, 512), st.booleans())
def test_batches_hold_each_text_once_within_waste_and_budget(sizes: list[int], budget: int, can_pad: bool) -> None:
    texts = [PendingText(n, float(number)) for number, n in enumerate(sizes)]
    batches = drain(queue_of(*texts, max_batch_tokens=budget, can_pad=can_pad))
    assert sorted(id(text) for batch in batches for text in batch) == sorted(map(id, texts))
    for batch in batches:
        padded = len(batch) * max(text.n_tokens for text in batch)
        assert padded <= budget or len(batch) == 1
        assert padded - sum(text.n_tokens for text in batch) <= MAX_WASTE * padded
        assert can_pad or len({text.n_tokens for text in batch}) == 1
        assert len({sum(text.n_tokens > longest for longest in BUCKETS) for text in batch}) == 1


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 100)), min_size=1, max_size=40))
def test_leader_of_each_batch_is_the_most_urgent(drawn: list[tuple[int, float]]) -> None:
    """Without learned costs, the order is that of the deadlines."""
    queue: BatchQueue[PendingText] = BatchQueue(QueueLimits(256, 1 << 20, 1000.0))
    texts = [PendingText(n, 0.0, deadline) for n, deadline in drawn]
    for text in texts:
        queue.add(text)
    waiting = set(texts)
    while (batch := queue.take_batch()) is not None:
        assert batch.texts[0].deadline_at == min(text.deadline_at for text in waiting)
        waiting.difference_update(batch.texts)
    assert not waiting


@given(st.integers(1, 600), st.lists(st.integers(1, 40), min_size=1, max_size=200))
def test_no_text_starves_while_others_arrive(n_tokens: int, others: list[int]) -> None:
    """One arrives in each batch's time, for ever; the text runs once they are younger than its place."""
    queue = queue_of(per_batch_s=0.001, per_token_s=0.0001)
    now, text = 0.0, PendingText(n_tokens, 0.0)
    queue.add(text)
    place = max(0.02, STRETCH * (queue.cost.predict_s(n_tokens) or 0.0))
    for number in range(100_000):
        queue.add(PendingText(others[number % len(others)], now, now + 0.001))
        batch = queue.take_batch()
        assert batch is not None
        if text in batch.texts:
            break
        seconds = queue.cost.predict_s(batch.n_padded) or 0.0
        queue.finish(batch, seconds)
        now += seconds
    assert now <= place + 0.1


def test_text_longer_than_the_budget_runs_alone() -> None:
    """It neither waits for ever nor takes others along."""
    assert lengths(drain(queue_of(*(PendingText(300, 0.0) for _ in range(3))))) == [[300], [300], [300]]


def test_long_text_waits_behind_short_ones_in_proportion_to_its_cost() -> None:
    long, short = PendingText(512, 0.0), PendingText(10, 0.05)
    assert lengths(drain(queue_of(long, short, per_batch_s=0.0, per_token_s=0.001))) == [[10], [512]]
    late = PendingText(10, 3.0)
    assert lengths(drain(queue_of(long, late, per_batch_s=0.0, per_token_s=0.001))) == [[512], [10]]


def test_large_request_waits_behind_small_ones() -> None:
    bulk = [PendingText(10, 0.0, n_request_tokens=1000) for _ in range(3)]
    small = PendingText(12, 0.1)
    assert drain(queue_of(*bulk, small, max_batch_tokens=24, per_batch_s=0.0, per_token_s=0.001))[0] == [small]


def test_padding_that_costs_more_than_a_batch_is_avoided() -> None:
    texts = [PendingText(n, 0.0) for n in (9, 12, 9, 9)]
    assert lengths(drain(queue_of(*texts))) == [[9, 9, 9, 12]]
    assert lengths(drain(queue_of(*texts, per_batch_s=0.001, per_token_s=0.001))) == [[9, 9, 9], [12]]


def test_unknown_costs_batch_equal_lengths_only() -> None:
    queue: BatchQueue[PendingText] = BatchQueue(QueueLimits(256, 1 << 20, 0.02))
    for n in (9, 12, 9, 9):
        queue.add(PendingText(n, 0.0))
    assert lengths(drain(queue)) == [[9, 9, 9], [12]]


def test_split_texts_run_alone_in_their_order() -> None:
    queue = queue_of(*(PendingText(9, float(n)) for n in range(4)))
    batch = queue.take_batch()
    assert batch is not None
    assert len(batch.texts) == 4
    queue.finish(batch, 1.0)
    queue.split(batch.texts)
    assert drain(queue) == [[text] for text in batch.texts]


def test_expired_texts_are_dropped_before_they_run() -> None:
    late, good = PendingText(9, 0.0, 1.0), PendingText(9, 0.0, 3.0)
    queue = queue_of(late, good)
    assert queue.drop_expired(1.0) == [late]
    assert drain(queue) == [[good]]
    assert queue.n_waiting_tokens == 0


def test_overrun_is_three_predictions_and_unknown_without_one() -> None:
    batch = queue_of(PendingText(100, 0.0), per_batch_s=1.0, per_token_s=0.01).take_batch()
    assert batch is not None
    assert batch.overrun_s == pytest.approx(6.0, rel=0.01)
    unknown: BatchQueue[PendingText] = BatchQueue(QueueLimits(256, 1000, 0.02))
    unknown.add(PendingText(100, 0.0))
    first = unknown.take_batch()
    assert first is not None
    assert first.overrun_s == FIRST_OVERRUN_S


def test_full_queue_refuses_with_the_time_until_there_is_room() -> None:
    """100 tokens a second: 50 too many need half a second. Running tokens count."""
    queue = queue_of(max_waiting_tokens=200)
    for _ in range(2):
        queue.add(PendingText(100, 0.0))
    batch = queue.take_batch()
    assert batch is not None
    queue.finish(batch, len(batch.texts))
    for _ in range(2):
        queue.add(PendingText(100, 0.0))
    assert queue.take_batch() is not None
    full = queue.refuse([30, 20], 0.0)
    assert full is not None
    assert full.retry_after_s == pytest.approx(0.5)
    assert queue.refuse([], 0.0) is None


def test_request_above_the_bound_is_never_accepted() -> None:
    full = queue_of(max_waiting_tokens=100).refuse([60, 41], 0.0)
    assert full is not None
    assert full.retry_after_s is None


def test_refused_requests_get_times_one_after_another() -> None:
    """Those that come back at their time must find room; promises of the past count no more."""
    queue = queue_of(max_waiting_tokens=100)
    queue.add(PendingText(100, 0.0))
    batch = queue.take_batch()
    assert batch is not None
    queue.finish(batch, 1.0)
    queue.add(PendingText(100, 0.0))
    waits = [full.retry_after_s for _ in range(3) if (full := queue.refuse([50], 0.0)) is not None]
    assert waits == pytest.approx([0.5, 1.0, 1.5])
    later = queue.refuse([50], 10.0)
    assert later is not None
    assert later.retry_after_s == pytest.approx(0.5)
