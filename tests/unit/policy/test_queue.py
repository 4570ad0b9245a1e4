"""policy.queue: order, bounds and patience."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.queue import Queue, QueueConfig, QueueEntry

A, B = TenantShare("a"), TenantShare("b")


def waiting(name: str, *, band: int = 2, share: TenantShare = A, at: float = 0.0,
            deadline_at: float = 600.0) -> QueueEntry[str]:
    """One request."""
    return QueueEntry(name, band, share, at, deadline_at)


def drain(queue: Queue[str]) -> str:
    """The order in which all go on."""
    found = ""
    while (popped := queue.pop(lambda band: True)) is not None:
        popped.share.served += 1
        found += popped.item
    return found


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for share in (A, B):
        share.served = share.n_waiting = 0


def test_queue_pop_orders_by_band_tenant_deadline() -> None:
    """A higher band goes first; in a band the tenant with less service; of a tenant the earlier deadline."""
    queue: Queue[str] = Queue(QueueConfig())
    for item in (waiting("x", band=4, share=B), waiting("l", deadline_at=9.0), waiting("e", deadline_at=5.0),
                 waiting("b", share=B), waiting("h", band=0)):
        assert queue.push(item) is None
    A.served = 0.5
    assert drain(queue) == "hbelx"
    assert (queue.n, A.n_waiting, B.n_waiting) == (0, 0, 0)


def test_queue_ageing_limits_overtaking() -> None:
    """Ageing: ten seconds later even the most urgent stands behind it."""
    queue: Queue[str] = Queue(QueueConfig(aging_s=10))
    queue.push(waiting("o", deadline_at=600.0))
    queue.push(waiting("u", at=5.0, deadline_at=6.0))
    queue.push(waiting("v", at=9.9, deadline_at=10.1))
    assert drain(queue) == "uov"


def test_queue_pop_skips_bands_without_room() -> None:
    """A band at its ceiling lets others pass, lower bands too."""
    queue: Queue[str] = Queue(QueueConfig())
    queue.push(waiting("a", band=1))
    queue.push(waiting("b", band=3, share=B))
    popped = queue.pop(lambda band: band == 3)
    assert popped is not None
    assert popped.item == "b"
    assert queue.pop(lambda band: band == 3) is None


def test_queue_full_pushes_out_noisiest_of_lowest_band() -> None:
    """A new request stays if a noisier tenant waits, and is rejected if its own tenant is the noisy one."""
    queue: Queue[str] = Queue(QueueConfig(max_queue=3))
    for name in "123":
        assert queue.push(waiting(name, at=float(name))) is None
    gone = queue.push(waiting("q", share=B, at=4.0))
    assert gone is not None
    assert gone.item == "3"
    newcomer = waiting("4", at=5.0)
    assert queue.push(newcomer) is newcomer
    low = waiting("z", band=4, share=B, at=6.0)
    assert queue.push(low) is low
    gone = queue.push(waiting("h", band=0, at=7.0))
    assert gone is not None
    assert gone.item == "2"


def test_queue_standing_lane_waits_target_only() -> None:
    """Up to max_wait; once the lane has not been empty for so long only target_wait, but for its first."""
    queue: Queue[str] = Queue(QueueConfig(max_wait_s=2.0, target_wait_s=0.1))
    for n in range(30):
        queue.push(waiting(f"{n} ", at=n * 0.1))
    assert [late.item for late in queue.pop_overdue(1.99)] == []
    assert [late.item for late in queue.pop_overdue(2.0)] == ["0 "]
    late = {item.item for item in queue.pop_overdue(2.95)}
    assert late == {f"{n} " for n in range(1, 29)}
    assert queue.n == 1


def test_queue_standing_is_counted_per_tenant() -> None:
    """Each lane's own standing counts."""
    queue: Queue[str] = Queue(QueueConfig(max_wait_s=2.0, target_wait_s=0.1))
    for n in range(30):
        queue.push(waiting("n", at=n * 0.1))
    queue.push(waiting("q", share=B, at=2.0))
    queue.push(waiting("r", share=B, at=2.0))
    assert "q" not in [late.item for late in queue.pop_overdue(2.95)]


def _stand(queue: Queue[str], band: int) -> float:
    """Fill a lane for 3 s, and reject what is overdue every 50 ms. Returns the end."""
    for n in range(60):
        queue.push(waiting(f"{n}", band=band, at=n * 0.05))
        queue.pop_overdue(n * 0.05)
    return 3.0


def test_queue_standing_lane_below_a_higher_band_first_request_waits_target() -> None:
    """The next place is the higher band's, so the first request of a lower one would wait in vain."""
    queue: Queue[str] = Queue(QueueConfig(max_wait_s=2.0, target_wait_s=0.1))
    now = _stand(queue, band=4)
    queue.push(waiting("high", band=1, share=B, at=now))
    late = [item.item for item in queue.pop_overdue(now + 0.5)]
    assert queue.n == 1
    assert "59" in late


def test_queue_standing_lane_emptied_by_rejections_stays_standing() -> None:
    """Until max_wait has passed without a request; a new queue then gets the long wait again."""
    queue: Queue[str] = Queue(QueueConfig(max_wait_s=2.0, target_wait_s=0.1))
    now = _stand(queue, band=4)
    queue.push(waiting("high", band=1, share=B, at=now))
    queue.pop_overdue(now + 0.5)
    assert queue.n == 1  # the lane is empty
    queue.push(waiting("soon", band=4, at=now + 1.0))
    assert [item.item for item in queue.pop_overdue(now + 1.2)] == ["soon"]
    queue.push(waiting("late", band=4, at=now + 3.1))
    assert "late" not in [item.item for item in queue.pop_overdue(now + 4.0)]


def test_queue_standing_lane_emptied_by_places_stays_standing_for_target_wait() -> None:
    queue: Queue[str] = Queue(QueueConfig(max_wait_s=2.0, target_wait_s=0.1))
    for gap_s, expected in ((0.08, ["y"]), (0.2, [])):
        now = _stand(queue, band=2)
        drain(queue)
        queue.push(waiting("x", at=now - 0.05 + gap_s))
        queue.push(waiting("y", at=now - 0.05 + gap_s))
        assert [item.item for item in queue.pop_overdue(now + 0.5)] == expected
        drain(queue)


def test_queue_short_queue_emptied_by_places_is_not_standing() -> None:
    """A busy queue that drains again and again gets the long wait."""
    queue: Queue[str] = Queue(QueueConfig(max_wait_s=2.0, target_wait_s=0.1))
    for n in range(100):
        queue.push(waiting("n", at=n * 0.05))
        drain(queue)
    queue.push(waiting("x", at=5.0))
    queue.push(waiting("y", at=5.0))
    assert queue.pop_overdue(5.5) == []


def test_queue_predicted_s_follows_littles_law() -> None:
    """Little's law, with turns among tenants: a noisy one's queue is not before a quiet one's first request."""
    queue: Queue[str] = Queue(QueueConfig())
    assert queue.predict_wait_s(2, A, 4) == 0.0
    queue.record_service_time(2.0)
    for n in range(10):
        queue.push(waiting(str(n)))
    queue.push(waiting("h", band=1, share=B))
    assert queue.n_ahead(2, A) == 11
    assert queue.n_ahead(2, B) == 2
    assert queue.predict_wait_s(2, B, 4) == pytest.approx(3 * 2.0 / 4)


@given(st.lists(st.tuples(st.sampled_from("+-x?"), st.integers(0, 4), st.integers(0, 2), st.floats(0, 5)), max_size=120),
       st.integers(0, 8))
def test_queue_random_steps_lose_nothing(steps: list[tuple[str, int, int, float]], max_queue: int) -> None:
    """Whatever happens: each request is waiting, or came out exactly once; counts are true and bounds hold."""
    shares = [TenantShare(str(n)) for n in range(3)]
    queue: Queue[int] = Queue(QueueConfig(max_queue=max_queue, max_wait_s=1.0, target_wait_s=0.1))
    inside: dict[int, QueueEntry[int]] = {}
    now = 0.0
    for n, (step, band, who, amount) in enumerate(steps):
        now += amount
        if step == "+":
            item = QueueEntry(n, band, shares[who], now, now + amount)
            inside[n] = item
            gone = queue.push(item)
            out = [] if gone is None else [gone]
        elif step == "-":
            popped = queue.pop(lambda band: band < 4)
            out = [] if popped is None else [popped]
        elif step == "x" and inside:
            out = [Random(n).choice(list(inside.values()))]
            queue.remove(out[0])
        else:
            out = queue.pop_overdue(now)
            assert all(now - item.queued_at < 1.0 for key, item in inside.items() if item not in out)
        for item in out:
            assert inside.pop(item.item) is item
        assert queue.n == len(inside) == sum(n for _, n in queue.depths()) <= max(0, max_queue)
        assert [share.n_waiting for share in shares] == [
            sum(item.share is share for item in inside.values()) for share in shares]


def test_queue_remove_unknown_entry_raises() -> None:
    """An error, and nothing changes."""
    queue: Queue[str] = Queue(QueueConfig())
    queue.push(waiting("a"))
    with pytest.raises(KeyError):
        queue.remove(waiting("a"))
    assert queue.n == 1


def test_queue_config_out_of_bounds_is_rejected() -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=r"^target_wait_s must be"):
        QueueConfig(max_wait_s=1.0, target_wait_s=2.0)


def test_queue_served_client_left_never_lowers_mean() -> None:
    """Its answer would have taken longer than it stayed."""
    queue: Queue[str] = Queue(QueueConfig())
    queue.record_service_time(2.0)
    queue.record_service_time(0.1, has_left=True)
    assert queue.service_s == 2.0
    queue.record_service_time(12.0, has_left=True)
    assert queue.service_s > 2.0


def test_queue_full_pushes_out_tenant_with_most_waiting_for_its_weight() -> None:
    """Six requests of a tenant of weight 4 are fewer for its weight than two of a tenant of weight 1."""
    heavy, light = TenantShare("heavy", 4.0), TenantShare("light", 1.0)
    queue: Queue[str] = Queue(QueueConfig(max_queue=7))
    for n in range(5):
        queue.push(waiting(f"h{n}", share=heavy, at=float(n)))
    for n in range(2):
        queue.push(waiting(f"l{n}", share=light, at=float(n)))
    gone = queue.push(waiting("h5", share=heavy, at=6.0))
    assert gone is not None
    assert gone.item == "l1"


def test_queue_full_with_equal_tenants_pushes_out_the_one_served_most() -> None:
    """Whichever of the two sent first."""
    for order in ("ab", "ba"):
        shares = {"a": TenantShare("a"), "b": TenantShare("b")}
        shares["b"].served = 10.0
        queue: Queue[str] = Queue(QueueConfig(max_queue=1))
        assert queue.push(waiting(order[0], share=shares[order[0]])) is None
        gone = queue.push(waiting(order[1], share=shares[order[1]]))
        assert gone is not None
        assert gone.item == "b"


def test_queue_full_pushes_out_the_latest_deadline_not_the_latest_arrival() -> None:
    """Ageing counts: a request that waits for long has an early key."""
    queue: Queue[str] = Queue(QueueConfig(max_queue=2, aging_s=10))
    queue.push(waiting("first", deadline_at=9.0))
    queue.push(waiting("second", at=1.0, deadline_at=4.0))
    gone = queue.push(waiting("third", at=2.0, deadline_at=5.0))
    assert gone is not None
    assert gone.item == "first"
    aged: Queue[str] = Queue(QueueConfig(max_queue=2, aging_s=10))
    aged.push(waiting("old", deadline_at=600.0))
    aged.push(waiting("soon", at=8.0, deadline_at=17.0))
    gone = aged.push(waiting("late", at=9.0, deadline_at=18.0))
    assert gone is not None
    assert gone.item == "late"


def test_queue_full_pushes_out_of_the_lowest_band_with_requests() -> None:
    """Even if a higher band has more requests, and though the new request is in that band."""
    queue: Queue[str] = Queue(QueueConfig(max_queue=3))
    for name, band in (("h", 0), ("i", 0), ("low", 3)):
        queue.push(waiting(name, band=band))
    gone = queue.push(waiting("j", band=0))
    assert gone is not None
    assert gone.item == "low"
