"""The nearest vectors in one scope, by cosine: exact while there are few, by a graph when there are many.

A product with all vectors of a scope is exact, needs nothing built, and is bound by memory: 0.15 ms for 5,000 of 384 floats,
2.8 ms for 20,000, 16 ms for 100,000. It is taken row by row (vecdot): the matrix product of BLAS is no quicker on one
thread, and on its own several it waits for them, tens of milliseconds where the machine is busy. Above N_EXACT a graph
answers (usearch, HNSW over float16: 0.5 ms at 100,000, where of ten nearest it finds 9.96). Building it takes 0.1 to 0.8 ms
a vector, so a scope moves there in small steps: with each vector that is added, MOVED old ones, while the matrix goes on
answering. Int8 was weighed: half the memory, but of ten nearest it finds 9.6.

Nothing here waits, and one thread at a time uses it. A scope's vectors never meet another's: there is one index a scope.
Vectors are kept over a restart by whoever knows what they mean (stores/label_store.py).
"""

from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import_module("onnxruntime")  # which crashes the process where usearch was there before it (1.31, and 2.26)
_INDEX: Final[Any] = import_module("usearch.index").Index

Floats = NDArray[np.float32]

N_EXACT: Final = 5_000
MOVED: Final = 2


class Vectors:
    """Vectors of length 1 by scope and key; keys are from 0 to 2**63 - 1. Of many, cosines are rounded to 0.001."""

    __slots__ = ("_scopes", "n_dims")

    def __init__(self, n_dims: int) -> None:
        self.n_dims = n_dims
        self._scopes: dict[bytes, _Exact | _Moving | _Graph] = {}

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))

    def add(self, scope: bytes, key: int, vector: Floats) -> None:
        """Keep a vector, in place of the key's last one. 0.5 ms at most up to 10,000 in a scope, 0.8 ms at 100,000."""
        index = self._scopes.get(scope)
        if index is None:
            index = self._scopes[scope] = _Exact(self.n_dims)
        else:
            index.remove(key)
        index.add(key, vector)
        if isinstance(index, _Exact) and len(index) > N_EXACT:
            self._scopes[scope] = _Moving(index)
        elif isinstance(index, _Moving) and index.is_over:
            self._scopes[scope] = index.graph

    def nearest(self, scope: bytes, vector: Floats, n: int) -> list[tuple[int, float]]:
        """The keys of the n nearest and their cosines, nearest first; fewer where there are no more."""
        index = self._scopes.get(scope)
        return [] if index is None else index.nearest(vector, n)

    def remove(self, scope: bytes, key: int) -> bool:
        """Forget a vector; returns whether it was there."""
        index = self._scopes.get(scope)
        if index is None or not index.remove(key):
            return False
        if not len(index):
            del self._scopes[scope]
        return True

    def __repr__(self) -> str:
        return f"<Vectors: {len(self)} in {len(self._scopes)} scopes>"


class _Exact:
    """A matrix; what is removed gives its row to the last one."""

    __slots__ = ("_keys", "_matrix", "_rows")

    def __init__(self, n_dims: int) -> None:
        self._matrix = np.empty((1, n_dims), np.float32)  # most scopes stay small
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
    """usearch."""

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
    """A matrix on its way into a graph. It answers until the last of its vectors is there."""

    __slots__ = ("_exact", "_waiting", "graph")

    def __init__(self, exact: _Exact) -> None:
        self._exact = exact
        self._waiting = exact.keys()
        self.graph = _Graph(exact._matrix.shape[1])

    def __len__(self) -> int:
        return len(self._exact)

    @property
    def is_over(self) -> bool:
        return not self._waiting

    def add(self, key: int, vector: Floats) -> None:
        self._exact.add(key, vector)
        self.graph.add(key, vector)
        for _ in range(min(MOVED, len(self._waiting))):
            moved = self._waiting.pop()
            old = self._exact.vector(moved)
            if old is not None and moved not in self.graph:  # gone, or come again
                self.graph.add(moved, old)

    def remove(self, key: int) -> bool:
        self.graph.remove(key)
        return self._exact.remove(key)

    def nearest(self, vector: Floats, n: int) -> list[tuple[int, float]]:
        return self._exact.nearest(vector, n)
