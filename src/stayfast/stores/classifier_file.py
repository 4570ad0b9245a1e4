"""A trained classifier in a file: a .npz of numpy with arrays of numbers only, and a digest over all of them.

    meta      UTF-8 JSON as bytes: version, labels, embedders, calibration, threshold, what it was trained on, its figures
    weights0, bias0, and of a cascade weights1, bias1     float32
    digest    SHA-256 of the other arrays: name, type, shape and bytes of each, in the order of their names

Files with pickled objects are refused, as reading them could run code.
"""

import zlib
from hashlib import sha256
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stayfast.policy.classify.head import ClassifierRule, LinearHead, ProbabilityMap

VERSION: Final = 1
MAX_BYTES: Final = 256 * 1024 * 1024  # of all arrays
LEAST_TEMPERATURE: Final = 1e-6
MAX_LABELS: Final = 10_000
# encrypted, packed by another method, torn, or an array whose header announces more than there is memory
_UNREADABLE: Final = (ValueError, BadZipFile, KeyError, EOFError, RuntimeError, MemoryError, zlib.error)


class ClassifierFileError(ValueError):
    """A file that cannot be used as a classifier. The message has its name, the reason and the remedy."""


class TrainedOn(Struct, frozen=True):
    """sha256: of the training file, in hexadecimal. Shares are 0 to 1, of rows that were held out; None: there were none."""

    sha256: str
    n_rows: int
    seed: int
    n_held_out: int = 0
    accuracy: float | None = None
    calibration_error: float | None = None
    unknown_share: float | None = None
    precision: float | None = None  # of the answers that are not unknown


class StoredClassifier(Struct, frozen=True, eq=False):
    """heads: one, or two of a cascade. embedders: the id of the vectors of each head."""

    heads: tuple[LinearHead, ...]
    rule: ClassifierRule
    embedders: tuple[str, ...]
    trained_on: TrainedOn
    digest: str = ""  # hexadecimal; of the file


class _Meta(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    labels: tuple[str, ...]
    embedders: tuple[str, ...]
    temperatures: tuple[float, ...]
    threshold: float
    points: tuple[tuple[float, float], ...]
    second_margin: float
    second_share: float
    mixed_temperature: float
    trained_on: TrainedOn


def write_classifier(path: Path, classifier: StoredClassifier) -> str:
    """Write the file in one step; returns its digest. Raises OSError."""
    rule = classifier.rule
    meta = _Meta(VERSION, rule.labels, classifier.embedders, tuple(head.temperature for head in classifier.heads),
                 rule.threshold, rule.map.points, rule.second_margin, rule.second_share, rule.mixed_temperature,
                 classifier.trained_on)
    arrays: dict[str, NDArray[Any]] = {"meta": np.frombuffer(msgspec.json.encode(meta), np.uint8)}
    for n, head in enumerate(classifier.heads):
        arrays[f"weights{n}"], arrays[f"bias{n}"] = head.weights, head.bias
    digest = _digest(arrays)
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, digest=np.frombuffer(digest, np.uint8), **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return digest.hex()


def read_classifier(path: Path) -> StoredClassifier:
    """Raises ClassifierFileError."""
    try:
        arrays = _read_arrays(path)
    except OSError as error:
        raise ClassifierFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except _UNREADABLE as error:
        raise ClassifierFileError(f"{path} is not a classifier of `stayfast classify train`: {error}") from None
    stored = arrays.pop("digest", None)
    if stored is None or stored.tobytes() != (digest := _digest(arrays)):
        raise ClassifierFileError(f"{path} is damaged: its content does not match its digest. Train it again")
    try:
        meta = msgspec.json.decode(arrays["meta"].tobytes(), type=_Meta)
    except (KeyError, msgspec.DecodeError) as error:
        raise ClassifierFileError(f"{path} was written by another version of Stayfast ({error}). Train it again") from None
    if meta.version != VERSION:
        raise ClassifierFileError(f"{path} has version {meta.version}, and this Stayfast reads {VERSION}. Train it again")
    problem = _find_problem(meta, arrays)
    if problem:
        raise ClassifierFileError(f"{path} is not complete: {problem}. Train it again")
    heads = tuple(LinearHead(arrays[f"weights{n}"], arrays[f"bias{n}"], temperature)
                  for n, temperature in enumerate(meta.temperatures))
    rule = ClassifierRule(meta.labels, meta.threshold, ProbabilityMap(meta.points), meta.second_margin, meta.second_share,
                          meta.mixed_temperature)
    return StoredClassifier(heads, rule, meta.embedders, meta.trained_on, digest.hex())


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with ZipFile(path) as archive:
        n_bytes = sum(member.file_size for member in archive.infolist())
    if n_bytes > MAX_BYTES:
        raise ValueError(f"it has {n_bytes:,} bytes, and at most {MAX_BYTES:,} are read")
    with np.load(path, allow_pickle=False) as archive:
        found = {name: archive[name] for name in archive.files}
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise ValueError("it has parts that are no arrays")
    return found


def _find_problem(meta: _Meta, arrays: dict[str, NDArray[Any]]) -> str:
    """Why the parts do not fit each other; empty: they do."""
    n_labels = len(meta.labels)
    if not 2 <= n_labels <= MAX_LABELS or len(set(meta.labels)) < n_labels:
        return f"{n_labels} labels"
    if not 1 <= len(meta.embedders) <= 2 or len(meta.embedders) != len(meta.temperatures):
        return f"{len(meta.embedders)} embedders"
    if not all(LEAST_TEMPERATURE <= one < inf for one in (*meta.temperatures, meta.mixed_temperature)):
        return "a temperature of 0"
    shares = (meta.threshold, meta.second_margin, meta.second_share, *chain.from_iterable(meta.points))
    if not all(0 <= one <= 1 for one in shares) or list(meta.points) != sorted(meta.points):
        return "a probability that is not from 0 to 1, or points that are not in order"
    for n in range(len(meta.embedders)):
        weights, bias = arrays.get(f"weights{n}"), arrays.get(f"bias{n}")
        if weights is None or bias is None or weights.ndim != 2 or weights.shape[0] != n_labels or bias.shape != (n_labels,):
            return f"the weights of head {n + 1}"
        if weights.dtype != np.float32 or bias.dtype != np.float32 or not np.isfinite(weights).all() or not np.isfinite(
                bias).all():
            return f"weights of head {n + 1} that are not finite float32"
    return ""


def _digest(arrays: dict[str, NDArray[Any]]) -> bytes:
    whole = sha256()
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.digest()
