"""A GGUF model that is to be quantised: checked, and its head for the new file.

The metadata are copied as bytes, so that every key, type and order survives: templates, vocabularies of any size, keys
that no version of the `gguf` package knows. Only the file type, the version of the formats and the tensors' table are
written anew.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from stayfast.engine.quantise.tensor_types import SOURCES, TARGETS, choose_type

FILE_TYPES: Final = {"q8_0": 7, "q5_0": 8, "q4_0": 2}  # llama.cpp's numbers of `general.file_type`
_REPLACED: Final = ("general.file_type", "general.quantization_version")
_VIRTUAL: Final = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")  # of the reader, not of the file
_VERSION: Final = 3
_U32: Final = 4
_DAMAGE = (ValueError, KeyError, IndexError, OverflowError, TypeError)  # what the reader raises, by the place of the damage


class NotQuantisable(ValueError):
    """The file is no GGUF model, is damaged, or is one that cannot be quantised. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the new file. shape: as in the file, the length of a row first. offset: in the data section."""

    name: str
    shape: tuple[int, ...]
    source: str
    target: str
    n_bytes: int
    offset: int
    rows: NDArray[Any]  # of the old file, mapped, not read

    @property
    def n_values(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What the new file will contain. weight_bytes: of all tensors, before and after."""

    path: Path
    to: str
    head: bytes
    alignment: int
    tensors: tuple[TensorPlan, ...]
    weight_bytes: tuple[int, int]
    n_bytes: int

    @property
    def n_values(self) -> int:
        return sum(tensor.n_values for tensor in self.tensors)

    @property
    def is_second_loss(self) -> bool:
        """The weights were rounded before, so that the errors of both roundings add up."""
        return any(tensor.source == "q8_0" and tensor.target not in ("q8_0", tensor.source) for tensor in self.tensors)


class _CheckedReader(gguf.GGUFReader):
    """Raises ValueError where the file ends too early: the library takes what is there, and loops on a damaged count."""

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        found = super()._get(offset, dtype, count, override_order)
        if found.size < int(count):
            raise ValueError(f"it ends in the middle of a value at byte {int(offset)}")
        return found


def plan_conversion(path: Path, to: str) -> ConversionPlan:
    """Read the head of a model. to: in TARGETS. Raises NotQuantisable, OSError."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise NotQuantisable(f"{path} is not a GGUF file; `convert_hf_to_gguf.py` of llama.cpp makes one from a folder "
                                 "of Hugging Face")
    try:
        reader = _CheckedReader(path)
        _check(reader, path, to)
        return _plan(reader, path, to)
    except NotQuantisable:
        raise
    except _DAMAGE as error:
        raise NotQuantisable(f"{path} is damaged: {error}. Get the file again, or compare its checksum") from error


def _check(reader: gguf.GGUFReader, path: Path, to: str) -> None:
    if reader.endianess != gguf.GGUFEndian.LITTLE:
        raise NotQuantisable(f"{path} is a big-endian file; only little-endian models are supported")
    if not reader.tensors:
        raise NotQuantisable(f"{path} has no tensors: a file of a vocabulary alone cannot be quantised")
    split = reader.get_field("split.count")
    if split is not None and int(split.contents()) > 1:
        raise NotQuantisable(f"{path} is one of {split.contents()} parts; join them with `llama-gguf-split --merge` first")
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name.lower()
        is_matrix = len(tensor.shape) > 1
        if is_matrix and kind not in SOURCES and not kind.startswith(("i8", "i16", "i32", "i64")):
            raise NotQuantisable(f"{path}: tensor {tensor.name} is {kind} already, and errors add up: take the model's f16 "
                                 f"or bf16 file; sources are {', '.join(SOURCES)}")


def _plan(reader: gguf.GGUFReader, path: Path, to: str) -> ConversionPlan:
    is_tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    alignment = int(reader.alignment)
    tensors, offset = [], 0
    for tensor in reader.tensors:
        shape, source = tuple(int(n) for n in tensor.shape), tensor.tensor_type.name.lower()
        target = choose_type(tensor.name, shape, source, to, is_tied=is_tied)
        n_bytes = tensor.n_bytes if target == source else count_bytes(int(tensor.n_elements), target)
        tensors.append(TensorPlan(tensor.name, shape, source, target, int(n_bytes), offset, tensor.data))
        offset += -(-int(n_bytes) // alignment) * alignment
    if all(tensor.target == tensor.source for tensor in tensors):
        raise NotQuantisable(f"{path}: nothing to do: no matrix of it becomes smaller as {to}")
    head = encode_head(reader, tensors, to)
    head += b"\0" * (-len(head) % alignment)
    before = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    return ConversionPlan(path, to, head, alignment, tuple(tensors), (before, sum(one.n_bytes for one in tensors)),
                          len(head) + offset)


def count_bytes(n_values: int, kind: str) -> int:
    """The size of so many values, which fill whole blocks."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    return n_values // per_block * block_bytes


def encode_head(reader: gguf.GGUFReader, tensors: Sequence[TensorPlan], to: str) -> bytes:
    """The head of the new file: the old metadata with the new file type, and the tensors' table."""
    fields = [b"".join(part.tobytes() for part in field.parts) for name, field in reader.fields.items()
              if name not in _VIRTUAL and name not in _REPLACED]
    fields.append(_encode_u32(_REPLACED[0], FILE_TYPES[to]))
    fields.append(_encode_u32(_REPLACED[1], gguf.GGML_QUANT_VERSION))
    infos = [_encode_text(tensor.name) + struct.pack(
        f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, gguf.GGMLQuantizationType[tensor.target.upper()],
        tensor.offset) for tensor in tensors]
    return b"".join([b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(fields)), *fields, *infos])


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encode_u32(name: str, value: int) -> bytes:
    return _encode_text(name) + struct.pack("<II", _U32, value)


assert set(FILE_TYPES) == set(TARGETS)
