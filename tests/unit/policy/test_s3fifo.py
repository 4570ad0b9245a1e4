"""What stays when there is no room."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.cache.s3fifo import LEAST_GHOSTS, MOST_SPARED, OVERHEAD_BYTES, S3Fifo

SIZE = 1000


def named(n: int) -> bytes:
    """A key."""
    return n.to_bytes(32, "big")


def room_for(n: int) -> int:
    """Bytes for so many entries of SIZE."""
    return n * (SIZE + OVERHEAD_BYTES)


def test_s3fifo_scan_evicts_no_popular_entry() -> None:
    """Ten thousand questions asked once pass by fifty that are asked repeatedly; LRU would evict all of these."""
    cache: S3Fifo[int] = S3Fifo(room_for(100))
    for _ in range(3):
        for n in range(50):
            if cache.get(named(n)) is None:
                cache.put(named(n), n, SIZE)
    for n in range(1000, 11_000):
        cache.put(named(n), n, SIZE)
    assert sum(cache.get(named(n)) == n for n in range(50)) == 50


def test_s3fifo_hit_rate_beats_lru() -> None:
    """On a Zipf load with a scan mixed in, its hit rate is at least that of LRU."""
    rng = Random(1)
    weights = [1 / (n + 1) for n in range(2000)]
    asked = rng.choices(range(2000), weights, k=20_000)
    asked = [n if at % 2 else 10_000 + at for at, n in enumerate(asked)]
    cache: S3Fifo[int] = S3Fifo(room_for(200))
    recent: dict[int, None] = {}
    n_hits = n_lru = 0
    for n in asked:
        if cache.get(named(n)) is not None:
            n_hits += 1
        else:
            cache.put(named(n), n, SIZE)
        if n in recent:
            n_lru += 1
            del recent[n]
        elif len(recent) == 200:
            del recent[next(iter(recent))]
        recent[n] = None
    assert n_hits > n_lru * 1.2


def test_s3fifo_returning_ghost_goes_to_main() -> None:
    """A key that is stored again soon after its eviction goes to main."""
    cache: S3Fifo[int] = S3Fifo(room_for(20))
    cache.put(named(0), 0, SIZE)
    for n in range(1, 25):
        cache.put(named(n), n, SIZE)
    assert cache.get(named(0)) is None
    cache.put(named(0), 0, SIZE)
    for n in range(100, 118):
        cache.put(named(n), n, SIZE)
    assert cache.get(named(0)) == 0


def test_s3fifo_oversized_value_removes_old_one() -> None:
    """The old value is not the answer any more."""
    cache: S3Fifo[int] = S3Fifo(room_for(2))
    cache.put(named(1), 1, SIZE)
    cache.put(named(1), 2, room_for(3))
    assert cache.get(named(1)) is None
    assert (len(cache), cache.n_bytes) == (0, 0)


STEPS = st.tuples(st.sampled_from(["get", "put", "remove"]), st.integers(0, 12), st.integers(0, 4000))


@given(st.lists(STEPS, max_size=120))
def test_s3fifo_bytes_are_bounded_and_add_up(steps: list[tuple[str, int, int]]) -> None:
    """For any steps: memory is bounded, each value is found under its key, and all bytes are counted."""
    cache: S3Fifo[tuple[int, int]] = S3Fifo(10_000)
    sizes: dict[int, int] = {}
    for what, n, size in steps:
        if what == "put":
            cache.put(named(n), (n, size), size)
            sizes[n] = size
        elif what == "remove":
            cache.remove(named(n))
            assert cache.get(named(n)) is None
        else:
            found = cache.get(named(n))
            assert found is None or found == (n, sizes[n])
        assert 0 <= cache.n_small_bytes <= cache.n_bytes <= cache.max_bytes
        there = [n for n in range(13) if cache.get(named(n)) is not None]
        assert len(cache) == len(there)
        assert cache.n_bytes == sum(sizes[n] + OVERHEAD_BYTES for n in there)


def test_s3fifo_removed_entries_leave_no_memory() -> None:
    """Ten thousand that come and are removed, where there is room for all, take no more than a few of them would."""
    cache: S3Fifo[int] = S3Fifo(room_for(100_000))
    cache.put(named(0), 0, SIZE)
    for n in range(1, 10_000):
        cache.put(named(n), n, SIZE)
        cache.remove(named(n))
    assert (len(cache), cache.n_bytes, cache.get(named(0))) == (1, room_for(1), 0)
    assert cache.n_queued <= 2 * (LEAST_GHOSTS + 1)
    assert list(cache.items()) == [(named(0), 0)]


def test_s3fifo_replaced_value_keeps_hits_and_place() -> None:
    """An answer that is renewed each minute is not treated as new."""
    cache: S3Fifo[int] = S3Fifo(room_for(20))
    cache.put(named(0), 0, SIZE)
    for _ in range(3):
        cache.get(named(0))
        cache.put(named(0), 1, SIZE + 1)
    for n in range(100, 125):
        cache.put(named(n), n, SIZE)
    assert cache.get(named(0)) == 1
    assert cache.peek(named(0)) == 1


def test_s3fifo_evicts_a_dozen_at_once() -> None:
    """So that most that come find room."""
    cache: S3Fifo[int] = S3Fifo(room_for(640))
    n_times = 0
    for n in range(2000):
        n_evicted = cache.n_evicted
        cache.put(named(n), n, SIZE)
        n_times += cache.n_evicted > n_evicted
    assert cache.n_evicted >= 1360
    assert n_times <= 1370 / 8


@pytest.mark.parametrize("n", [1, 2, 10, 63])
def test_s3fifo_small_memory_is_fully_used(n: int) -> None:
    """What is made free at once is less than an entry there: none goes too soon, and never the one that has just come."""
    cache: S3Fifo[int] = S3Fifo(room_for(n))
    for number in range(5 * n):
        cache.put(named(number), number, SIZE)
        assert cache.peek(named(number)) == number
        assert len(cache) == min(number + 1, n)


def test_s3fifo_eviction_time_is_bounded() -> None:
    """If all entries have hits, one is evicted after a bounded number of second chances."""
    cache: S3Fifo[int] = S3Fifo(room_for(3000))
    for n in range(3300):
        cache.put(named(n), n, SIZE)
        for _ in range(3):
            cache.get(named(n))
    for n in range(3300):
        for _ in range(3):
            cache.get(named(n))
    main = list(cache._main)  # noqa: SLF001 - the bound is on hits, which no caller can read
    n_before = sum(entry.n_hits for entry in main)
    n_evicted = cache.n_evicted
    while cache.n_evicted == n_evicted:
        n += 1
        cache.put(named(n), n, SIZE)
    assert len(main) > 2 * MOST_SPARED
    assert n_before - sum(entry.n_hits for entry in main) <= MOST_SPARED


def _all_in_main(n: int) -> S3Fifo[int]:
    """A full cache whose first entries are in main, without hits there; the first of them is evicted."""
    cache: S3Fifo[int] = S3Fifo(room_for(n))
    for number in range(n):
        cache.put(named(number), number, SIZE)
        for _ in range(2 + (number == 0)):
            cache.get(named(number))
    cache.put(named(1000), 0, SIZE)
    assert cache.peek(named(0)) is None  # hits in small earn no second chance in main
    return cache


def test_s3fifo_main_entry_with_a_hit_gets_one_second_chance() -> None:
    """Each turn costs a hit: it goes round once, and is evicted at its next turn without a further hit."""
    cache = _all_in_main(20)
    assert cache.get(named(1)) == 1
    cache.put(named(1001), 0, SIZE)
    assert (cache.peek(named(1)), cache.peek(named(2))) == (1, None)
    n = 1002
    while cache.peek(named(19)) is not None:
        cache.put(named(n), 0, SIZE)
        cache.get(named(n))
        cache.get(named(n))
        n += 1
    for _ in range(3):
        cache.put(named(n), 0, SIZE)
        cache.get(named(n))
        cache.get(named(n))
        n += 1
    assert cache.peek(named(1)) is None


def test_s3fifo_peek_gives_no_second_chance() -> None:
    """Inspecting an answer, or one that is removed and stored again, is no hit."""
    cache = _all_in_main(20)
    for _ in range(5):
        assert cache.peek(named(1)) == 1
    cache.put(named(1001), 0, SIZE)
    assert cache.peek(named(1)) is None
    cache.get(named(3))
    cache.remove(named(3))
    cache.put(named(3), 30, SIZE)
    for n in range(1002, 1006):
        cache.put(named(n), 0, SIZE)
    assert cache.peek(named(3)) is None
