"""stores.classifier_file: a classifier comes back as it was written, and damaged or foreign files are refused."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec
import numpy as np
import pytest
from numpy.lib.format import write_array_header_1_0

from stayfast.policy.classify.head import ClassifierRule, LinearHead, ProbabilityMap
from stayfast.stores.classifier_file import (
    ClassifierFileError,
    StoredClassifier,
    TrainedOn,
    read_classifier,
    write_classifier,
)

Change = Callable[[StoredClassifier], StoredClassifier]


def make_classifier(n_heads: int = 2, labels: tuple[str, ...] = ("card", "Bargeld \u20ac", "unsure")) -> StoredClassifier:
    """Random weights."""
    rng = np.random.default_rng(1)
    heads = tuple(LinearHead(rng.normal(size=(len(labels), 8)).astype(np.float32), np.zeros(len(labels), np.float32), 0.8)
                  for _ in range(n_heads))
    rule = ClassifierRule(labels, 0.6, ProbabilityMap(((0.1, 0.2), (0.9, 0.8))), 0.3, 0.6, 1.1)
    return StoredClassifier(heads, rule, ("static-1", "minilm-2")[:n_heads], TrainedOn("ab" * 32, 100, 7, accuracy=0.9))


@pytest.mark.parametrize("n_heads", [1, 2])
def test_read_classifier_what_was_written_comes_back(tmp_path: Path, n_heads: int) -> None:
    made, path = make_classifier(n_heads), tmp_path / "x.npz"
    digest = write_classifier(path, made)
    found = read_classifier(path)
    assert (found.rule, found.embedders, found.trained_on, found.digest) == (made.rule, made.embedders, made.trained_on,
                                                                             digest)
    assert all((a.weights == b.weights).all() for a, b in zip(found.heads, made.heads, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def rewrite(path: Path, **changed: np.ndarray) -> None:
    """Write a file's arrays again, some of them changed."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(path, **(arrays | changed))


def test_read_classifier_changed_weight_does_not_match_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_classifier(path, make_classifier())
    with np.load(path) as archive:
        weights = archive["weights0"].copy()
    weights[0, 0] += 1
    rewrite(path, weights0=weights)
    with pytest.raises(ClassifierFileError, match="damaged"):
        read_classifier(path)


def test_read_classifier_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, meta=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ClassifierFileError, match="allow_pickle"):
        read_classifier(path)


@pytest.mark.parametrize("data", [b"", b"text,label\n", b"PK\x05\x06" + bytes(18), b"PK\x03\x04 torn"])
def test_read_classifier_other_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    with pytest.raises(ClassifierFileError, match=r"x\.npz"):
        read_classifier(path)


def write_part(path: Path, name: str, data: bytes) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr(name, data)


def announce_terabytes(path: Path) -> None:
    head = BytesIO()
    write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
    write_part(path, "weights0.npy", head.getvalue() + bytes(100))


def break_packed(path: Path) -> None:
    write_part(path, "meta.npy", b"\x93NUMPY" + bytes(5000))
    data = bytearray(path.read_bytes())
    data[38:50] = b"\xff" * 12
    path.write_bytes(data)


def change_head(path: Path, at: int, value: int) -> None:
    """Of each part, in the directory and in front of it."""
    write_classifier(path, make_classifier())
    data = bytearray(path.read_bytes())
    for mark, skipped in ((b"PK\x01\x02", 2), (b"PK\x03\x04", 0)):
        data[data.find(mark) + at + skipped] = value
    path.write_bytes(data)


@pytest.mark.parametrize("write", [
    announce_terabytes, break_packed, lambda path: write_part(path, "digest", b"x" * 32),
    lambda path: change_head(path, 6, 1), lambda path: change_head(path, 8, 77)],
    ids=["terabytes", "broken", "no array", "encrypted", "unknown method"])
def test_read_classifier_hostile_file_is_an_error(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "x.npz"
    write(path)
    with pytest.raises(ClassifierFileError, match="is not a classifier"):
        read_classifier(path)


def test_read_classifier_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClassifierFileError, match="No such file"):
        read_classifier(tmp_path / "none.npz")


@pytest.mark.parametrize(("change", "why"), [
    (lambda made: msgspec.structs.replace(made, embedders=("one",)), "embedders"),
    (lambda made: msgspec.structs.replace(made, rule=msgspec.structs.replace(made.rule, labels=("a", "b"))), "weights"),
    (lambda made: msgspec.structs.replace(made, rule=msgspec.structs.replace(made.rule, labels=("a", "a", "b"))), "labels"),
    (lambda made: msgspec.structs.replace(made, rule=msgspec.structs.replace(made.rule, mixed_temperature=0.0)),
     "temperature"),
    (lambda made: msgspec.structs.replace(made, rule=msgspec.structs.replace(made.rule, threshold=7.0)), "probability"),
    (lambda made: msgspec.structs.replace(made, rule=msgspec.structs.replace(made.rule, map=ProbabilityMap(
        ((0.9, 0.5), (0.1, 0.2))))), "order"),
    (lambda made: msgspec.structs.replace(made, heads=(msgspec.structs.replace(
        made.heads[0], bias=np.full(3, np.nan, np.float32)), made.heads[1])), "finite"),
])
def test_read_classifier_parts_that_do_not_fit_are_an_error(tmp_path: Path, change: Change, why: str) -> None:
    path = tmp_path / "x.npz"
    write_classifier(path, change(make_classifier()))
    with pytest.raises(ClassifierFileError, match=why):
        read_classifier(path)
