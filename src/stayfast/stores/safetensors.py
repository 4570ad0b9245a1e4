"""Reads safetensors files without the package of that name: a JSON header, then the arrays."""

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_KINDS: Final[dict[str, type[np.floating[Any]]]] = {"F32": np.float32, "F16": np.float16}


def map_safetensors(path: Path) -> dict[str, NDArray[np.floating[Any]]]:
    """The arrays of float32 and float16 in a safetensors file by name, mapped into memory and read-only: processes of one
    machine share the pages. Raises ValueError for a malformed file, OSError.
    """
    data = np.memmap(path, dtype=np.uint8, mode="r")
    n_header = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or n_header > len(data) - 8:
        raise ValueError(f"{path} is not a complete safetensors file")
    try:
        header: dict[str, dict[str, Any]] = msgspec.json.decode(data[8:8 + n_header].tobytes())
    except msgspec.DecodeError:
        raise ValueError(f"{path} is not a safetensors file") from None
    body = data[8 + n_header:]
    found = {}
    for name, tensor in header.items():
        kind = _KINDS.get(tensor.get("dtype", ""))
        if kind is not None:
            begin, end = tensor["data_offsets"]
            found[name] = body[begin:end].view(kind).reshape(tensor["shape"])
    return found


def read_safetensors(path: Path) -> dict[str, Floats]:
    """The arrays by name without "bert.", as float32 in memory. Raises as `map_safetensors`."""
    return {name.removeprefix("bert."): array.astype(np.float32) for name, array in map_safetensors(path).items()}
