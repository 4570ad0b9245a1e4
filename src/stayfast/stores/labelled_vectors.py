"""Questions with a known outcome, by vector: the nearest ones to another question, exact. A ring: the newest replaces the
oldest. 4,096 vectors of 256 floats take 4 MB, and a search 0.2 ms.
"""

import numpy as np
from numpy.typing import NDArray

from stayfast.policy.tiers.evidence import LabelledNeighbour

Floats = NDArray[np.float32]


class LabelledVectors:
    """Vectors of length 1, each with its outcome. One thread at a time."""

    __slots__ = ("_is_enough", "_most", "_n_added", "_rows")

    def __init__(self, n_dims: int, most: int) -> None:
        """most: how many are remembered."""
        self._most = most
        self._rows: Floats = np.empty((min(64, most), n_dims), np.float32)
        self._is_enough: list[bool] = []
        self._n_added = 0

    def __len__(self) -> int:
        return len(self._is_enough)

    def add(self, vector: Floats, *, is_enough: bool) -> None:
        """Add a question; beyond `most` it replaces the oldest."""
        place = self._n_added % self._most
        self._n_added += 1
        if place == len(self._is_enough):
            if place == len(self._rows):
                wider = np.empty((min(self._most, 2 * place), self._rows.shape[1]), np.float32)
                wider[:place] = self._rows
                self._rows = wider
            self._is_enough.append(is_enough)
        else:
            self._is_enough[place] = is_enough
        self._rows[place] = vector

    def nearest(self, vector: Floats, n: int) -> list[LabelledNeighbour]:
        """At most n questions, nearest first."""
        cosines = np.vecdot(self._rows[:len(self._is_enough)], vector)
        best = np.argpartition(cosines, -n)[-n:] if len(cosines) > n else np.arange(len(cosines))
        best = best[np.argsort(-cosines[best])]
        return [LabelledNeighbour(cosine, self._is_enough[row])
                for row, cosine in zip(best.tolist(), cosines[best].tolist(), strict=True)]

    def clear(self) -> None:
        self._is_enough.clear()
        self._n_added = 0

    def __repr__(self) -> str:
        return f"<LabelledVectors: {len(self)} of {self._most}>"
