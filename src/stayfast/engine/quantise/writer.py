"""Writes a quantised model, tensor by tensor, so that a model larger than the memory needs little of it.

The new file appears under its name only when it is whole: it is written under another name in the same folder, flushed
to the disk, and renamed. Whatever ends the writing (Ctrl-C, a full disk, a damaged tensor) removes what was written;
`kill -9` leaves a file `.NAME.*.partial`.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from stayfast.engine.quantise.model_file import ConversionPlan, NotQuantisable, TensorPlan

_STEP_VALUES: Final = 1 << 22  # of a matrix at a time: 16 MB as f32
_LARGEST: Final = 65_504.0  # of f16, the type of a block's scale
Report = Callable[[str, float], None]


def check_target(plan: ConversionPlan, target: Path, *, overwrite: bool) -> None:
    """Raises NotQuantisable if the file may not be written; OSError."""
    if target.exists():
        if target.samefile(plan.path):
            raise NotQuantisable(f"{target} is the model itself; choose another name with --output")
        if not overwrite or not target.is_file():
            raise NotQuantisable(f"{target} exists; --force overwrites it" if target.is_file() else f"{target} is no file")


def _check_room(plan: ConversionPlan, target: Path) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < plan.n_bytes:
        raise NotQuantisable(f"{target} needs {plan.n_bytes / 1e9:.3f} GB, and its folder has {free / 1e9:.3f} GB free; "
                             "choose another folder with --output")


def write_quantised(plan: ConversionPlan, target: Path, *, overwrite: bool = False,
                    report: Report = lambda name, share: None) -> None:
    """Write the new file. report: gets the tensor and the share of the weights that is done.

    Raises NotQuantisable (see `check_target`; no room on the disk; a weight is not finite), OSError; then there is no new
    file.
    """
    check_target(plan, target, overwrite=overwrite)
    _check_room(plan, target)
    partial = target.with_name(f".{target.name}.{token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(plan.head)
            n_done = 0
            for tensor in plan.tensors:
                report(tensor.name, n_done / plan.n_values)
                _write_tensor(file, plan, tensor)
                n_done += tensor.n_values
            file.flush()
            os.fsync(file.fileno())
        check_target(plan, target, overwrite=overwrite)  # another process may have written one meanwhile
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_tensor(file: BinaryIO, plan: ConversionPlan, tensor: TensorPlan) -> None:
    n_written = 0
    for part in _convert(plan, tensor):
        n_written += file.write(part.data)
    assert n_written == tensor.n_bytes, tensor.name
    file.write(b"\0" * (-n_written % plan.alignment))


def _convert(plan: ConversionPlan, tensor: TensorPlan) -> Iterator[NDArray[np.uint8]]:
    """The bytes of one tensor, some rows at a time."""
    rows = tensor.rows.reshape(-1, tensor.rows.shape[-1])
    source, target = (gguf.GGMLQuantizationType[kind.upper()] for kind in (tensor.source, tensor.target))
    n_rows = max(1, _STEP_VALUES // tensor.shape[0])
    for start in range(0, len(rows), n_rows):
        part = rows[start:start + n_rows]
        if tensor.target == tensor.source:
            yield np.ascontiguousarray(part).view(np.uint8)
            continue
        values = gguf.quants.dequantize(part, source)
        if not np.all(np.abs(values) <= _LARGEST):  # false for NaN, too
            raise NotQuantisable(f"{plan.path}: tensor {tensor.name} has a weight that is not finite, or too large for "
                                 "f16: the model is damaged, or was trained so")
        yield gguf.quants.quantize(values, target)
