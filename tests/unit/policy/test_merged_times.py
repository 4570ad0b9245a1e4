"""Histograms of several processes as one."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.histogram import LogHistogram
from stayfast.policy.merged_times import MAX_BYTES, MAX_KINDS, MergedTimes, bound_times, merge_times

SECONDS = st.lists(st.floats(0.001, 100), max_size=30)


def times_of(ended: list[float], cut_off: list[float]) -> MergedTimes:
    """Two histograms of these values."""
    packed = []
    for values in (ended, cut_off):
        histogram = LogHistogram()
        for seconds in values:
            histogram.add(seconds)
        packed.append(histogram.pack())
    return MergedTimes(*packed)


@given(SECONDS, SECONDS, SECONDS)
def test_merge_is_as_if_one_process_had_all(one: list[float], other: list[float], cut_off: list[float]) -> None:
    merged = merge_times([{"k": times_of(one, cut_off)}, {"k": times_of(other, [])}, {"x": times_of([1.0], [])}])
    assert merged["k"] == times_of(one + other, cut_off)
    assert merged["x"].n == 1


@given(st.dictionaries(st.text("abc", min_size=1), SECONDS, max_size=10))
def test_order_of_exports_does_not_matter(values: dict[str, list[float]]) -> None:
    exports = [{"k": times_of(seconds, [])} for seconds in values.values()]
    assert merge_times(exports) == merge_times(reversed(exports))


def test_bounds_drop_the_kinds_with_most_samples() -> None:
    """Their owners have enough of their own."""
    many = {f"k{n}": times_of([0.1] * (n + 1), []) for n in range(MAX_KINDS + 10)}
    assert set(bound_times(many)) == {f"k{n}" for n in range(MAX_KINDS)}
    wide = {f"k{n}": times_of([0.001 * 1.03**step for step in range(400)], []) for n in range(100)}
    bounded = bound_times(wide | {"rare": times_of([1.0], [])})
    assert "rare" in bounded
    assert sum(times.n_bytes for times in bounded.values()) <= MAX_BYTES
