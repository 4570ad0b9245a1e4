"""pipeline.held: everything is given back exactly once, in reverse."""

import pytest

from stayfast.pipeline.exchange import ReleaseStack


def test_release_stack_releases_in_reverse_and_once() -> None:
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


def test_release_stack_continues_after_an_error() -> None:
    """The error is raised after all others were released."""
    order: list[str] = []
    held = ReleaseStack()
    held.add(lambda: order.append("first"))
    held.add(broken)
    held.add(lambda: order.append("last"))
    with pytest.raises(ZeroDivisionError):
        held.release()
    assert order == ["last", "first"]


def test_release_stack_hand_over_moves_all() -> None:
    order: list[str] = []
    held = ReleaseStack()
    held.add(lambda: order.append("x"))
    taken = held.hand_over()
    held.release()
    assert order == []
    taken.release()
    assert order == ["x"]
    assert (len(held), repr(taken)) == (0, "<ReleaseStack 0>")
