"""The nearest labelled questions."""

import numpy as np

from stayfast.stores.labelled_vectors import LabelledVectors


def unit(degrees: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], np.float32)


def test_nearest_come_first_with_their_outcome() -> None:
    index = LabelledVectors(2, 100)
    for degrees in range(90):
        index.add(unit(degrees), is_enough=degrees < 45)
    found = index.nearest(unit(44.4), 3)
    assert [one.is_enough for one in found] == [True, False, True]
    assert found[0].cosine > found[1].cosine > found[2].cosine > 0.99


def test_oldest_is_replaced_beyond_the_most() -> None:
    index = LabelledVectors(2, 70)
    for degrees in range(80):
        index.add(unit(degrees), is_enough=True)
    assert len(index) == 70
    assert index.nearest(unit(0), 1)[0].cosine < np.cos(np.radians(9.5))


def test_cleared_index_has_no_neighbours() -> None:
    index = LabelledVectors(2, 10)
    index.add(unit(3), is_enough=True)
    index.clear()
    assert index.nearest(unit(3), 5) == []
    index.add(unit(4), is_enough=False)
    assert [one.is_enough for one in index.nearest(unit(4), 5)] == [False]
