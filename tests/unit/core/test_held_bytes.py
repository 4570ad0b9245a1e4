"""What is held of whole answers: counted once, given back once, and refused above the limit."""

import pytest

from stayfast.core.errors import Shed
from stayfast.core.held_bytes import FREE_BYTES, HeldBytes, Holding


def test_small_answers_are_never_refused() -> None:
    """Not even where large ones have taken everything."""
    account = HeldBytes(1000)
    Holding(account).grow_to(FREE_BYTES + 1000)
    Holding(account).grow_to(FREE_BYTES)
    assert account.n == 1000


def test_what_would_be_too_much_is_refused_and_changes_nothing() -> None:
    """The others stay, and there is room again once one is released; twice is as good as once."""
    account = HeldBytes(1000)
    first, second = Holding(account), Holding(account)
    first.grow_to(FREE_BYTES + 600)
    second.grow_to(FREE_BYTES + 300)
    with pytest.raises(Shed, match="max_buffered_bytes") as caught:
        second.grow_to(FREE_BYTES + 500)
    assert (caught.value.status, caught.value.code, account.n) == (503, "too_many_bytes_held", 900)
    first.release()
    first.release()
    second.grow_to(FREE_BYTES + 500)
    assert account.n == 500


def test_what_is_there_in_any_case_is_counted_all_the_same() -> None:
    """A client's part of the way has no choice, but those after it have less room."""
    account = HeldBytes(1000)
    holding = Holding(account)
    holding.grow_to(FREE_BYTES + 5000, may_refuse=False)
    assert account.n == 5000
    with pytest.raises(Shed):
        Holding(account).grow_to(FREE_BYTES + 1)
    holding.release()
    assert account.n == 0
