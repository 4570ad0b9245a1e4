"""release_all: everything is given back exactly once, in reverse."""

from collections.abc import Callable
from functools import partial

import pytest

from stayfast.pipeline.exchange import release_all


def test_release_all_releases_in_reverse_and_once() -> None:
    order: list[int] = []
    held: list[Callable[[], None]] = [partial(order.append, number) for number in range(3)]
    release_all(held)
    release_all(held)
    assert order == [2, 1, 0]


def broken() -> None:
    """A release that fails."""
    raise ZeroDivisionError


def test_release_all_continues_after_an_error() -> None:
    """The error is raised after all others were released."""
    order: list[str] = []
    held: list[Callable[[], None]] = []
    held.append(lambda: order.append("first"))
    held.append(broken)
    held.append(lambda: order.append("last"))
    with pytest.raises(ZeroDivisionError):
        release_all(held)
    assert order == ["last", "first"]
