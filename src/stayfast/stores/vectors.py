"""Search for the nearest vectors in a scope, by cosine: exact up to N_EXACT vectors, above that by an HNSW graph.

Exact: the dot products with all vectors of a scope. Memory bandwidth limits it: 0.15 ms for 5,000 vectors of 384 floats,
2.8 ms for 20,000, 16 ms for 100,000. It uses `vecdot`, row by row: the matrix product of BLAS is not faster on one thread,
and with several threads it waits for all of them, tens of milliseconds on a busy machine. Graph: usearch, HNSW over float16,
0.5 ms at 100,000 vectors with a recall of 9.96 of 10 (int8: half the memory, 9.6 of 10). Adding a vector to it takes 0.1 to
0.8 ms. So a scope moves in small steps: each added vector moves N_MOVED_PER_ADD old ones, and the exact index answers until
all have moved.

Used by one thread at a time. Each scope has its own index, so scopes never mix. A restart loses all vectors.
"""

from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import_module("onnxruntime")  # importing it after usearch crashes the process (1.31, and usearch 2.26)
_INDEX: Final[Any] = import_module("usearch.index").Index

Floats = NDArray[np.float32]

N_EXACT: Final = 5_000
N_MOVED_PER_ADD: Final = 2


class Vectors:
    """Vectors of length 1 by scope and key (0 to 2**63 - 1). Cosines from the graph are accurate to 0.001."""

    __slots__ = ("_scopes", "n_dims")

    def __init__(self, n_dims: int) -> None:
        self.n_dims = n_dims
        self._scopes: dict[bytes, _Exact | _Moving | _Graph] = {}

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))

    @property
    def n_graphs(self) -> int:
        """Scopes that are searched by graph."""
        return sum(isinstance(index, _Graph) for index in self._scopes.values())

    def add(self, scope: bytes, key: int, vector: Floats) -> None:
        """Add a vector; it replaces the one of the same key. Takes at most 0.5 ms up to 10,000 vectors in a scope, 0.8 ms at
        100,000.
        """
        index = self._scopes.get(scope)
        if index is None:
            index = self._scopes[scope] = _Exact(self.n_dims)
        else:
            index.remove(key)
        index.add(key, vector)
        if isinstance(index, _Exact) and len(index) > N_EXACT:
            self._scopes[scope] = _Moving(index)
        elif isinstance(index, _Moving) and index.is_complete:
            self._scopes[scope] = index.graph

    def nearest(self, scope: bytes, vector: Floats, n: int) -> list[tuple[int, float]]:
        """Keys and cosines of at most n vectors, nearest first."""
        index = self._scopes.get(scope)
        return [] if index is None else index.nearest(vector, n)

    def remove(self, scope: bytes, key: int) -> bool:
        """Remove a vector; returns whether it was there."""
        index = self._scopes.get(scope)
        if index is None or not index.remove(key):
            return False
        if not len(index):
            del self._scopes[scope]
        return True

    def __repr__(self) -> str:
        return f"<Vectors: {len(self)} in {len(self._scopes)} scopes>"


class _Exact:
    """An exact index: a matrix with one row for each vector. The last row fills the place of a removed one."""

    __slots__ = ("_keys", "_matrix", "_rows")

    def __init__(self, n_dims: int) -> None:
        self._matrix = np.empty((1, n_dims), np.float32)  # most scopes are small
        self._keys: list[int] = []
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> list[int]:
        return list(self._keys)

    def vector(self, key: int) -> Floats | None:
        row = self._rows.get(key)
        return None if row is None else self._matrix[row]

    def add(self, key: int, vector: Floats) -> None:
        row = len(self._keys)
        if row == len(self._matrix):
            wider = np.empty((2 * row, self._matrix.shape[1]), np.float32)
            wider[:row] = self._matrix
            self._matrix = wider
        self._matrix[row] = vector
        self._rows[key] = row
        self._keys.append(key)

    def remove(self, key: int) -> bool:
        row = self._rows.pop(key, None)
        if row is None:
            return False
        last = self._keys.pop()
        if last != key:
            self._matrix[row] = self._matrix[len(self._keys)]
            self._keys[row] = last
            self._rows[last] = row
        return True

    def nearest(self, vector: Floats, n: int) -> list[tuple[int, float]]:
        cosines = np.vecdot(self._matrix[:len(self._keys)], vector)
        best = np.argpartition(cosines, -n)[-n:] if len(cosines) > n else np.arange(len(cosines))
        best = best[np.argsort(-cosines[best])]
        return [(self._keys[row], cosine) for row, cosine in zip(best.tolist(), cosines[best].tolist(), strict=True)]


class _Graph:
    """An approximate index: an HNSW graph."""

    __slots__ = ("_index",)

    def __init__(self, n_dims: int) -> None:
        self._index = _INDEX(ndim=n_dims, metric="ip", dtype="f16", connectivity=16, expansion_add=64, expansion_search=64)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: int) -> bool:
        return key in self._index

    def add(self, key: int, vector: Floats) -> None:
        self._index.add(key, vector, threads=1)

    def remove(self, key: int) -> bool:
        return key in self._index and bool(self._index.remove(key, threads=1))

    def nearest(self, vector: Floats, n: int) -> list[tuple[int, float]]:
        found = self._index.search(vector, n, threads=1)
        return [(key, 1.0 - distance) for key, distance in zip(found.keys.tolist(), found.distances.tolist(), strict=True)]


class _Moving:
    """An exact index whose vectors are being moved into a graph. The matrix answers until the last one has moved."""

    __slots__ = ("_exact", "_waiting", "graph")

    def __init__(self, exact: _Exact) -> None:
        self._exact = exact
        self._waiting = exact.keys()
        self.graph = _Graph(exact._matrix.shape[1])

    def __len__(self) -> int:
        return len(self._exact)

    @property
    def is_complete(self) -> bool:
        return not self._waiting

    def add(self, key: int, vector: Floats) -> None:
        self._exact.add(key, vector)
        self.graph.add(key, vector)
        for _ in range(min(N_MOVED_PER_ADD, len(self._waiting))):
            moved = self._waiting.pop()
            old = self._exact.vector(moved)
            if old is not None and moved not in self.graph:  # it was neither removed nor replaced since the move began
                self.graph.add(moved, old)

    def remove(self, key: int) -> bool:
        self.graph.remove(key)
        return self._exact.remove(key)

    def nearest(self, vector: Floats, n: int) -> list[tuple[int, float]]:
        return self._exact.nearest(vector, n)
