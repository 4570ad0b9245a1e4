"""core.held_bytes: whole answers in memory are counted once, released once, and refused above the limit."""

import pytest

from stayfast.core.errors import Shed
from stayfast.core.held_bytes import FREE_BYTES, HeldBytes, Holding


def test_holding_small_answers_are_never_refused() -> None:
    """Even if large answers have used up the limit."""
    account = HeldBytes(1000)
    Holding(account).grow_to(FREE_BYTES + 1000)
    Holding(account).grow_to(FREE_BYTES)
    assert account.n == 1000


def test_holding_above_limit_is_refused_and_changes_nothing() -> None:
    """Others are not affected; a second release has no effect."""
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


def test_holding_without_refusal_is_still_counted() -> None:
    """Bytes that are in memory anyway reduce the room for later answers."""
    account = HeldBytes(1000)
    holding = Holding(account)
    holding.grow_to(FREE_BYTES + 5000, may_refuse=False)
    assert account.n == 5000
    with pytest.raises(Shed):
        Holding(account).grow_to(FREE_BYTES + 1)
    holding.release()
    assert account.n == 0
