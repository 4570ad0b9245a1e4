"""A limit that several worker processes share.

Problem: if each of N workers has the whole limit, they admit N times as many requests. If each has an Nth of it, one worker
rejects requests while another has free places. Rule: each worker has its counts in shared memory. Only it writes them; all
workers read them. A place is free if the places taken by all workers are fewer than the limit. While other workers have
waiting requests, a worker takes no more than its part:

    free    sum of taken < n_places   and   (no other worker waits, or taken = 0, or taken < part)
    part    demand / (sum of the demands of the workers that wait), of the places of these workers; at least one place
    demand  taken + waiting

Counts are totals, not differences: other workers can set the counts of a dead worker to 0, and the next write of a live
worker corrects an error.
Source: ours; one writer for each cell, as in Lamport's bakery algorithm (1974).
When wrong: two workers that check within the same microsecond may both take the last place. Queue order, priority bands and
fairness between tenants apply within each process only.
"""

from collections.abc import Sequence
from math import ceil
from typing import Protocol

POLL_EVERY_S = 0.005


class Cells(Protocol):
    """Numbers in memory that all processes share; reads and writes are atomic."""

    def __getitem__(self, cell: int, /) -> float: ...

    def __setitem__(self, cell: int, value: float, /) -> None: ...


def describe_occupancy(n_taken: int, n_places: float, shared: "SharedLimit | None", verb: str, where: str = "") -> str:
    """A limit in words: "4 of 4 places are taken (3 of them by other workers)". `n_taken`: the places that this process has
    taken.
    """
    n_elsewhere, is_reserved = 0, False
    if shared is not None:
        n_elsewhere = shared.n_elsewhere()
        is_reserved = n_taken + n_elsewhere < n_places <= shared.n_effective(n_taken, n_places)
    theirs = f" ({n_elsewhere} of them by other workers)" if n_elsewhere else ""
    suffix = ", the rest is reserved for other workers' requests" if is_reserved else ""
    return f"{n_taken + n_elsewhere} of {n_places:.0f} places{where}{verb} taken{theirs}{suffix}"


class ProbeLease:
    """The processes that are probing an upstream now. Each process writes only its own cell."""

    __slots__ = ("_cells", "_others", "_own")

    def __init__(self, cells: Cells, own: int, others: Sequence[int]) -> None:
        self._cells = cells
        self._own = own
        self._others = tuple(others)

    def set_running(self, n: int) -> None:
        self._cells[self._own] = n

    @property
    def is_held_elsewhere(self) -> bool:
        return any(self._cells[other] for other in self._others)


class SharedLimit:
    """One process's view of a shared limit. Used on one event loop."""

    __slots__ = ("_cells", "_others", "_taken", "_waiting", "is_polling", "n_processes")

    def __init__(self, cells: Cells, own: tuple[int, int], others: Sequence[tuple[int, int]]) -> None:
        """`cells`: shared memory. `own`, `others`: for each process the indices of its two cells, taken and waiting."""
        self._cells = cells
        self._taken, self._waiting = own
        self._others = tuple(others)
        self.is_polling = False  # a request of this process waits, and checks every POLL_EVERY_S
        self.n_processes = 1 + len(self._others)

    def set_taken(self, n: int) -> None:
        self._cells[self._taken] = n

    def set_waiting(self, n: int) -> None:
        self._cells[self._waiting] = n

    def n_elsewhere(self) -> int:
        """The places taken by other processes."""
        cells, n = self._cells, 0.0
        for taken, _ in self._others:
            n += cells[taken]
        return int(n)

    def n_waiting_elsewhere(self) -> int:
        """Requests that wait in other processes."""
        return int(sum(self._cells[waiting] for _, waiting in self._others))

    def n_effective(self, n_taken: int, n_places: float) -> int:
        """The places that this process must regard as taken, if it has `n_taken`: those of all processes; `n_places` if the
        free ones are reserved for other processes.
        """
        cells, n = self._cells, float(n_taken)
        n_waiting = 0.0
        for taken, waiting in self._others:
            n += cells[taken]
            n_waiting += cells[waiting]
        if n_waiting and n_taken and n < n_places and n_taken >= self._fair_part(n_taken, n_places):
            return ceil(n_places)
        return int(n)

    def _fair_part(self, n_taken: int, n_places: float) -> float:
        """The places that this process may take while other processes have waiting requests."""
        cells = self._cells
        own = n_taken + max(1.0, cells[self._waiting])
        others = [cells[taken] + cells[waiting] for taken, waiting in self._others if cells[waiting]]
        idle = sum(cells[taken] for taken, waiting in self._others if not cells[waiting])
        left, whole = n_places - idle, own + sum(others)
        small = [demand for demand in others if left * demand < whole]
        return (left - len(small)) * own / (whole - sum(small))
