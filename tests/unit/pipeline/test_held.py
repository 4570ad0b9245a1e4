"""pipeline.held: everything is given back exactly once, in reverse."""

import pytest

from stayfast.pipeline.exchange import ReleaseStack


def test_released_in_reverse_and_once() -> None:
    """Last in, first out; a second release does nothing."""
    order: list[int] = []
    held = ReleaseStack()
    for number in range(3):
        held.add(lambda number=number: order.append(number))  # type: ignore[misc]
    held.release()
    held.release()
    assert order == [2, 1, 0]


def broken() -> None:
    """A release that fails."""
    raise ZeroDivisionError


def test_one_that_raises_does_not_keep_the_others() -> None:
    """A broken release is reported, after all the others were made."""
    order: list[str] = []
    held = ReleaseStack()
    held.add(lambda: order.append("first"))
    held.add(broken)
    held.add(lambda: order.append("last"))
    with pytest.raises(ZeroDivisionError):
        held.release()
    assert order == ["last", "first"]


def test_hand_over_moves_everything() -> None:
    """After it the old owner holds nothing and the new one all."""
    order: list[str] = []
    held = ReleaseStack()
    held.add(lambda: order.append("x"))
    taken = held.hand_over()
    held.release()
    assert order == []
    taken.release()
    assert order == ["x"]
    assert (len(held), repr(taken)) == (0, "<ReleaseStack 0>")
