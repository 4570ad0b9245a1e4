"""policy/routing/kv_event_order: duplicates, gaps, replays and restarts."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.kv_events import BlocksStored, KvBatch
from stayfast.policy.routing.block_index import BlockIndex, chain_root, hash_tokens
from stayfast.policy.routing.kv_event_order import AT_ONCE, KvEventOrder


def batch(number: int, ts: float | None = None) -> KvBatch:
    """Stores one block, of the token `number`."""
    return KvBatch(number, float(number) if ts is None else ts, (BlocksStored((number,), None, (number,), 1, "", "GPU"),))


def held(order: KvEventOrder, number: int) -> int | None:
    return order.index.n_held(hash_tokens([number], 1, chain_root()))


def order_with(n: int) -> KvEventOrder:
    """Connected since the engine's start, with batches up to n."""
    order = KvEventOrder(BlockIndex())
    assert order.connect(has_replay=True) == 0
    assert order.take_first(None)
    for number in range(n):
        assert order.take(batch(number), 0.0)
    return order


def test_order_from_the_start_is_complete() -> None:
    order = order_with(3)
    assert (held(order, 2), held(order, 9), order.index.is_complete, order.next_number) == (1, 0, True, 3)


def test_order_without_replay_begins_incomplete_unless_at_zero() -> None:
    for first, unknown in ((0, 0), (5, None)):
        order = KvEventOrder(BlockIndex())
        order.connect(has_replay=False)
        assert order.take(batch(first), 0.0)
        assert (held(order, first), held(order, 99)) == (1, unknown)


def test_order_duplicate_is_applied_once() -> None:
    order = order_with(3)
    assert order.take(batch(1), 0.0)
    assert (order.n_events, order.next_number) == (3, 3)


def test_order_gap_filled_by_replay_stays_complete() -> None:
    order = order_with(3)
    assert not order.take(batch(6), 0.0)
    for number in range(3, 7):
        order.take_replayed(batch(number), 0.0)
    order.close_gap(batch(6), 0.0)
    assert ([held(order, number) for number in (0, 4, 6, 9)], order.n_filled, order.n_gaps) == ([1, 1, 1, 0], 1, 0)


@pytest.mark.parametrize("replayed", [(), (5, 6)])
def test_order_gap_not_filled_forgets_what_was_before(replayed: tuple[int, ...]) -> None:
    order = order_with(3)
    assert not order.take(batch(6), 10.0)
    for number in replayed:
        order.take_replayed(batch(number), 10.0)
    order.close_gap(batch(6), 10.0)
    assert (held(order, 0), held(order, 6), order.n_gaps, order.next_number) == (None, 1, 1, 7)
    assert (order.n_recent_gaps(3000.0), order.n_recent_gaps(4000.0)) == (1, 0)


def test_order_restart_of_the_engine_begins_again() -> None:
    order = order_with(5)
    assert order.take(batch(0, ts=100.0), 0.0)
    assert (held(order, 4), held(order, 0), order.next_number, order.n_gaps) == (0, 1, 1, 0)


def test_order_restart_seen_late_needs_a_replay_from_zero() -> None:
    order = order_with(5)
    assert not order.take(batch(2, ts=100.0), 0.0)
    assert order.next_number == 0
    for number in range(3):
        order.take_replayed(batch(number, ts=98.0 + number), 0.0)
    order.close_gap(batch(2, ts=100.0), 0.0)
    assert (held(order, 2), held(order, 4), order.index.is_complete, order.n_filled) == (1, 0, True, 1)


def test_order_new_connection_to_the_same_engine_continues() -> None:
    order = order_with(5)
    order.disconnect()
    assert held(order, 0) is None
    assert order.connect(has_replay=True) == 4
    assert order.take_first(batch(4))
    for number in (4, 5, 6):
        order.take_replayed(batch(number), 0.0)
    assert (held(order, 0), held(order, 6), order.n_events, order.index.is_complete) == (1, 1, 7, True)


@pytest.mark.parametrize("first", [None, batch(4, ts=50.0), batch(7)])
def test_order_new_connection_to_another_engine_begins_again(first: KvBatch | None) -> None:
    order = order_with(5)
    order.disconnect()
    order.connect(has_replay=True)
    assert not order.take_first(first)
    assert order.connect(has_replay=True) == 0
    assert order.take_first(batch(0, ts=60.0))
    order.take_replayed(batch(0, ts=60.0), 0.0)
    assert (held(order, 0), held(order, 4), order.index.is_complete) == (1, 0, True)


def test_order_replay_that_begins_late_is_incomplete() -> None:
    order = KvEventOrder(BlockIndex())
    order.connect(has_replay=True)
    assert order.take_first(batch(40))
    order.take_replayed(batch(40), 0.0)
    assert (held(order, 40), held(order, 0)) == (1, None)


class LossyPublisher:
    """An engine that stores one new block a step, and restarts; its messages are lost and repeated."""

    def __init__(self, order: KvEventOrder, rng: Random, *, has_replay: bool, buffer: int) -> None:
        self.order = order
        self.rng = rng
        self.published: list[KvBatch] = []
        self.tokens: list[int] = []  # whose blocks it holds
        self._has_replay = has_replay
        self._buffer = buffer
        self._connect()

    def _connect(self) -> None:
        self.order.connect(has_replay=self._has_replay)
        while self._has_replay and not self.order.take_first(None):
            self.order.connect(has_replay=True)

    def step(self, token: int) -> None:
        rng, published = self.rng, self.published
        if published and rng.random() < 0.05:
            published.clear()
            self.tokens.clear()
            self.order.disconnect()
            self._connect()
        events = (BlocksStored((token,), None, (token,), 1, "", "GPU"),)
        published.append(KvBatch(len(published), float(token), events))
        self.tokens.append(token)
        if len(published) > 1 and rng.random() < 0.1:
            self._send(rng.choice(published[:-1]))
        if rng.random() < 0.8:
            self._send(published[-1])

    def _send(self, sent: KvBatch) -> None:
        order = self.order
        if order.take(sent, sent.ts):
            return
        for missed in self.published[-self._buffer:] if self._has_replay else ():
            if missed.number >= (order.next_number or 0):
                order.take_replayed(missed, sent.ts)
        order.close_gap(sent, sent.ts)


@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 8))
def test_order_lossy_transport_never_claims_what_is_not_there(seed: int, has_replay: bool, buffer: int) -> None:
    """What an index says that has the newest batch is so."""
    order = KvEventOrder(BlockIndex())
    engine = LossyPublisher(order, Random(seed), has_replay=has_replay, buffer=buffer)
    for token in range(60):
        engine.step(token)
        if order.next_number == len(engine.published):
            for other in range(token + 1):
                n_held = held(order, other)
                assert n_held is None or bool(n_held) == (other in engine.tokens)


def test_order_long_batch_is_applied_in_steps() -> None:
    order, step = order_with(0), AT_ONCE // 2
    n = 3 * step + 1
    events = tuple(BlocksStored((number,), None, (number,), 1) for number in range(n))
    assert order.take(KvBatch(0, 0.0, events), 0.0)
    counts = [len(order.index), *(len(order.index) for _ in order.apply_in_steps())]
    assert counts == [step, 2 * step, 3 * step, n]
    assert order.take(KvBatch(1, 1.0, tuple(BlocksStored((number,), None, (number,), 1) for number in range(n, 2 * n))), 0.0)
    assert order.take(KvBatch(2, 2.0, ()), 0.0)  # the rest comes first
    assert len(order.index) == 2 * n


def test_order_long_batch_before_a_gap_leaves_nothing() -> None:
    order = order_with(0)
    order.take(KvBatch(0, 0.0, tuple(BlocksStored((number,), None, (number,), 1) for number in range(1000))), 0.0)
    order.connect(has_replay=False)
    assert (list(order.apply_in_steps()), len(order.index)) == ([], 0)
