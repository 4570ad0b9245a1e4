"""What is told apart by the clock alone."""

from stayfast.core.clock import Turn


def test_the_first_of_each_turn() -> None:
    """One for each reading of the clock, however many ask."""
    turn = Turn()
    assert [turn.is_first(at) for at in (0.0, 0.0, 0.001, 0.001, 0.001, 0.002)] == [True, False, True, False, False, True]
