"""Tallies by key and slot, and their sums over workers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.snapshot import Spread
from stayfast.observe.snapshot.tallies import OTHER, PackedTally, RowTally, TallyWindow, merge_tallies, spread_of
from stayfast.policy.histogram import LogHistogram

VALUES = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.integers(0, 9)), max_size=30)


def tally_of(values: list[tuple[str, float, int]]) -> RowTally:
    tally = RowTally()
    for name, value, mark in values:
        tally.counts[name] += 1
        tally.histograms[name].add(value)
        tally.pairs[name].add_logs(value, value + 1)
        tally.marks[name].add(mark)
    return tally


@given(VALUES, VALUES)
def test_merge_tallies_any_two_workers_is_the_tally_of_all(one: list[tuple[str, float, int]],
                                                           other: list[tuple[str, float, int]]) -> None:
    parts = [{"x": msgspec.msgpack.decode(msgspec.msgpack.encode(tally_of(values).pack()), type=PackedTally)}
             for values in (one, other)]
    merged, whole = merge_tallies(parts)["x"].pack(), tally_of([*one, *other]).pack()
    assert (merged.counts, merged.histograms, merged.marks) == (whole.counts, whole.histograms, whole.marks)
    assert {name: sums.n for name, sums in merged.pairs.items()} == {name: sums.n for name, sums in whole.pairs.items()}


def test_window_old_slots_are_forgotten() -> None:
    window = TallyWindow(60.0, 10.0)
    for second in range(0, 100, 10):
        window.at("x", float(second)).counts["n"] += 1
    assert window.collect(95.0)["x"].counts["n"] == 7  # 30 to 90: the span and one slot more
    assert window.collect(140.0)["x"].counts["n"] == 2
    assert window.collect(1000.0) == {}


def test_window_values_after_a_collection_are_added() -> None:
    window = TallyWindow(60.0, 10.0)
    window.at("x", 1.0).counts["n"] += 1
    window.collect(12.0)
    window.at("x", 13.0).counts["n"] += 1
    assert window.collect(14.0)["x"].counts["n"] == 2
    window.at("x", 15.0).counts["n"] += 1
    assert window.collect(16.0)["x"].counts["n"] == 3


def test_window_too_many_keys_share_one() -> None:
    window = TallyWindow(60.0, 10.0, max_keys=3)
    for number in range(10):
        window.at(f"k{number}", 1.0).counts["n"] += 1
    found = window.collect(2.0)
    assert set(found) == {"k0", "k1", "k2", OTHER}
    assert found[OTHER].counts["n"] == 7


def test_spread_of_values_are_percentiles_and_zero_stays_zero() -> None:
    histogram = LogHistogram()
    for value in [0.0] * 60 + [100.0] * 40:
        histogram.add(value)
    spread = spread_of(histogram)
    assert (spread.n, spread.p50) == (100, 0.0)
    assert spread.p99 == pytest.approx(100, rel=0.011)
    assert spread_of(LogHistogram()) == Spread()
