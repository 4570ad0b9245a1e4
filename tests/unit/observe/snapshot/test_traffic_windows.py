"""Parts of workers and slots, added up."""

import sys
import tracemalloc
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.events import RequestDone
from stayfast.observe.snapshot.parts import TrafficPart, merge_parts, spread_of
from stayfast.observe.snapshot.traffic import MAX_SERIES, ClosedSlot
from stayfast.observe.snapshot.windows import (
    SLOTS_PER_FIVE,
    SLOTS_PER_HOUR,
    SLOTS_PER_MINUTE,
    SeriesWindows,
    TrafficWindows,
    merge_slots,
)
from tests.unit.observe.fact_rig import all_stages, done
from tests.unit.observe.snapshot.traffic_rig import by_series, closed, requests

MANY = st.lists(requests(), min_size=1, max_size=12)


def rounded(part: TrafficPart) -> object:
    """Without the last bits of float sums."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(
        part, saved_usd=round(part.saved_usd, 6), cost_usd={role: round(usd, 6) for role, usd in part.cost_usd.items()},
        by_ttft={quarter: [round(value, 6) for value in sums] for quarter, sums in part.by_ttft.items()})))


@given(MANY, st.integers(1, 3), st.randoms())
def test_merged_parts_equal_one_part_with_all_facts(facts: list[RequestDone], n_workers: int, rng: Random) -> None:
    """Whatever worker had a request, and in whatever order workers answer."""
    workers: list[list[RequestDone]] = [[] for _ in range(n_workers)]
    for fact in facts:
        rng.choice(workers).append(fact)
    slots = [slot for worker in workers for slot in closed(worker)]
    rng.shuffle(slots)
    (merged,) = merge_slots(slots)
    whole = by_series(closed(facts))
    assert {key: rounded(part) for key, part in by_series([merged]).items()} == {
        key: rounded(part) for key, part in whole.items()}


@given(MANY, MANY)
def test_subtracting_a_merged_part_restores_the_sum(some: list[RequestDone], others: list[RequestDone]) -> None:
    """All tables, times and sums."""
    for key, part in by_series(closed(others)).items():
        before = by_series(closed(some)).get(key, TrafficPart())
        whole = merge_parts((before, part))
        whole.subtract(part)
        assert rounded(whole) == rounded(before)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 5)), min_size=1, max_size=30), st.integers(0, 1000))
def test_windows_hold_the_slots_of_their_span(steps: list[tuple[int, int]], idle: int) -> None:
    """The minute to the slot, the others to their first whole minute."""
    windows, slots, number = SeriesWindows(), dict[int, int](), 1000
    for gap, n in steps:
        number += gap
        windows.advance(number)
        windows.add(number, TrafficPart(n=n, ttft_s={n: n}))
        slots[number] = n
    end = number + 1 + idle
    windows.advance(end)
    minute, five, hour = windows.sums
    assert minute.n == sum(n for at, n in slots.items() if at >= end - SLOTS_PER_MINUTE)
    for whole, n_slots in ((five, SLOTS_PER_FIVE), (hour, SLOTS_PER_HOUR)):
        assert (sum(n for at, n in slots.items() if at >= end - n_slots) <= whole.n
                <= sum(n for at, n in slots.items() if at >= end - n_slots - SLOTS_PER_MINUTE))
    for whole in windows.sums:
        assert sum(whole.ttft_s.values()) == whole.n


@given(MANY)
def test_coarse_times_add_up_and_stay_within_their_error(facts: list[RequestDone]) -> None:
    """Coarsening before a sum equals coarsening after it; a percentile moves by 4.5 % at most."""
    parts = list(by_series(closed(facts)).values())
    whole = merge_parts(parts)
    assert rounded(merge_parts(part.coarse() for part in parts)) == rounded(whole.coarse())
    exact, coarse = spread_of(whole.queue_s), spread_of(whole.coarse().queue_s)
    assert coarse.n == exact.n
    assert exact.p95 is not None
    assert coarse.p95 == pytest.approx(exact.p95, rel=0.045)


def test_windows_are_empty_after_an_idle_hour() -> None:
    """And the series can be dropped."""
    windows = SeriesWindows()
    windows.add(7, TrafficPart(n=3, cost_usd={"first": 0.1}))
    is_idle = [windows.is_idle]
    windows.advance(7 + SLOTS_PER_HOUR + 2 * SLOTS_PER_MINUTE)
    assert [*is_idle, windows.is_idle] == [False, True]
    assert windows.sums == (TrafficPart(), TrafficPart(), TrafficPart())


def test_series_beyond_the_limit_are_summed_as_other() -> None:
    """Workers may bring different ones."""
    windows = TrafficWindows()
    for worker in ("a", "b"):
        for _ in windows.add_in_steps([ClosedSlot(1, [(f"{worker}{n}", "u", TrafficPart(n=1)) for n in range(MAX_SERIES)])]):
            pass
    assert len(windows.series) == MAX_SERIES + 1
    assert windows.series["(other)", "(other)"].sums[0].n == MAX_SERIES


@pytest.mark.parametrize("n_requests", [50, 1000])
def test_memory_of_a_busy_series_is_bounded(n_requests: int, capsys: pytest.CaptureFixture[str]) -> None:
    """An hour of slots with varied times; the bytes are printed."""
    rng = Random(1)

    def fact() -> RequestDone:
        ttft_s = rng.lognormvariate(-1, 0.6)
        stages = all_stages(lambda: rng.lognormvariate(-5, 1))
        return done(ttft_s=ttft_s, ended_at=1.0 + 3 * ttft_s, stages=stages, tpot_s=rng.lognormvariate(-4, 0.3),
                    gap_max_s=rng.lognormvariate(-3, 0.5), queue_s=rng.lognormvariate(-7, 1))

    parts = [by_series(closed(fact() for _ in range(n_requests)))["m", "u"] for _ in range(5)]
    tracemalloc.start()
    windows = SeriesWindows()
    for number in range(SLOTS_PER_HOUR + 24):
        windows.advance(number)
        windows.add(number, parts[number % 5])
    n_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with capsys.disabled():
        sys.stdout.write(f"\nwindows of a series with {n_requests} requests in 5 s: {n_bytes / 1024:.0f} KiB\n")
    assert n_bytes < 1_200_000
