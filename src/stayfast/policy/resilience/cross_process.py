"""How several processes keep to one number of places.

Problem: N workers of one machine, each with a limit of its own, let in N times as many, and divided by N they refuse at one
worker what stands free at another: the kernel spreads connections by chance. Rule: everybody's count lies where all can read
it, each writes only its own, and a place is free when all counts together are below the limit. While others wait, nobody
takes more than its part by demand, so that a place that is given back goes to whoever has had less:

    free    sum of taken < n_places   and   nobody else waits, or taken = 0, or taken < part
    part    demand / sum of demands, of the places of all that wait; whose part would be less than one place gets one
    demand  taken + waiting

Counts are absolute: a process that ended is set to 0 by the others, and one that was taken for dead mends it by its next.
Two that look within the same microsecond may both take the last place; that is all there is to go wrong.
Source: ours; the one writer for each cell is Lamport's (the bakery algorithm, 1974).
When wrong: order and fairness among those that wait are each process's own; so are bands and tenants.
"""

from collections.abc import Sequence
from math import ceil
from typing import Protocol

LOOK_ELSEWHERE_S = 0.005


class Cells(Protocol):
    """Numbers that all processes see; each is written and read as a whole."""

    def __getitem__(self, cell: int, /) -> float: ...

    def __setitem__(self, cell: int, value: float, /) -> None: ...


def occupancy(n_taken: int, n_places: float, common: "SharedLimit | None", verb: str, where: str = "") -> str:
    """Places as the decision counts them, `n_taken` of them here: 4 of 4 places are taken (3 of them by other workers)."""
    n_elsewhere, is_reserved = 0, False
    if common is not None:
        n_elsewhere = common.n_elsewhere()
        is_reserved = n_taken + n_elsewhere < n_places <= common.n_seen(n_taken, n_places)
    theirs = f" ({n_elsewhere} of them by other workers)" if n_elsewhere else ""
    suffix = ", the rest is kept for other workers' requests" if is_reserved else ""
    return f"{n_taken + n_elsewhere} of {n_places:.0f} places{where}{verb} taken{theirs}{suffix}"


class ProbeLease:
    """One process's view of who probes an upstream that is coming back. One loop's; each writes only its own cell."""

    __slots__ = ("_cells", "_others", "_own")

    def __init__(self, cells: Cells, own: int, others: Sequence[int]) -> None:
        self._cells = cells
        self._own = own
        self._others = tuple(others)

    def running(self, n: int) -> None:
        self._cells[self._own] = n

    @property
    def are_elsewhere(self) -> bool:
        return any(self._cells[other] for other in self._others)


class SharedLimit:
    """One process's view of places that several share. `cells` is memory that all of them see; one loop's."""

    __slots__ = ("_cells", "_others", "_taken", "_waiting", "is_watched", "n_processes")

    def __init__(self, cells: Cells, own: tuple[int, int], others: Sequence[tuple[int, int]]) -> None:
        """Each process has two cells, of taken and of waiting: `own` and `others` are their indices."""
        self._cells = cells
        self._taken, self._waiting = own
        self._others = tuple(others)
        self.is_watched = False  # somebody waits here, and looks every LOOK_ELSEWHERE_S
        self.n_processes = 1 + len(self._others)

    def taken(self, n: int) -> None:
        self._cells[self._taken] = n

    def waiting(self, n: int) -> None:
        self._cells[self._waiting] = n

    def n_elsewhere(self) -> int:
        """How many the others have taken."""
        cells, n = self._cells, 0.0
        for taken, _ in self._others:
            n += cells[taken]
        return int(n)

    def n_seen(self, n_taken: int, n_places: float) -> int:
        """How many are taken, to whoever has taken so many here; all of `n_places` where what is left is for others."""
        cells, n = self._cells, float(n_taken)
        n_waiting = 0.0
        for taken, waiting in self._others:
            n += cells[taken]
            n_waiting += cells[waiting]
        if n_waiting and n_taken and n < n_places and n_taken >= self._part(n_taken, n_places):
            return ceil(n_places)
        return int(n)

    def _part(self, n_taken: int, n_places: float) -> float:
        """The places that are this process's while others wait."""
        cells = self._cells
        own = n_taken + max(1.0, cells[self._waiting])
        others = [cells[taken] + cells[waiting] for taken, waiting in self._others if cells[waiting]]
        idle = sum(cells[taken] for taken, waiting in self._others if not cells[waiting])
        left, whole = n_places - idle, own + sum(others)
        small = [demand for demand in others if left * demand < whole]
        return (left - len(small)) * own / (whole - sum(small))

    def __repr__(self) -> str:
        return f"<SharedLimit of {self.n_processes}: {self.n_elsewhere()} taken elsewhere>"
