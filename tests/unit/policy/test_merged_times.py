"""Histograms of several processes as one."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.histogram import LogHistogram
from stayfast.policy.merged_times import (
    MAX_BYTES,
    MAX_KINDS,
    STEP,
    ElsewhereTimes,
    MergedTimes,
    TimesByKind,
    bound_times,
    merge_in_steps,
)

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


def merge_times(exports: Iterable[TimesByKind]) -> dict[str, MergedTimes]:
    """All steps at once."""
    whole: dict[str, MergedTimes] = {}
    for _ in merge_in_steps(exports, whole):
        pass
    return whole


def test_merge_stops_after_each_step() -> None:
    """Other tasks run there."""
    whole: dict[str, MergedTimes] = {}
    steps = merge_in_steps([{f"{n}": times_of([1.0], []) for n in range(2 * STEP)}], whole)
    next(steps)
    assert len(whole) == STEP
    assert len(list(steps)) == 1
    assert len(whole) == 2 * STEP


@given(SECONDS, SECONDS, SECONDS)
def test_merge_is_as_if_one_process_had_all(one: list[float], other: list[float], cut_off: list[float]) -> None:
    merged = merge_times([{"k": times_of(one, cut_off)}, {"k": times_of(other, [])}, {"x": times_of([1.0], [])}])
    assert merged["k"] == times_of(one + other, cut_off)
    assert merged["x"].n == 1


@given(st.dictionaries(st.text("abc", min_size=1), SECONDS, max_size=10))
def test_order_of_exports_does_not_matter(values: dict[str, list[float]]) -> None:
    exports = [{"k": times_of(seconds, [])} for seconds in values.values()]
    assert merge_times(exports) == merge_times(exports[::-1])


def test_bounds_drop_the_kinds_with_most_samples() -> None:
    """Their owners have enough of their own."""
    many = {f"k{n}": times_of([0.1] * (n + 1), []) for n in range(MAX_KINDS + 10)}
    assert set(bound_times(many)) == {f"k{n}" for n in range(MAX_KINDS)}
    wide = {f"k{n}": times_of([0.001 * 1.03**step for step in range(400)], []) for n in range(100)}
    bounded = bound_times(wide | {"rare": times_of([1.0], [])})
    assert "rare" in bounded
    assert sum(times.n_bytes for times in bounded.values()) <= MAX_BYTES


def test_elsewhere_uses_neighbouring_sizes_only_if_needed() -> None:
    """The route, the upstream's address, the model, the form and the size must match; its name here does not matter."""
    one = ElsewhereTimes("r", {"up": "openai https://example.com"}, {})
    other = ElsewhereTimes("r", {"name": "openai https://example.com"}, {})
    sizes = {size: one.kind("up", "m", is_whole=False, size=size) for size in range(5, 16)}
    assert other.kind("name", "m", is_whole=False, size=9) == sizes[9]
    assert one.kind("unknown", "m", is_whole=False, size=9) is None
    others = {one.kind("up", "m", is_whole=True, size=9), one.kind("up", "n", is_whole=False, size=9),
              ElsewhereTimes("s", {"up": "openai https://example.com"}, {}).kind("up", "m", is_whole=False, size=9)}
    assert len(others | {*sizes.values()}) == 3 + len(sizes)
    other.times = {kind or "": times_of([1.0] * size, []) for size, kind in sizes.items()}

    def n_found(n_enough: int) -> int:
        return sum(times.n for times in other.find("name", "m", is_whole=False, size=9, n_enough=n_enough))

    assert [n_found(9), n_found(10), n_found(28), n_found(1000)] == [9, 9 + 8 + 10, 9 + 8 + 10 + 7 + 11, 45]
    assert other.find("unknown", "m", is_whole=False, size=9, n_enough=1) == []
