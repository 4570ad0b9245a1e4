"""The board of engine signals."""

from stayfast.core.engine_signals import EngineSignals
from stayfast.upstreams.state.signal_board import SignalBoard


def test_signal_board_reading_is_unknown_after_three_intervals() -> None:
    """At three intervals it still counts, later not; an upstream without a reading is unknown."""
    board = SignalBoard(5.0)
    board.publish("a", EngineSignals(100.0, waiting=2.0))
    assert board.signals_of("a", 115.0) == EngineSignals(100.0, waiting=2.0)
    assert board.signals_of("a", 115.1) is None
    assert board.signals_of("b", 100.0) is None


def test_signal_board_older_reading_is_ignored() -> None:
    """Messages of other workers may overtake each other."""
    board = SignalBoard(5.0)
    board.publish("a", EngineSignals(100.0, waiting=2.0))
    board.publish("a", EngineSignals(99.0, waiting=9.0))
    assert board.signals_of("a", 100.0) == EngineSignals(100.0, waiting=2.0)


def test_signal_board_forgotten_upstream_is_unknown() -> None:
    """A reload that removes an upstream removes its reading."""
    board = SignalBoard(5.0)
    board.publish("a", EngineSignals(100.0))
    board.publish("b", EngineSignals(100.0))
    board.keep_only(["b", "c"])
    assert board.signals_of("a", 100.0) is None
    assert board.signals_of("b", 100.0) is not None
