"""workers.shared_memory: numbers that several workers see."""

from pathlib import Path

import pytest

from stayfast.workers import shared_memory as board
from stayfast.workers.shared_memory import OutOfSlots, SharedCounters, create_files


def test_shared_counters_are_seen_by_all_workers(tmp_path: Path) -> None:
    """By name, whoever asks first; names that nobody wrote are 0."""
    create_files(tmp_path)
    one, two = SharedCounters(tmp_path), SharedCounters(tmp_path)
    names = [f"name {n}" for n in range(1000)]
    for n, name in enumerate(names):
        one.numbers[one.slot(name)] = n + 0.5
    assert [two.numbers[two.slot(name)] for name in reversed(names)] == [n + 0.5 for n in reversed(range(1000))]
    assert len({two.slot(name) for name in names}) == 1000
    assert two.numbers[two.slot("another")] == 0.0


def test_shared_counters_full_raises_out_of_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And names that it has are still found."""
    monkeypatch.setattr(board, "N_SLOTS", 8)
    create_files(tmp_path)
    full = SharedCounters(tmp_path)
    cells = [full.slot(str(n)) for n in range(8)]
    assert sorted(cells) == list(range(8))
    with pytest.raises(OutOfSlots):
        full.slot("9")
    assert SharedCounters(tmp_path).slot("3") == cells[3]


def test_shared_counters_without_memory_are_not_created(tmp_path: Path) -> None:
    """Where the file could not be made, workers learn it at their start."""
    with pytest.raises(OSError, match="No such file"):
        SharedCounters(tmp_path)
