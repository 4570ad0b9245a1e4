"""stores.vectors: the nearest vectors in a matrix, in a graph, and during the move between them."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stayfast.stores import vectors as module
from stayfast.stores.vectors import Vectors

SCOPE, OTHER = b"one scope", b"another"
Floats = NDArray[np.float32]


def made(n: int, n_dims: int = 16, seed: int = 1) -> Floats:
    """Vectors of length 1."""
    found = np.random.default_rng(seed).standard_normal((n, n_dims), dtype=np.float32)
    unit: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def test_vectors_nearest_are_sorted_by_cosine() -> None:
    """With their cosines, and no more than there are."""
    some = made(30)
    index = Vectors(16)
    assert index.nearest(SCOPE, some[0], 3) == []
    for key, vector in enumerate(some):
        index.add(SCOPE, key, vector)
    cosines = some @ some[7]
    best = np.argsort(-cosines)[:5].tolist()
    found = index.nearest(SCOPE, some[7], 5)
    assert [key for key, _ in found] == best
    assert [cosine for _, cosine in found] == pytest.approx(cosines[best].tolist(), abs=1e-6)
    assert len(index.nearest(SCOPE, some[7], 100)) == len(index) == 30


def test_vectors_scopes_do_not_mix() -> None:
    """The same key in two scopes is two vectors."""
    some = made(3)
    index = Vectors(16)
    index.add(SCOPE, 1, some[0])
    index.add(OTHER, 1, some[1])
    index.add(OTHER, 2, some[2])
    assert [key for key, _ in index.nearest(SCOPE, some[1], 5)] == [1]
    assert index.remove(OTHER, 1)
    assert [key for key, _ in index.nearest(OTHER, some[1], 5)] == [2]
    assert index.remove(OTHER, 2)
    assert index.nearest(OTHER, some[1], 5) == []
    assert repr(index) == "<Vectors: 1 in 1 scopes>"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=120))
def test_vectors_add_and_remove_match_a_dictionary(steps: list[tuple[bool, int]]) -> None:
    """After any adding and removing, while a scope grows into a graph: what is there is found, what is gone is not."""
    some = made(13)
    index, keys = Vectors(16), set[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "N_EXACT", 4)
        for is_added, key in steps:
            if is_added:
                index.add(SCOPE, key, some[key])
                keys.add(key)
            else:
                assert index.remove(SCOPE, key) is (key in keys)
                keys.discard(key)
            assert {found for found, _ in index.nearest(SCOPE, some[0], 20)} == keys
    assert len(index) == len(keys)


def test_vectors_graph_has_high_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope grows into one while it is used; cosines are exact to a thousandth."""
    monkeypatch.setattr(module, "N_EXACT", 100)
    some = made(2000, 64)
    index = Vectors(64)
    for key, vector in enumerate(some):
        index.add(SCOPE, key, vector)
    assert index.n_graphs == 1
    n_found = 0
    for vector in made(20, 64, seed=2):
        cosines = some @ vector
        found = index.nearest(SCOPE, vector, 10)
        n_found += len({key for key, _ in found} & set(np.argsort(-cosines)[:10].tolist()))
        assert [cosine for _, cosine in found] == pytest.approx([float(cosines[key]) for key, _ in found], abs=2e-3)
    assert n_found >= 170


def test_onnxruntime_and_usearch_can_be_imported_together() -> None:
    """usearch before onnxruntime crashes a process; whoever imports this first is safe."""
    code = "import stayfast.stores.vectors, onnxruntime; print(len(stayfast.stores.vectors.Vectors(3)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"
